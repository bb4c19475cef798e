"""Result arrays on disk, with a time to live and a quota; the oldest are deleted first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final

import numpy as np

from app.dtypes import Array

_LOOK: Final = 30.0  # seconds between looks for what is too old


class ResultStore:
    """Keeps arrays in `folder` for `ttl` seconds, and no more than `most` bytes of them; safe from any thread.

    Files that are being written count: if only they are in the way, the next waits for them.
    """

    def __init__(self, folder: Path, ttl: float, most: int, clock: Callable[[], float] = monotonic) -> None:
        self.ttl, self.most = ttl, most
        self._folder, self._clock = folder, clock
        self._kept: dict[str, tuple[int, float]] = {}  # bytes and the moment, by name, oldest first
        self._writing: dict[str, int] = {}  # bytes by name of what is being written
        self._lock = threading.Condition()
        self._ending = threading.Event()

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now, or are being written."""
        with self._lock:
            return self._taken()

    def start(self) -> None:
        """Remove what an earlier process left, and start the thread that removes what is too old."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink()
        look = max(0.1, min(self.ttl, _LOOK))

        def sweep() -> None:
            while not self._ending.wait(look):
                self.sweep()

        threading.Thread(target=sweep, name="results", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread; what is kept stays until the next start."""
        self._ending.set()

    def put(self, name: str, array: Array) -> None:
        """Keep an array; raises OSError where the disk does not take it."""
        aside = self._folder / f"{name}.part"
        self._reserve(name, array.nbytes)
        try:
            with aside.open("wb") as file:
                file.write(array.reshape(-1).view(np.uint8).data)
            with self._lock:
                aside.rename(self._path(name))
                self._kept[name] = self._writing.pop(name), self._clock()
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        finally:
            with self._lock:
                self._writing.pop(name, None)
                self._lock.notify_all()

    def open(self, name: str) -> BinaryIO | None:
        """The file of an array's bytes, which stays readable once it is open; None if it is not kept any more."""
        self.sweep()
        try:
            return self._path(name).open("rb")
        except FileNotFoundError:
            return None

    def sweep(self) -> None:
        """Remove what is too old."""
        now = self._clock()
        with self._lock:
            for name in [name for name, (_, since) in self._kept.items() if now - since >= self.ttl]:
                self._remove(name)

    def _reserve(self, name: str, nbytes: int) -> None:
        """Make room for what is to be written; more than all room if the store is empty."""
        self.sweep()
        with self._lock:
            while (self._kept or self._writing) and self._taken() + nbytes > self.most:
                if self._kept:
                    self._remove(next(iter(self._kept)))
                else:
                    self._lock.wait()
            self._writing[name] = nbytes

    def _taken(self) -> int:
        return sum(size for size, _ in self._kept.values()) + sum(self._writing.values())

    def _remove(self, name: str) -> None:
        del self._kept[name]
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name
