"""BulkSocket: large pieces moved between a connection's socket and memory by threads, without the event loop."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, TypeAlias

from app.server.thread_pool import ThreadPool

LARGE: Final = 2**20  # bytes that are worth waking a thread for: a third of a millisecond's work of the event loop
# Bytes waited for before they are received, as each call takes the interpreter's lock: what comes in so many seconds.
_LEAST_MARK: Final = 2**19
_MOST_MARK: Final = 2**21
_MARK_SECONDS: Final = 0.002
_TICK: Final = 1e-6  # a clock may not have gone on since
_PATIENCE: Final = 0.02  # seconds in which a client must have moved a little, or its thread is given back
_RATE: Final = 5e7  # bytes a second; slower clients stay with the event loop, which they take little of
_ACROSS: Final = (socket.AF_INET, socket.AF_INET6)
_Step: TypeAlias = Callable[[socket.socket, memoryview], int]


class Turn:
    """One piece, as a thread moves it: `moved` bytes so far. It ends early where the client is slow, or is gone."""

    def __init__(self, connection: socket.socket, view: memoryview, event: int, step: _Step) -> None:
        self.moved, self._nbytes = 0, len(view)
        self._connection, self._view, self._event, self._step = connection, view, event, step
        self._begun, self._stopped, self._lock = False, False, threading.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether all was moved."""
        return self.moved == self._nbytes

    def stop(self) -> bool:
        """Move nothing more; whether a thread is at it, whose end is to be waited for: a fiftieth of a second."""
        with self._lock:
            self._stopped = True
            return self._begun

    def run(self) -> None:
        """Move the piece; closes this turn's own descriptor."""
        with self._lock:
            self._begun = not self._stopped
        with self._connection as connection, suppress(OSError):  # whoever has the transport finds the same error
            self._move(connection)
        self._view = memoryview(b"")

    def _move(self, connection: socket.socket) -> None:
        poll, began = select.poll(), monotonic()
        poll.register(connection, self._event)
        marks = self._event == select.POLLIN and connection.family in _ACROSS
        mark, took = 1, inf
        try:
            while not (self._stopped or self.is_whole):
                if marks and mark != (mark := self._mark(took)):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
                if not poll.poll(1e3 * _PATIENCE) or not self._moved(connection):
                    return
                took = monotonic() - began
                if self._is_slow(took):
                    return
        finally:
            if marks:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _mark(self, took: float) -> int:
        """Bytes to wait for, of what is left: as many as come soon at the client's rate so far."""
        soon = int(_MARK_SECONDS * self.moved / max(took, _TICK)) // _LEAST_MARK * _LEAST_MARK
        return min(self._nbytes - self.moved, max(_LEAST_MARK, min(_MOST_MARK, soon)))

    def _moved(self, connection: socket.socket) -> bool:
        count = self._step(connection, self._view[self.moved :])
        self.moved += count
        return bool(count)

    def _is_slow(self, took: float) -> bool:
        return took > _PATIENCE and self.moved < _RATE * took


class TransferRate:
    """Whether a client is fast enough for a thread: as if it were at first, then as it was last."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.is_fast = True
        self._clock = clock
        self._began, self._moved = 0.0, 0

    def slowed(self) -> None:
        """A thread has given it back: it is looked at from now on."""
        self.is_fast, self._began, self._moved = False, self._clock(), 0

    def note(self, nbytes: int) -> None:
        """The event loop has moved so many bytes of it."""
        self._moved += nbytes
        if self._moved >= LARGE:
            now = self._clock()
            took, self._began = now - self._began, now
            self.is_fast, self._moved = self._moved >= _RATE * took, 0


class BulkSocket:
    """Both directions of one connection. A turn has a descriptor of its own, so that the connection may be lost.

    `reads` says that a thread reads, so that nobody else may; `unsent` counts what a thread has not sent.
    """

    def __init__(self, threads: ThreadPool | None, connection: socket.socket | None) -> None:
        self.reading, self.writing = TransferRate(), TransferRate()
        self._threads, self._socket = threads, connection
        self._reader: Turn | None = None
        self._writer: Turn | None = None

    @property
    def reads(self) -> bool:
        """Whether a thread reads now."""
        return self._reader is not None

    @property
    def sent(self) -> int:
        """Bytes of the piece that a thread sends which have left."""
        return 0 if self._writer is None else self._writer.moved

    def takes(self, nbytes: int, rate: TransferRate) -> bool:
        """Whether a thread is to move so many bytes."""
        return self._threads is not None and nbytes >= LARGE and rate.is_fast

    async def receive(self, view: memoryview) -> int:
        """Bytes into `view`, while nobody else reads: all of them, or fewer where the event loop is to go on."""
        self._reader = turn = self._turn(view, select.POLLIN, socket.socket.recv_into)
        try:
            return await self._moved(turn, self.reading)
        finally:
            self._reader = None

    async def send(self, view: memoryview) -> int:
        """Bytes of `view`, while the transport holds none: all of them, or fewer as for `receive`."""
        self._writer = turn = self._turn(view, select.POLLOUT, socket.socket.send)
        try:
            return await self._moved(turn, self.writing)
        finally:
            self._writer = None

    def stop(self) -> None:
        """Move nothing more: the connection is lost."""
        for turn in (self._reader, self._writer):
            if turn is not None:
                turn.stop()

    def _turn(self, view: memoryview, event: int, step: _Step) -> Turn:
        connection = self._socket
        if connection is None:
            raise RuntimeError("the connection has no socket")
        own = socket.fromfd(connection.fileno(), connection.family, connection.type)
        return Turn(own, view, event, step)

    async def _moved(self, turn: Turn, rate: TransferRate) -> int:
        """Bytes that a turn has moved. Whoever is cancelled waits until the thread has let go of the memory."""
        if self._threads is None:
            raise RuntimeError("there are no threads")
        future = self._threads.submit(turn.run)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            while turn.stop() and not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            raise
        if not turn.is_whole:
            rate.slowed()
        return turn.moved
