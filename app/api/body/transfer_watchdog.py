"""Closes transfers that are too slow: idle timeout, total timeout, minimum rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, cast

from starlette.requests import Request

from app.server import TransferLimits

_GLANCE: Final = 1.0  # seconds between looks at what has moved
_GRACE: Final = 10.0  # seconds before the rate counts: a connection starts slowly


def pace_of(request: Request) -> TransferLimits:
    """The application's pace."""
    return cast("TransferLimits", request.app.state.pace)


class TooSlow(Exception):
    """A client that sends or reads too slowly; its text says in which way."""


class TransferWatchdog:
    """The time that one transfer has taken of a client's, which runs only while the client is waited for."""

    def __init__(self, pace: TransferLimits, moved: Callable[[], int]) -> None:
        self._pace, self._moved = pace, moved
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
        glance = min(_GLANCE, self._pace.stalled / 4)
        self._timer = asyncio.get_running_loop().call_later(glance, self._look, limit)

    def _look(self, limit: asyncio.Timeout) -> None:
        if self._late():
            limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_later(limit)

    def _late(self) -> str:
        pace, took, moved = self._pace, self._spent + monotonic() - self._entered, self._moved()
        if moved != self._seen:
            self._seen, self._since = moved, took
        if took - self._since >= pace.stalled:
            return f"no byte moved for {pace.stalled:g} s"
        if took >= pace.whole:
            return f"{moved} bytes moved in {pace.whole:g} s, and that was not all"
        if moved < pace.least * (took - _GRACE):
            return f"fewer than {pace.least} bytes moved a second"
        return ""
