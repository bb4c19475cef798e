"""One text for both clients: flows do what needs no waiting and yield what does, a driver waits, blocking or not.

A flow is a generator. It yields steps (Wait, Pause, Resolve, Work), is sent what came of each, or has thrown at it what
went wrong, and returns its result. Its sockets never block: all waiting is the driver's.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, overload

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
# epoll and kqueue would open a descriptor for each wait.
_Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Until a socket is ready for one of `events`, at most so many seconds (else TimeoutError); gives which it is."""

    sock: socket.socket
    events: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """So many seconds; none lets others have their turn."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Resolve:
    """A host and port into addresses, as socket.getaddrinfo gives them."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Work:
    """What takes a while though nobody is waited for, such as a copy of a large matrix."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class StreamItem(Generic[T]):
    """What a stream's flow tells its reader before it goes on."""

    value: T


Step = Wait | Pause | Resolve | Work
Flow = Generator[Step, Any, T]
StreamFlow = Generator[Step | StreamItem[T], Any, None]


class SyncRunner:
    """Whoever has its flows driven by waiting in the calling thread."""


class AsyncRunner:
    """Whoever has its flows driven by an asyncio event loop that can watch sockets (asyncio's own, or uvloop)."""


class Operation(Generic[P, T]):
    """A method written as a flow: of a SyncRunner it is a function, of an AsyncRunner a coroutine function."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._flow = flow
        update_wrapper(self, flow)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: SyncRunner, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, instance: object, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run it for an object."""
        flow = self._flow(instance, *args, **kwargs)
        return driven(flow) if isinstance(instance, SyncRunner) else awaited(flow)

    def within(self, instance: object, *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        """The flow itself, for another flow to go through."""
        return self._flow(instance, *args, **kwargs)


class Stream(Generic[P, T]):
    """A method written as a flow of items: of a SyncRunner it gives an iterator, of an AsyncRunner an async one."""

    def __init__(self, flow: Callable[Concatenate[Any, P], StreamFlow[T]]) -> None:
        self._flow = flow
        update_wrapper(self, flow)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: SyncRunner, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: AsyncRunner, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, instance: object, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Tell it for an object."""
        flow = self._flow(instance, *args, **kwargs)
        return told(flow) if isinstance(instance, SyncRunner) else told_async(flow)

    def within(self, instance: object, *args: P.args, **kwargs: P.kwargs) -> StreamFlow[T]:
        """The flow itself, for another flow to read."""
        return self._flow(instance, *args, **kwargs)


def driven(flow: Flow[T]) -> T:
    """Run a flow to its result, waiting in this thread."""
    try:
        step = next(flow)
        while True:
            try:
                came = _blocking(step)
            except BaseException as error:  # noqa: BLE001 - the flow has connections to close, whatever happened
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration as done:
        return cast("T", done.value)


async def awaited(flow: Flow[T]) -> T:
    """Run a flow to its result, waiting on the running event loop."""
    try:
        step = next(flow)
        while True:
            try:
                came = await _waiting(step)
            except BaseException as error:  # noqa: BLE001 - cancellation too has connections to close
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration as done:
        return cast("T", done.value)


def told(flow: StreamFlow[T]) -> Iterator[T]:
    """Give what a flow tells, waiting in this thread."""
    try:
        while (item := driven(upcoming(flow))) is not None:
            yield item.value
    finally:
        flow.close()


async def told_async(flow: StreamFlow[T]) -> AsyncIterator[T]:
    """Give what a flow tells, waiting on the running event loop."""
    try:
        while (item := await awaited(upcoming(flow))) is not None:
            yield item.value
    finally:
        flow.close()


def upcoming(flow: StreamFlow[T]) -> Flow[StreamItem[T] | None]:
    """Go through a telling flow until it tells something; None at its end."""
    try:
        step = next(flow)
        while not isinstance(step, StreamItem):
            try:
                came = yield step
            except BaseException as error:  # noqa: BLE001 - the telling flow decides
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration:
        return None
    return step


def _blocking(step: Step) -> Any:
    match step:
        case Wait(sock, events, seconds):
            with _Selector() as selector:
                selector.register(sock, events)
                ready = selector.select(seconds)
            if not ready:
                raise TimeoutError
            return ready[0][1]
        case Pause(seconds):
            return time.sleep(seconds) if seconds else None
        case Resolve(host, port):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        case Work(function):
            return function()


async def _waiting(step: Step) -> Any:
    match step:
        case Wait(sock, events, seconds):
            async with asyncio.timeout(seconds):
                return await _ready(sock, events)
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case Resolve(host, port):
            return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        case Work(function):
            return await _worked(function)


async def _worked(function: Callable[[], Any]) -> Any:
    """What a function gives in a thread: who is cancelled meanwhile waits for it first, as it has the flow's memory."""
    working = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # it is the cancellation that is told
        raise


async def _ready(sock: socket.socket, events: int) -> int:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()

    def found(event: int) -> None:
        if not ready.done():
            ready.set_result(event)

    if events & READ:
        loop.add_reader(sock, found, READ)
    if events & WRITE:
        loop.add_writer(sock, found, WRITE)
    try:
        return await ready
    finally:
        loop.remove_reader(sock)
        loop.remove_writer(sock)
