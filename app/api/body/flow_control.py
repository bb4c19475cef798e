"""Flow control: how many large bodies are received at once, and how slow a transfer may be before it is closed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, TypeVar

from app.errors import NoRoom
from app.server import TransferLimits

AT_ONCE: Final = 4
LARGE: Final = 2**18  # bytes: what is less is there in one turn
_LONG: Final = 0.5  # seconds after which a body gives its slot up: a slow one does not fill the event loop
_GLANCE: Final = 1.0  # seconds between looks at what has moved
_GRACE: Final = 10.0  # seconds before the rate counts: a connection starts slowly
_SHORT_GRACE: Final = 2.0  # the same where others find no room
_LEAVING: Final = 2.0  # seconds that others wait for the memory of a transfer that was ended
_AGAIN: Final = 0.01  # seconds between their attempts

T = TypeVar("T")


class UploadSlots:
    """Limits how many large bodies are received at once, first come first served. For one event loop.

    `most`: as many as the event loop can receive while it answers others, or as there are threads that receive.
    """

    def __init__(self, most: int = AT_ONCE) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, nbytes: int) -> AsyncIterator[None]:
        """Hold a slot while `nbytes` are received; a slow transfer gives its slot up and goes on."""
        if nbytes < LARGE:
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


class SlowTransfers:
    """Transfers that wait for their clients: where memory is short, the slow ones among them give theirs back."""

    def __init__(self) -> None:
        self.waiting: set[TransferWatchdog] = set()

    def end(self) -> bool:
        """Have those end that are slow for the memory that they hold; whether there is any."""
        slow = [each for each in self.waiting if each.is_slow()]
        for each in slow:
            each.end("its memory was needed by others")
        return bool(slow)

    async def make_room(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What an attempt gives; one that finds no room is made again while slow transfers end, else raises NoRoom."""
        until = 0.0
        while True:
            try:
                return await attempt()
            except NoRoom:
                if self.end():
                    until = until or monotonic() + _LEAVING
                if monotonic() >= until:
                    raise
            await asyncio.sleep(_AGAIN)


class TransferWatchdog:
    """The time that one transfer has taken of a client's, which runs only while the client is waited for.

    `held` are bytes of the slab that are kept for it until it ends.
    """

    def __init__(self, limits: TransferLimits, moved: Callable[[], int], slow: SlowTransfers) -> None:
        self.held = 0
        self._limits, self._moved, self._slow = limits, moved, slow
        self._spent = self._entered = 0.0
        self._since, self._seen = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.Timeout | None = None
        self._told = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait for the client inside the block; raises TooSlow."""
        self._entered = monotonic()
        try:
            async with asyncio.timeout(None) as self._limit:
                self._look_later()
                self._slow.waiting.add(self)
                yield
        except TimeoutError as error:
            raise TooSlow(self._late()) from error
        finally:
            self._slow.waiting.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            late = self._late()
            self._spent += monotonic() - self._entered
        if late:
            raise TooSlow(late)

    def is_slow(self) -> bool:
        """Whether the client has moved too little for the time in which memory was kept for it."""
        took = self._spent + monotonic() - self._entered
        return took >= _SHORT_GRACE and self._moved() * self._limits.slab_timeout < self.held * took

    def end(self, why: str) -> None:
        """End the transfer that is being waited for."""
        self._told = f"{why}: fewer than {self.held / self._limits.slab_timeout:.0f} bytes moved a second"
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _look_later(self) -> None:
        glance = min(_GLANCE, self._limits.idle_timeout / 4)
        self._timer = asyncio.get_running_loop().call_later(glance, self._look)

    def _look(self) -> None:
        if self._late() and self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_later()

    def _late(self) -> str:
        if self._told:
            return self._told
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
