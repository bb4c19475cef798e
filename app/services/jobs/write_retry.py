"""Retries writes that the database did not take, such as those of a full disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_AGAIN: Final = 1.0  # seconds between two tries
Write = Callable[[], None]


class WriteRetry:
    """Tries each write in turn, in a thread that is there from `start` on; `fallback` replaces one that cannot succeed.

    A write raises one of `passing` for a fault that passes. What is unwritten at the end stays so.
    """

    def __init__(self, passing: tuple[type[Exception], ...], fallback: Callable[[str, Exception], Write]) -> None:
        self._passing, self._fallback = passing, fallback
        self._waiting: dict[str, Write] = {}
        self._changed, self._ending = threading.Condition(), False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of the writes that wait."""
        return tuple(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="late writes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Try what waits once more, and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def write(self, name: str, write: Write) -> None:
        """Write at once, or as soon as that is possible; one write waits for each name, the first."""
        if self._try(name, write):
            return
        with self._changed:
            self._waiting.setdefault(name, write)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self._waiting)
                self._changed.wait_for(lambda: self._ending, _AGAIN)
                waiting, ending = dict(self._waiting), self._ending
            for name, write in waiting.items():
                if self._try(name, write):
                    with self._changed:
                        self._waiting.pop(name, None)
            if ending:
                return

    def _try(self, name: str, write: Write) -> bool:
        try:
            write()
        except self._passing as error:
            _LOG.warning("%s cannot be written yet: %s", name, error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, its stand-in is written
            _LOG.exception("%s cannot be written as it is", name)
            return self._given_up(name, self._fallback(name, error))
        return True

    def _given_up(self, name: str, write: Write) -> bool:
        """Write the fallback of a write that cannot succeed; retry it in its place if need be."""
        try:
            write()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            _LOG.warning("%s cannot be written yet: %s", name, error)
            with self._changed:
                self._waiting[name] = write
            return False
        return True
