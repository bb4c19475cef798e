"""Flow control: how many large bodies are received at once, and how slow a transfer may be before it is closed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

from app.server import TransferLimits

_MOST: Final = 4
_LARGE: Final = 2**18  # bytes: what is less is there in one turn
_LONG: Final = 0.5  # seconds after which a body gives its slot up: a slow one does not fill the event loop
_GLANCE: Final = 1.0  # seconds between looks at what has moved
_GRACE: Final = 10.0  # seconds before the rate counts: a connection starts slowly


class UploadSlots:
    """Limits how many large bodies are received at once, first come first served. For one event loop."""

    def __init__(self) -> None:
        self._free = _MOST
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, nbytes: int) -> AsyncIterator[None]:
        """Hold a slot while `nbytes` are received; a slow transfer gives its slot up and goes on."""
        if nbytes < _LARGE:
            yield
            return
        await self._take()
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._give()

        later = asyncio.get_running_loop().call_later(_LONG, leave)
        try:
            yield
        finally:
            later.cancel()
            leave()

    async def _take(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()
            raise

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class TooSlow(Exception):
    """A client that sends or reads too slowly; its text says in which way."""


class TransferWatchdog:
    """The time that one transfer has taken of a client's, which runs only while the client is waited for."""

    def __init__(self, limits: TransferLimits, moved: Callable[[], int]) -> None:
        self._limits, self._moved = limits, moved
        self._spent = self._entered = 0.0
        self._since, self._seen = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait for the client inside the block; raises TooSlow."""
        self._entered = monotonic()
        try:
            async with asyncio.timeout(None) as limit:
                self._look_later(limit)
                yield
        except TimeoutError as error:
            raise TooSlow(self._late()) from error
        finally:
            if self._timer is not None:
                self._timer.cancel()
            late = self._late()
            self._spent += monotonic() - self._entered
        if late:
            raise TooSlow(late)

    def _look_later(self, limit: asyncio.Timeout) -> None:
        glance = min(_GLANCE, self._limits.idle_timeout / 4)
        self._timer = asyncio.get_running_loop().call_later(glance, self._look, limit)

    def _look(self, limit: asyncio.Timeout) -> None:
        if self._late():
            limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_later(limit)

    def _late(self) -> str:
        limits, took, moved = self._limits, self._spent + monotonic() - self._entered, self._moved()
        if moved != self._seen:
            self._seen, self._since = moved, took
        if took - self._since >= limits.idle_timeout:
            return f"no byte moved for {limits.idle_timeout:g} s"
        if took >= limits.transfer_timeout:
            return f"{moved} bytes moved in {limits.transfer_timeout:g} s, and that was not all"
        if moved < limits.min_rate * (took - _GRACE):
            return f"fewer than {limits.min_rate} bytes moved a second"
        return ""
