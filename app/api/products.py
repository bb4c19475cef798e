"""Runs a product whose operands have arrived, on the event loop or in a thread; cancels if the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, TypeVar

from anyio import CancelScope
from starlette.requests import Request

from app.api.formats.operand_spec import ProductOptions
from app.api.state import service_of, state_of, threads_of
from app.devices.process import PendingCall
from app.errors import UnknownKernel
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.device_queue import CancelToken
from app.services.principal import Principal
from app.services.service import Service
from kernels import CATALOGUE

_SOON: Final = 0.02  # seconds after which an answer is waited for: most are there before, and cost no watching


def expect_servable(service: Service, options: ProductOptions, principal: Principal) -> None:
    """Refuse by its options, before its body is read, a product that would be refused later.

    Raises UnknownDevice, UnknownKernel, NoDevice, QueueFull, OverShare, DeviceTimeUsed.
    """
    service.matmul.expect_place(principal)
    service.fleet.unit(options.device)
    if options.kernel not in {None, "vendor", *CATALOGUE}:
        raise UnknownKernel(f"there is no kernel {options.kernel}; there are {', '.join(CATALOGUE)} and vendor")


async def product_of(
    request: Request, buffers: OperandBuffers, device: str | None, kernel: str | None, verify: str | None = None
) -> Product:
    """Make a product, unless its client disconnects before it begins; raises as MatmulService.multiply."""
    matmul, threads = service_of(request).matmul, threads_of(request)
    if kernel is None and verify is None and matmul.is_small(buffers):
        made = await _on_the_loop(request, buffers, device)
        if made is not None:
            return made
    token = CancelToken()
    return await cancel_on_disconnect(
        request, threads.work(matmul.multiply, buffers, device, kernel, token, verify), token.cancel
    )


async def _on_the_loop(request: Request, buffers: OperandBuffers, device: str | None) -> Product | None:
    """A small product made from the event loop, without a thread; None if it would have to wait."""
    matmul, queue, started = service_of(request).matmul, state_of(request.app).small_products, perf_counter()
    pending, is_over, made = None, False, None
    if queue.is_full:
        return None
    try:
        async with queue.turn():
            pending = matmul.begin(buffers, device, started)
            is_over = pending is not None and await replies_soon(pending) and pending.is_over()
            if pending is not None and is_over:
                made = pending.finish()
    finally:
        if pending is not None and not is_over:  # whatever happened to the request, its call is ended
            with CancelScope(shield=True):
                made = await threads_of(request).end(pending.finish)
    return made


async def replies_soon(pending: PendingCall[Product | None]) -> bool:
    """Whether a worker replies within milliseconds."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[bool] = loop.create_future()

    def say(readable: bool) -> None:
        if not said.done():
            said.set_result(readable)

    later = loop.call_later(_SOON, say, False)
    loop.add_reader(pending.fileno(), say, True)
    try:
        return await said
    finally:
        loop.remove_reader(pending.fileno())
        later.cancel()


T = TypeVar("T")


async def cancel_on_disconnect(request: Request, work: Awaitable[T], cancel: Callable[[], None]) -> T:
    """Wait for the work of a request whose body has arrived; call `cancel` if its client disconnects meanwhile."""
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
