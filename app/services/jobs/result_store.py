"""Result arrays on disk, with a time to live and a quota; the oldest are deleted first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final

import numpy as np

from app.dtypes import Array
from app.store.folders import sync_folder

_LOOK: Final = 30.0  # seconds between looks for what is too old
_BLOCK: Final = 4096  # bytes of the disk that a file takes at least
FILES: Final = 2**16


class ResultStore:
    """Keeps arrays in `folder` for `ttl` seconds, no more than `files`, in `most` bytes; safe from any thread.

    Bytes are those of the disk's blocks. Files that are being written count: if only they are in the way, the next
    waits for them.
    """

    def __init__(
        self, folder: Path, ttl: float, most: int, clock: Callable[[], float] = monotonic, files: int = FILES
    ) -> None:
        self.ttl, self.most, self.files = ttl, most, files
        self._folder, self._clock = folder, clock
        self._kept: dict[str, tuple[int, float]] = {}  # bytes and the moment, by name, oldest first
        self._writing: dict[str, int] = {}  # bytes by name of what is being written
        self._nbytes = 0
        self._unchecked: set[str] = set()  # names of what an earlier process left
        self._lock = threading.Condition()
        self._ending = threading.Event()

    @property
    def nbytes(self) -> int:
        """Bytes of blocks that are kept now, or are being written."""
        with self._lock:
            return self._nbytes

    def holds(self, name: str) -> bool:
        """Whether an array is kept, or is being written."""
        with self._lock:
            return name in self._kept or name in self._writing

    def start(self, ages: Callable[[Sequence[str]], Mapping[str, float]] = lambda _: {}) -> None:
        """Take up what an earlier process kept, and start the thread that removes what is too old.

        `ages` gives the seconds since each of some names was kept; files that it does not name are removed. What is no
        file, such as the lost+found of a volume, stays.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {path.name: path.stat().st_size for path in self._folder.iterdir() if path.is_file()}
        known, now = ages(tuple(found)), self._clock()
        for name in found.keys() - known.keys():
            self._path(name).unlink()
        for name in sorted(known.keys() & found.keys(), key=lambda each: -known[each]):
            self._kept[name] = _blocks(found[name]), now - known[name]
            self._nbytes += _blocks(found[name])
            self._unchecked.add(name)
        look = max(0.1, min(self.ttl, _LOOK))

        def sweep() -> None:
            while not self._ending.wait(look):
                self.sweep()

        threading.Thread(target=sweep, name="results", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread; what is kept stays until the next start."""
        self._ending.set()

    def put(self, name: str, array: Array) -> str:
        """Keep an array, on disk when it returns its SHA-256; raises OSError where the disk does not take it."""
        aside, data = self._folder / f"{name}.part", array.reshape(-1).view(np.uint8).data
        self._reserve(name, _blocks(array.nbytes))
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with self._lock:
                aside.rename(self._path(name))
                self._kept[name] = self._writing.pop(name), self._clock()
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        else:
            sync_folder(self._folder)
            return sha256(data).hexdigest()
        finally:
            with self._lock:
                self._nbytes -= self._writing.pop(name, 0)
                self._lock.notify_all()

    def open(self, name: str, digest: str) -> BinaryIO | None:
        """The file of an array's bytes, which stays readable once it is open; None if it is not kept any more.

        What an earlier process kept is compared with its SHA-256 first, and removed if it is damaged.
        """
        self.sweep()
        try:
            file = self._path(name).open("rb")
        except FileNotFoundError:
            return None
        if name in self._unchecked:
            if file_digest(file, "sha256").hexdigest() != digest:
                file.close()
                with self._lock:
                    self._remove(name)
                return None
            self._unchecked.discard(name)
            file.seek(0)
        return file

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
            while (count := len(self._kept) + len(self._writing)) and (
                count >= self.files or self._nbytes + nbytes > self.most
            ):
                if self._kept:
                    self._remove(next(iter(self._kept)))
                else:
                    self._lock.wait()
            self._writing[name] = nbytes
            self._nbytes += nbytes

    def _remove(self, name: str) -> None:
        self._nbytes -= self._kept.pop(name, (0, 0.0))[0]
        self._unchecked.discard(name)
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name


def _blocks(nbytes: int) -> int:
    """What a file of so many bytes takes of the disk; an empty one has a name and an inode."""
    return max(1, -(-nbytes // _BLOCK)) * _BLOCK
