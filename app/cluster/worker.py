"""RemoteWorker: a worker of another node, as services call any worker; RemoteCompilers: that node's compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from math import inf
from time import monotonic
from typing import Any, Final

import numpy as np
from ray.exceptions import RayTaskError

from app.cluster import staging
from app.cluster.connection import NodeConnection
from app.cluster.messages import NodeAnswer, NodeCall, Role
from app.devices.lease import Priority, PriorityLock
from app.devices.process import CallLimit, CallStopped, PendingCall, Until, never
from app.devices.process.call import logged_fault
from app.devices.process.worker_main import wait
from app.devices.slab import Slab, SlabRegion
from app.dtypes import Array
from app.errors import ChildDied, ChildLost, Closing, TilewiseError
from kernels.launch import Build

_MOVED: Final = 0.05  # seconds by which a limit moves before the node is told
_NUMBERS: Final = count(1)


class RemoteWorker:
    """A node's worker of one device: calls go by the node's actor, one at a time, operands from and to `slab`.

    A call whose node is lost raises ChildDied of an outside cause, and calls after it ChildLost until it is back.
    """

    hangs = kills_from_outside = 0
    is_lost = is_idle = False
    pid = None

    def __init__(self, connection: NodeConnection, device: str, role: Role, slab: Slab) -> None:
        self.name, self.generation = f"{connection.node.name}:{device} {role}", 0
        self._connection, self._device, self._role, self._slab = connection, device, role, slab
        self._calls, self._is_closed = PriorityLock(), False
        self._heard = 0, 0  # the fence and the generation of the worker there
        self._refusal: TilewiseError | None = None

    @property
    def trouble(self) -> str | None:
        """Why it cannot begin a call now."""
        if self._is_closed:
            return "it is closed"
        if self._connection.lost is not None:
            return f"its node is lost: {self._connection.lost}"
        return self._connection.troubles.get((self._device, self._role))

    @property
    def takes_calls(self) -> bool:
        """Whether calls are not refused."""
        return self._refusal is None and self._connection.lost is None and not self._is_closed

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return self._calls.waiting

    def expect_calls(self) -> None:
        """Raise what calls are refused with, ChildLost if the node is lost, or Closing."""
        if self._is_closed or self._connection.is_closed:
            raise Closing(f"{self.name} is closed")
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message, **self._refusal.facts)
        if self._connection.lost is not None:
            raise ChildLost(f"{self.name} is lost: {self.trouble}")

    def tell_waiting(self, *, others: bool) -> None:
        """Do nothing: a node's worker takes others to wait."""

    def start(self, until: Until = never) -> None:
        """Wait until it is ready; raises as Worker.start, ChildDied and ChildLost."""
        self._call(None, (), Priority.PRODUCT, 60.0, leased=False, until=until)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.MEASUREMENT,
        deadline: float = 60.0,
        leased: bool = False,
        until: Until = never,
        more: Callable[[], Any] | None = None,
    ) -> Any:
        """As Worker.call, but that nothing more is asked for."""
        del more
        known = staging.local_answer(function)
        if known is not None:
            return known[0]
        return self._call(function, arguments, priority, deadline, leased=leased, until=until)

    def begin(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.MEASUREMENT,
        deadline: float = 60.0,
    ) -> PendingCall[Any] | None:
        """None: another node's worker is not asked from the event loop."""
        del function, arguments, priority, deadline
        return None

    def replace(self, reason: str) -> None:
        """Have a new process."""
        if self._connection.lost is None:
            self._connection.ask("replace", self._device, self._role, reason, control=True)

    def kill(self) -> None:
        """Kill the process; it is replaced."""
        self.replace("the service killed it")

    def refuse(self, refusal: TilewiseError | None) -> None:
        """Have calls raise an error before they begin; None: have them begin again."""
        self._refusal = refusal

    def close(self) -> None:
        """Take no more calls."""
        self._is_closed = True

    def _call(
        self,
        function: Callable[..., Any] | None,
        arguments: tuple[Any, ...],
        priority: Priority,
        deadline: float,
        *,
        leased: bool,
        until: Until,
    ) -> Any:
        ticket = self._calls.queue(priority)
        try:
            wait(ticket.granted.wait, until)
            self.expect_calls()
            staged = staging.StagedCall(()) if function is None else staging.staged(function, arguments)
            where = next(_NUMBERS), self._device, self._role, function, staged.arguments
            limits = _Limits(until)
            asked = NodeCall(*where, priority, deadline, leased, limits.told, staged.operands)
            return staged.finish(self._value(asked, limits))
        finally:
            self._calls.leave(ticket)

    def _value(self, asked: NodeCall, limits: _Limits) -> Any:
        connection, fence, memory = self._connection, self._connection.fence, self._connection.memory
        view = self._slab.view(SlabRegion(0, self._slab.nbytes))
        sent = [] if memory is not None else [_packed(staging.rows(view, panel)) for panel in asked.operands.reads]

        def look() -> None:
            if self._is_closed or connection.is_closed:
                raise Closing(f"{self.name} is closed")
            if limits.have_moved():
                connection.ask("limit", asked.number, *limits.told, control=True)

        try:
            answer, *results = connection.hear(connection.ask("call", asked, *sent), fence, look)
        except RayTaskError as error:
            raise logged_fault(f"{self.name} failed", "call", str(error)) from None
        self._note(fence, answer)
        _expect_value(answer)
        if memory is not None:
            results = staging.results(memory, asked.operands, answer.offset)
        for panel, rows in zip(asked.operands.writes, results, strict=True):
            np.copyto(staging.rows(view, panel), rows)
        if memory is not None and asked.operands.writes:
            self._release(asked.number)
        return answer.value

    def _release(self, number: int) -> None:
        """Have the node take back the memory of a result; one that is lost meanwhile has none."""
        with suppress(ChildDied, Closing):
            self._connection.ask("release", number, control=True)

    def _note(self, fence: int, answer: NodeAnswer) -> None:
        """Count a process that is another than the one that answered before."""
        if self._heard != (fence, answer.generation):
            self._heard = fence, answer.generation
            self.generation += 1
        self._connection.troubles[self._device, self._role] = answer.trouble


def _expect_value(answer: NodeAnswer) -> None:
    """Raise how a call ended, unless in a value."""
    if answer.kind == "stopped":
        raise CallStopped
    if answer.kind == "error":
        raise answer.value


class _Limits:
    """The limits of a call, in seconds from now, as the node was told last."""

    def __init__(self, until: Until) -> None:
        self._until, self._last = until, until()
        self.told = self._seconds()

    def have_moved(self) -> bool:
        """Whether the node is to be told anew."""
        now = self._until()
        has_moved = any(_differ(new, old) for new, old in zip(now, self._last, strict=True))
        if has_moved:
            self._last = now
            self.told = self._seconds()
        return has_moved

    def _seconds(self) -> tuple[float, float]:
        limit: CallLimit = self._last
        now = monotonic()
        return limit.ask - now, limit.kill - now


def _differ(new: float, old: float) -> bool:
    return new != old if inf in {new, old} else abs(new - old) > _MOVED


def _packed(rows: Array) -> Array:
    return np.ascontiguousarray(rows)


class RemoteCompilers:
    """A node's compilers, whose binaries lie in its own cache; they are asked for `width` builds at a time."""

    def __init__(self, connection: NodeConnection, width: int) -> None:
        self.width, self._connection = width, connection
        self._threads = ThreadPoolExecutor(width, thread_name_prefix="compiling elsewhere")
        self._jobs: dict[tuple[str, str], Future[None]] = {}

    def start(self, build: Build, architecture: str, deadline: float | None = None) -> Future[None]:
        """As Compilers.start."""
        key = build.digest, architecture
        known = self._jobs.get(key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            try:
                known = self._jobs[key] = self._threads.submit(self._compile, build, architecture, deadline)
            except RuntimeError as error:
                raise Closing("the compilers are closed") from error
        return known

    def compile(self, build: Build, architecture: str, deadline: float | None = None) -> None:
        """As Compilers.compile."""
        while True:
            try:
                return self.start(build, architecture, deadline).result()
            except CancelledError:
                continue

    def cancel(self, builds: Iterable[Build], architecture: str) -> None:
        """As Compilers.cancel."""
        for build in builds:
            if (job := self._jobs.get((build.digest, architecture))) is not None:
                job.cancel()

    def close(self) -> None:
        """End; pending compilations are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, build: Build, architecture: str, deadline: float | None) -> None:
        connection = self._connection
        if connection.lost is not None:
            raise ChildLost(f"node {connection.node.name} is lost: {connection.lost}")
        try:
            error = connection.hear(connection.ask("compile", build, architecture, deadline), connection.fence)
        except RayTaskError as fault:
            raise logged_fault(f"compiling on {connection.node.name} failed", "compile", str(fault)) from None
        if error is not None:
            raise error
