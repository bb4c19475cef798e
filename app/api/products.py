"""Runs a product whose operands have arrived, on the event loop or in a thread; cancels if the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final, TypeVar, cast

from anyio import CancelScope
from starlette.requests import Request

from app.api.state import service_of, threads_of
from app.devices.process import PendingCall
from app.services.best.answer import Product
from app.services.matmul.batching import CancelToken
from app.services.matmul.buffers import OperandBuffers

# Of small products some wait here for one that the loop makes, which takes less time than to wake a thread for each; of
# more, several are made by one launch while they wait in the device's queue.
_LINE: Final = 8
_SOON: Final = 0.02  # seconds after which an answer is waited for: most are there before, and cost no watching


class SmallProductQueue:
    """Who waits to be made on the event loop: one product is, at a time."""

    def __init__(self) -> None:
        self._turn, self._waiting = asyncio.Lock(), 0

    @property
    def is_full(self) -> bool:
        """Whether those who wait are enough."""
        return self._waiting >= _LINE

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the turn inside the block."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()


async def product_of(request: Request, placement: OperandBuffers, device: str | None, kernel: str | None) -> Product:
    """The product; one whose client goes away before it begins is not made. Raises as Matmul.multiply does."""
    matmul, threads = service_of(request).matmul, threads_of(request)
    if kernel is None and matmul.is_small(placement):
        made = await _promptly(request, placement, device)
        if made is not None:
            return made
    claim = CancelToken()
    return await unless_gone(request, threads.work(matmul.multiply, placement, device, kernel, claim), claim.cancel)


async def _promptly(request: Request, placement: OperandBuffers, device: str | None) -> Product | None:
    """A product that is made while the event loop waits for its child; None where a thread had to wait for more."""
    matmul, line, started = (
        service_of(request).matmul,
        cast("SmallProductQueue", request.app.state.small_products),
        perf_counter(),
    )
    begun, is_over, made = None, False, None
    if line.is_full:
        return None
    try:
        async with line.turn():
            begun = matmul.begin(placement, device, started)
            is_over = begun is not None and await _heard(begun) and begun.is_over()
            if begun is not None and is_over:
                made = begun.finish()
    finally:
        if begun is not None and not is_over:  # whatever happened to the request, its child is heard to the end
            with CancelScope(shield=True):
                made = await threads_of(request).end(begun.finish)
    return made


async def _heard(begun: PendingCall[Product | None]) -> bool:
    """Whether a child says something soon."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[bool] = loop.create_future()

    def say(readable: bool) -> None:
        if not said.done():
            said.set_result(readable)

    later = loop.call_later(_SOON, say, False)
    loop.add_reader(begun.fileno(), say, True)
    try:
        return await said
    finally:
        loop.remove_reader(begun.fileno())
        later.cancel()


T = TypeVar("T")


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
