"""Where a body lands: in slab bytes, straight in the operands' places where they are known, else in a staging area."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.api.service import FEW, Threads
from app.errors import InvalidMatrix

STALLED: Final = 60.0  # seconds without a byte after which a client is given up

Lend = Callable[[int], AbstractContextManager[memoryview]]


def declared_length(request: Request) -> int | None:
    """The body's length as declared, None where it comes in chunks."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


async def pieces(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes; a client that stops sending is answered 408, so that it holds nothing for long."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(STALLED):
                piece = await anext(stream, b"")
        except TimeoutError as error:
            raise HTTPException(408, f"no byte came for {STALLED:g} s", {"Connection": "close"}) from error
        if not piece:
            return
        yield piece


class Pour:
    """Fills places in turn, and counts."""

    def __init__(self, *places: memoryview) -> None:
        self._places = deque(places)
        self.expected = sum(map(len, places))
        self.size = 0

    def write(self, data: bytes) -> None:
        """Take a piece; raises InvalidMatrix once there is more than the places hold."""
        self.size += len(data)
        if self.size > self.expected:
            raise wrong_length(self.expected, self.size)
        rest = memoryview(data)
        while rest:
            place = self._places.popleft()
            count = min(len(place), len(rest))
            place[:count] = rest[:count]
            rest = rest[count:]
            if count < len(place):
                self._places.appendleft(place[count:])

    def finish(self) -> None:
        """Say that nothing follows; raises InvalidMatrix where places are left."""
        if self.size < self.expected:
            raise wrong_length(self.expected, self.size)


def wrong_length(expected: int, size: int) -> InvalidMatrix:
    """The error of a body that is not A's bytes and then B's."""
    more = " or more" if size > expected else ""
    return InvalidMatrix(f"A and B take {expected} bytes, the body has {size}{more}", expected=expected, size=size)


class Staging:
    """A body on its way, of whatever length: `data` is what has come."""

    def __init__(self, lend: Lend, threads: Threads) -> None:
        self._lend, self._threads = lend, threads
        self._held = AsyncExitStack()
        self._memory = memoryview(bytearray(FEW))
        self._size = 0

    @property
    def data(self) -> memoryview:
        """What has come."""
        return self._memory[: self._size]

    @property
    def lent_bytes(self) -> int:
        """Bytes of the slab that are lent for it."""
        return len(self._memory) if len(self._memory) > FEW else 0

    async def reserve(self, nbytes: int) -> None:
        """Have room for so many bytes, in the slab where they are more than a few; raises TooLarge, NoRoom."""
        if nbytes <= len(self._memory):
            return
        async with AsyncExitStack() as held:
            memory = await held.enter_async_context(self._threads.entered(self._lend(nbytes)))
            memory[: self._size] = self.data
            old, self._held, self._memory = self._held, held.pop_all(), memory
        await old.aclose()

    async def write(self, data: bytes) -> None:
        """Take a piece; raises TooLarge, NoRoom."""
        end = self._size + len(data)
        if end > len(self._memory):
            await self.reserve(max(end, 4 * len(self._memory)))
        self._memory[self._size : end] = data
        self._size = end

    async def aclose(self) -> None:
        """Give the bytes back."""
        self._memory = memoryview(b"")
        await self._held.aclose()


@asynccontextmanager
async def staging(request: Request, lend: Lend, threads: Threads) -> AsyncIterator[Staging]:
    """A staging area with room for the declared length."""
    area = Staging(lend, threads)
    try:
        await area.reserve(declared_length(request) or 0)
        yield area
    finally:
        await area.aclose()
