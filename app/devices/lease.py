"""Device lease: one holder at a time, by priority, first come first served within one."""

from __future__ import annotations

import mmap
import os
import threading
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

_PAGE: Final = 4096


class Priority(IntEnum):
    """Who goes first: the smaller number."""

    PRODUCT = 0
    CHECK = 1
    MEASUREMENT = 2


class LeaseTicket:
    """A place in the queue; `granted` is set when its turn has come."""

    __slots__ = ("granted", "priority")

    def __init__(self, priority: Priority, granted: threading.Event) -> None:
        self.priority, self.granted = priority, granted


class PriorityLock:
    """Mutual exclusion by priority, in order of arrival within one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[LeaseTicket] = []
        self._holder: LeaseTicket | None = None
        self._granted = threading.Event()  # of all who need not wait: making one takes longer than the rest
        self._granted.set()

    @property
    def waiting(self) -> int:
        """How many wait for their turn; the holder is not counted."""
        return len(self._queue)

    @property
    def is_held(self) -> bool:
        """Whether somebody has the turn."""
        return self._holder is not None

    def queue(self, priority: Priority) -> LeaseTicket:
        """Enqueue a ticket and return at once. Every ticket must leave, also without having been served."""
        ticket = LeaseTicket(priority, threading.Event())
        with self._lock:
            insort(self._queue, ticket, key=lambda one: one.priority)
            self._advance()
        return ticket

    def try_acquire(self, priority: Priority) -> LeaseTicket | None:
        """Acquire the lock if it is free and without waiters; else None."""
        with self._lock:
            if self._holder is not None or self._queue:
                return None
            self._holder = ticket = LeaseTicket(priority, self._granted)
            self._changed()
            return ticket

    def leave(self, ticket: LeaseTicket) -> None:
        """Give the turn back, or the place in the queue; leaving twice does nothing."""
        with self._lock:
            if ticket is self._holder:
                self._holder = None
            elif ticket in self._queue:
                self._queue.remove(ticket)
            self._advance()

    def acquire(self, priority: Priority, timeout: float | None = None) -> None:
        """Acquire the lock; raises TimeoutError after `timeout` seconds."""
        ticket = self.queue(priority)
        try:
            served = ticket.granted.wait(timeout)
        except BaseException:
            self.leave(ticket)
            raise
        if not served:
            self.leave(ticket)
            raise TimeoutError(f"no turn within {timeout} s")

    def release(self) -> None:
        """Release the lock; raises RuntimeError if it is not held."""
        holder = self._holder
        if holder is None:
            raise RuntimeError("nobody holds the turn that is given back")
        self.leave(holder)

    @contextmanager
    def held(self, priority: Priority) -> Iterator[None]:
        """Have the turn inside the block."""
        self.acquire(priority)
        try:
            yield
        finally:
            self.release()

    def _advance(self) -> None:
        """Serve the first ticket if none is served; called under the lock."""
        if self._holder is None and self._queue:
            self._holder = self._queue.pop(0)
            self._holder.granted.set()
        self._changed()

    def _changed(self) -> None:
        """Publish the state of the queue; called under the lock."""


class Lease(PriorityLock):
    """The right to use one device, for one launch at a time.

    `flag_fd` is a page of shared memory whose first byte is not 0 while a ticket of higher priority than the holder's
    waits: a holder in another process sees it without a system call, and yields the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flag_fd = os.memfd_create("tilewise-lease")
        os.ftruncate(self.flag_fd, _PAGE)
        self._flag = mmap.mmap(self.flag_fd, _PAGE)

    def close(self) -> None:
        """Give the shared page back."""
        self._flag.close()
        os.close(self.flag_fd)

    def _changed(self) -> None:
        holder, queue = self._holder, self._queue
        if not self._flag.closed:
            self._flag[0] = int(holder is not None and bool(queue) and queue[0].priority < holder.priority)
