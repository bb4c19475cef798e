"""WriteWatchdog: closes connections whose clients read too slowly what they are sent, whatever the answer is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from app.server.flow_control import TransferLimits

_LOOK: Final = 1.0  # seconds between looks at what has left
_GRACE: Final = 10.0  # seconds before the rate counts: a connection starts slowly


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
