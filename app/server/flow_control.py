"""Flow control of a connection's writes, and the watchdog of clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

_LOOK: Final = 1.0  # seconds between looks at what has left
_GRACE: Final = 10.0  # seconds before the rate counts: a connection starts slowly


@dataclass(frozen=True)
class TransferLimits:
    """Seconds without a byte, seconds for a whole body, and bytes a second that a transfer must keep up.

    `slab_timeout`: seconds in which a transfer at its rate would move as many bytes as the slab holds for it, or it
    gives way to others who find no room there.
    """

    idle_timeout: float = 60.0
    transfer_timeout: float = 3600.0
    min_rate: int = 2**14
    slab_timeout: float = 60.0


class FlowControl:
    """Back-pressure of one transport in both directions. Pausing what is paused does nothing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reads, self._ended, self._is_lent = True, False, False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def write_paused(self) -> bool:
        """Whether the write buffer is over its high-water mark."""
        return not self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark, or the connection is lost."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        """For the transport: its write buffer is over the mark."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """For the transport: its write buffer is below the mark again."""
        self._writable.set()

    def pause_reading(self) -> None:
        """Leave what comes in the system's memory."""
        if self._reads and not self._ended:
            self._reads = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._reads and not self._ended and not self._is_lent:
            self._reads = True
            self._transport.resume_reading()

    def lend_reading(self) -> None:
        """Have a thread read: the transport does not, whoever asks it to, until `return_reading`."""
        self.pause_reading()
        self._is_lent = True

    def return_reading(self) -> None:
        """The transport may read again."""
        self._is_lent = False

    def end_reading(self) -> None:
        """For the transport: nothing comes any more, and it is not asked to read again."""
        self._ended = True


@dataclass(slots=True)
class WriteProgress:
    """What one connection was given to send; the time in which it holds none of it is not the client's."""

    written: int = 0
    waits: bool = False
    first: int = 0
    seen: int = 0
    began: float = 0.0
    since: float = 0.0

    def is_late(self, pending: int, now: float, limits: TransferLimits) -> bool:
        """Look at `pending` bytes that have not left; whether the client has had its time."""
        left = self.written - pending
        if not pending or not self.waits:
            self.waits, self.first, self.seen, self.began, self.since = bool(pending), left, left, now, now
            return False
        if left != self.seen:
            self.seen, self.since = left, now
        took = now - self.began
        if now - self.since >= limits.idle_timeout or took >= limits.transfer_timeout:
            return True
        return left - self.first < limits.min_rate * (took - _GRACE)


class Writing(Protocol):
    """A connection as the watchdog looks at it."""

    transport: asyncio.Transport
    progress: WriteProgress

    @property
    def pending(self) -> int:
        """Bytes that have not left."""
        ...


class WriteWatchdog:
    """Looks at all connections of a server in turn, for as long as there are any: a timer each would cost more."""

    def __init__(self, limits: TransferLimits) -> None:
        self._limits, self._timer = limits, False

    def start(self, loop: asyncio.AbstractEventLoop, connections: Collection[Writing]) -> None:
        """Look from now on."""
        if not self._timer:
            self._timer = True
            loop.call_later(min(_LOOK, self._limits.idle_timeout / 4), self._look, loop, connections)

    def _look(self, loop: asyncio.AbstractEventLoop, connections: Collection[Writing]) -> None:
        self._timer, now = False, monotonic()
        for each in tuple(connections):
            if each.progress.is_late(each.pending, now, self._limits):
                each.transport.abort()
        if connections:
            self.start(loop, connections)
