"""Clients that go away while they wait: what they asked for and nobody began is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.requests import Request

T = TypeVar("T")

_SOON: Final = 0.02  # seconds after which an answer is waited for: most are there before, and cost no watching


async def unless_gone(request: Request, work: Awaitable[T], cancel: Callable[[], None]) -> T:
    """Wait for work on a request whose body has arrived; `cancel` is called where its client goes away meanwhile."""
    loop, watching = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def watch() -> None:
        watching.add(loop.create_task(_watch(request, cancel)))

    later = loop.call_later(_SOON, watch)
    try:
        return await work
    finally:
        later.cancel()
        for task in watching:
            task.cancel()


async def _watch(request: Request, cancel: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancel()
