"""FlowControl: a connection's reading, paused and resumed, and its writing, which may wait; TransferLimits of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


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
