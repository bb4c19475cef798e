"""StreamedRead: a matrix that is read by blocks, in threads of its own, as it arrives."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from app.errors import Cancelled

_THREADS: Final = 16  # at most: each takes the interpreter's lock ten times a block
_NICE: Final = 5  # products without a certificate go first
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


def _lower_priority() -> None:
    with suppress(OSError):  # a sandbox may refuse it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def threads() -> int:
    """How many threads read at once, at most."""
    return min(_THREADS, len(os.sched_getaffinity(0)))


# Starts no thread before the first certificate. Blocks of all products take turns.
_threads: Final = ThreadPoolExecutor(threads(), "certificate", _lower_priority)


def in_thread(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]:
    """Call a function, which waits for no block, in one of these threads in its turn."""
    return _threads.submit(function, *arguments, **named)


class StreamedRead(ABC, Generic[T]):
    """Reads `nbytes` of memory, `size` units in blocks; `panels` are the byte that each ends before, and its blocks.

    Blocks are taken as `advance` says that the first bytes are there, once those of `after` have all been. What is
    found is whole once `wait` returns.
    """

    def __init__(
        self, nbytes: int, size: int, panels: Iterator[tuple[int, list[T]]], after: StreamedRead[Any] | None = None
    ) -> None:
        self.nbytes, self._left_over = nbytes, size
        self._panels = panels
        self._panel = next(self._panels, None)
        self._there, self._is_open, self._is_stopped = 0, after is None, False
        self._running = 0
        self._failed: BaseException | None = None
        self._turn, self._told = threading.Lock(), threading.Condition()
        self._followers: list[Callable[[], None]] = []
        if after is not None:
            after.then(self._open)

    @abstractmethod
    def _add(self, block: T) -> int:
        """Read a block; gives its units. In any thread, several at once."""

    def _expect(self, blocks: list[T]) -> None:
        """Look at a panel's blocks before any of them is taken; no two threads at once."""

    def advance(self, nbytes: int) -> None:
        """Take note that the first `nbytes` are there; blocks nobody."""
        if nbytes > self._there:
            self._there = nbytes
            self._spread_soon()

    def then(self, follow: Callable[[], None]) -> None:
        """Call `follow`, which blocks nobody, once everything is read."""
        with self._told:
            if self._left_over:
                self._followers.append(follow)
                return
        follow()

    def wait(self) -> None:
        """Wait until everything is read, all of which is there; raises Cancelled once it is stopped."""
        self.advance(self.nbytes)
        with self._told:
            self._told.wait_for(lambda: not self._left_over or self._is_stopped)
            if self._failed is not None:
                raise self._failed
            if self._left_over:
                raise Cancelled("the product was cancelled")

    def stop(self) -> None:
        """Read nothing more: no thread reads the memory once this returns."""
        with self._told:
            self._is_stopped = True
            self._told.notify_all()
            self._told.wait_for(lambda: not self._running)

    @contextmanager
    def _reading(self) -> Iterator[bool]:
        """Whether the memory may be read in the block, which `stop` waits for."""
        with self._told:
            may = not self._is_stopped
            self._running += may
        try:
            yield may
        finally:
            with self._told:
                self._running -= may
                self._told.notify_all()

    def _open(self) -> None:
        self._is_open = True
        self._spread_soon()

    def _spread_soon(self) -> None:
        if self._is_open and not self._is_stopped:
            _threads.submit(self._spread)

    def _spread(self) -> None:
        """Give the blocks of all panels that are there to threads."""
        with self._reading() as may, self._turn:
            while may and self._panel is not None and self._panel[0] <= self._there:
                self._expect(self._panel[1])
                for block in self._panel[1]:
                    _threads.submit(self._take, block)
                self._panel = next(self._panels, None)

    def _take(self, block: T) -> None:
        size, error = 0, None
        with self._reading() as may:
            try:
                size = self._add(block) if may else 0
            except BaseException as failure:  # noqa: BLE001 - it is raised where the result is waited for
                error = failure
        with self._told:
            self._left_over -= size
            if error is not None:
                self._failed, self._is_stopped = error, True
            is_over = bool(size) and not self._left_over
            self._told.notify_all()
        if is_over:
            for follow in self._followers:
                follow()
