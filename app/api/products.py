"""Runs a product whose operands have arrived, on the event loop or in a thread; cancels if the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, TypeVar

from anyio import CancelScope
from starlette.requests import Request

from app.api.state import service_of, state_of, threads_of
from app.devices.process import PendingCall
from app.services.best.answer import Product
from app.services.matmul.batching import CancelToken
from app.services.matmul.buffers import OperandBuffers

_SOON: Final = 0.02  # seconds after which an answer is waited for: most are there before, and cost no watching


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
    matmul, queue, started = service_of(request).matmul, state_of(request.app).small_products, perf_counter()
    begun, is_over, made = None, False, None
    if queue.is_full:
        return None
    try:
        async with queue.turn():
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
