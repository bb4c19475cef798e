"""A pool of threads started in advance: no request fails because no thread can be started."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

from anyio import CancelScope

T = TypeVar("T")

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
        self._size, self._name = size, name
        self._lock = threading.Lock()
        self._free: list[SimpleQueue[_Call | None]] = []
        self._waiting: deque[_Call] = deque()
        self._threads = 0

    def start(self) -> None:
        """Start the threads that are not there yet; raises RuntimeError where not even one can be."""
        before = threading.stack_size(_STACK)
        try:
            for number in range(self._threads, self._size):
                calls: SimpleQueue[_Call | None] = SimpleQueue()
                args, name = (calls,), f"{self._name} {number}"
                threading.Thread(target=self._serve, args=args, name=name, daemon=True).start()
                self._threads += 1
                with self._lock:
                    self._free.append(calls)
        except RuntimeError as error:
            if not self._threads:
                raise
            _LOG.warning("%d of %d threads for %s: %s", self._threads, self._size, self._name, error)
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
        with CancelScope(shield=True):
            result = await call.future
        return cast("T", result)

    def _serve(self, calls: SimpleQueue[_Call | None]) -> None:
        while (call := calls.get()) is not None:
            next_: _Call | None = call
            while next_ is not None:
                next_.run()
                next_ = self._next(calls)

    def _next(self, calls: SimpleQueue[_Call | None]) -> _Call | None:
        """The next call that waits; None where there is none, and the thread is free."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._threads:
                self._free.append(calls)
            else:
                calls.put(None)
            return None
