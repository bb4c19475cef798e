"""Typed access to the application's state, and threads for blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Final, ParamSpec, TypeVar, cast

from anyio import CancelScope
from starlette.requests import Request

from app.server.thread_pool import ThreadPool
from app.services.service import Service

P = ParamSpec("P")
T = TypeVar("T")

FEW: Final = 2**16  # bytes that are parsed or copied in less than a millisecond
_SHORT: Final = 32  # calls that wait for a query, a copy or a parser at once: more than a few only wait for each other
_PRODUCTS: Final = 256  # that wait for a device at once: as many as the queue takes where nothing is set


def service_of(request: Request) -> Service:
    """The service that the application opened when it started."""
    return cast("Service", request.app.state.service)


class RequestThreads:
    """Where blocking calls go: nothing blocks the event loop, and no call waits for a thread that cannot be started.

    Products have threads of their own, one for each that the service's queue takes by default; others wait.
    """

    def __init__(self) -> None:
        self._short = ThreadPool(_SHORT, "short calls")
        self._products = ThreadPool(_PRODUCTS, "products")
        self._ends = ThreadPool(1, "begun products")

    def start(self) -> None:
        """Start every thread; those of a kind start with its first call otherwise."""
        for pool in (self._short, self._products, self._ends):
            pool.start()

    def stop(self) -> None:
        """End the threads."""
        for pool in (self._short, self._products, self._ends):
            pool.stop()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what takes milliseconds: a query, a copy, a parser."""
        return await self._short.run(partial(function, *args, **kwargs))

    async def sized(self, nbytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what is about so many bytes: few take less time here than a thread takes to be woken."""
        return function(*args, **kwargs) if nbytes <= FEW else await self.call(function, *args, **kwargs)

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what waits for a device."""
        return await self._products.run(partial(function, *args, **kwargs))

    async def end(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what others who wait for the device wait for: it must not wait behind them."""
        return await self._ends.run(partial(function, *args, **kwargs))

    @asynccontextmanager
    async def entered(self, manager: AbstractContextManager[T], nbytes: int = FEW + 1) -> AsyncIterator[T]:
        """Hold a context manager whose ends block where they are about more than a few bytes.

        It is left even where the request is cancelled.
        """
        value = await self.sized(nbytes, manager.__enter__)
        try:
            yield value
        finally:
            with CancelScope(shield=True):
                await self.sized(nbytes, manager.__exit__, None, None, None)


def threads_of(request: Request) -> RequestThreads:
    """The application's threads."""
    return cast("RequestThreads", request.app.state.threads)


def tasks_of(request: Request) -> set[asyncio.Task[None]]:
    """The application's tasks that outlive their requests."""
    return cast("set[asyncio.Task[None]]", request.app.state.tasks)
