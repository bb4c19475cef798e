"""Flow control: how many large bodies are received at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

from starlette.requests import Request

_MOST: Final = 4
_LARGE: Final = 2**18  # bytes: what is less is there in one turn
_LONG: Final = 0.5  # seconds after which a body is no longer counted: who sends slowly fills no turn


class UploadSlots:
    """Lets large bodies in by turns, first come first served. For one event loop."""

    def __init__(self) -> None:
        self._free = _MOST
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, nbytes: int) -> AsyncIterator[None]:
        """Land so many bytes inside the block; one that takes long goes on, and another may begin beside it."""
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


def upload_slots_of(request: Request) -> UploadSlots:
    """The application's upload slots."""
    return cast("UploadSlots", request.app.state.upload_slots)
