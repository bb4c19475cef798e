"""Threads for blocking calls, started in advance: no request fails because no thread can be started."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar, cast

from anyio import CancelScope

P = ParamSpec("P")
T = TypeVar("T")

FEW: Final = 2**16  # bytes that are parsed or copied in less than a millisecond
_SHORT: Final = 32  # calls that wait for a query, a copy or a parser at once: more than a few only wait for each other
_PRODUCTS: Final = 256  # that wait for a device at once: as many as the queue takes where nothing is set
_DEVICES: Final = 16  # of a host at most: each has one begun product, and none waits for another device's
_TRANSFERS: Final = 32  # bodies that move at once: more fill no link faster, and take turns
_LOG: Final = logging.getLogger(__name__)
_STACK: Final = 2**20  # bytes of address space a thread, where the system's default is 8 MiB


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    function: Callable[[], Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def run(self) -> None:
        result, error = None, None
        try:
            result = self.context.run(self.function)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it is the caller's
            error = raised
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._tell, result, error)

    def _tell(self, result: object, error: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class ThreadPool:
    """`size` threads; of those that are free the one that was last busy is next. Further calls wait in order.

    Where the system grants fewer threads at the start, there are fewer.
    """

    def __init__(self, size: int, name: str) -> None:
        self.size, self._name = size, name
        self._lock = threading.Lock()
        self._free: list[SimpleQueue[_Call | None]] = []
        self._waiting: deque[_Call] = deque()
        self._threads = 0

    def start(self) -> None:
        """Start the threads that are not there yet; raises RuntimeError if not even one can be."""
        before = threading.stack_size(_STACK)
        try:
            for number in range(self._threads, self.size):
                calls: SimpleQueue[_Call | None] = SimpleQueue()
                args, name = (calls,), f"{self._name} {number}"
                threading.Thread(target=self._serve, args=args, name=name, daemon=True).start()
                self._threads += 1
                with self._lock:
                    self._free.append(calls)
        except RuntimeError as error:
            if not self._threads:
                raise
            _LOG.warning("%d of %d threads for %s: %s", self._threads, self.size, self._name, error)
        finally:
            threading.stack_size(before)

    def stop(self) -> None:
        """End the threads that are free, and the others once they are; what waits is not called any more."""
        with self._lock:
            free, self._free, self._threads = self._free, [], 0
            self._waiting.clear()
        for calls in free:
            calls.put(None)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread; a request that is cancelled meanwhile waits for its end."""
        call = self.submit(function)
        with CancelScope(shield=True):
            await call
        return call.result()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """What a thread's call of a function will give: the threads are there, and whoever waits may turn away."""
        if not self._threads:
            self.start()
        loop = asyncio.get_running_loop()
        call = _Call(function, copy_context(), loop, loop.create_future())
        with self._lock:
            calls = self._free.pop() if self._free else None
            if calls is None:
                self._waiting.append(call)
        if calls is not None:
            calls.put(call)
        return cast("asyncio.Future[T]", call.future)

    def _serve(self, calls: SimpleQueue[_Call | None]) -> None:
        while (call := calls.get()) is not None:
            next_: _Call | None = call
            while next_ is not None:
                next_.run()
                next_ = self._next(calls)

    def _next(self, calls: SimpleQueue[_Call | None]) -> _Call | None:
        """The next call that waits; None if there is none, and the thread is free."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._threads:
                self._free.append(calls)
            else:
                calls.put(None)
            return None


class RequestThreads:
    """Where blocking calls go: nothing blocks the event loop, and no call waits for a thread that cannot be started.

    Products have threads of their own, one for each that the service's queue takes by default; others wait.
    `transfers` moves large bodies: that many threads, by default one for each CPU.
    """

    def __init__(self, transfers: int | None = None) -> None:
        size = min(_TRANSFERS, len(os.sched_getaffinity(0))) if transfers is None else transfers
        self.transfers = ThreadPool(size, "transfers")
        self._short = ThreadPool(_SHORT, "short calls")
        self._products = ThreadPool(_PRODUCTS, "products")
        self._ends = ThreadPool(_DEVICES, "begun products")
        self._parsers = ThreadPool(1, "long texts")

    def start(self) -> None:
        """Start every thread; those of a kind start with its first call otherwise."""
        for pool in self._pools():
            pool.start()

    def stop(self) -> None:
        """End the threads."""
        for pool in self._pools():
            pool.stop()

    def _pools(self) -> tuple[ThreadPool, ...]:
        return self._short, self._products, self._ends, self._parsers, self.transfers

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what takes milliseconds: a query, a copy, a parser."""
        return await self._short.run(partial(function, *args, **kwargs))

    async def parse(self, nbytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what parses so many bytes and holds the interpreter's lock meanwhile: of long texts one at a time."""
        if nbytes <= FEW:
            return function(*args, **kwargs)
        return await self._parsers.run(partial(function, *args, **kwargs))

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
