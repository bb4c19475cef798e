"""RemoteCall: the parent's side of one call to a worker: its deadline, lease and answer; PendingCall: its future."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from secrets import token_hex
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from app.devices.lease import Lease, LeaseTicket, Priority
from app.devices.process.process import WorkerProcess
from app.devices.process.worker_main import GLANCE, CallStopped, Until, never, wait
from app.errors import ChildDied, ChildTimedOut, DeviceError, InternalError, TilewiseError
from app.observability.request_context import current
from app.observability.tracing import PhaseSpans

_LOG = logging.getLogger(__name__)
_LAST: Final = {"done", "error", "failed", "stopped"}  # what a child says at the end
_STOP: Final = b"stop"  # what a child hears that waits for the device and is not to have it any more


class RemoteCall:
    """One call: the request, the messages on the way, the answer; `until` says when it is to be over.

    `is_broken` says that the child did not answer to the end, and cannot be spoken to again.
    """

    def __init__(
        self,
        name: str,
        run: WorkerProcess,
        lease: Lease | None,
        priority: Priority,
        *,
        stage: str | None = None,
        leased: bool = False,
        until: Until = never,
        more: Callable[[], Any] | None = None,
    ) -> None:
        self._name, self._run, self._lease, self._priority = name, run, lease, priority
        self._until, self._more = until, more
        self._stage, self._leased = stage, leased
        self._spans = PhaseSpans(name)
        self._ticket: LeaseTicket | None = None
        self._message: tuple[Any, ...] | None = None
        self.is_broken = True

    def hold(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline: float) -> Any:
        """Run the function in the child and give its value; raises as Worker.call."""
        if self._leased:
            self.try_lease()
        self.ask(function, arguments, deadline)
        return self.end()

    def try_lease(self) -> bool:
        """Acquire the lease for the function's start if it is free and without waiters; whether it was."""
        self._ticket = self._lease.try_acquire(self._priority) if self._lease is not None else None
        return self._ticket is not None or self._lease is None

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline: float) -> None:
        """Have the child begin the function; raises ChildDied."""
        self._stage = self._stage or function.__name__
        context = current()
        self._run.caller = told = (context.request_id, context.trace_id) if context and context.request_id else None
        request = self._run.sender.dumps((function, arguments, self._ticket is not None, told))
        self._run.deadline_page.allow(deadline)
        self._run.deadline_page.ask_to_stop(self._until().ask)
        with self._alive():
            self._run.channel.send_bytes(request)

    def fileno(self) -> int:
        """The descriptor that is readable once the child has said something."""
        return self._run.channel.fileno()

    def receive_ready(self) -> bool:
        """Take the message that is there: whether it is a value, for which `end` has nothing to wait for."""
        with suppress(EOFError, OSError):  # `end` says so
            self._message = self._read()
        return self._message is not None and self._message[0] == "done"

    def end(self) -> Any:
        """The function's value; raises as Worker.call."""
        try:
            with self._alive():
                while (message := self._message or self._receive())[0] not in _LAST:
                    self._message = None
                    self._handle(*message)
            self.is_broken = False
            value = self._unwrap(*message)
        except BaseException as error:
            self._spans.leave(error)
            raise
        self._spans.leave()
        return value

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise ChildDied(f"{self._name} died during {self._stage}", stage=self._stage) from error

    def close(self) -> None:
        """Give the lease back, held or queued for."""
        if self._ticket is not None and self._lease is not None:
            self._lease.leave(self._ticket)
        self._ticket = None

    def _receive(self) -> tuple[Any, ...]:
        run, deadline_page = self._run, self._run.deadline_page
        while not run.poll(max(0.0, min(deadline_page.remaining, GLANCE, self._before_kill()))):
            if deadline_page.remaining <= 0 and not run.poll(0):
                raise ChildTimedOut(
                    f"{self._name}: {self._stage} took more than {deadline_page.allowed:g} s",
                    stage=self._stage,
                    deadline=deadline_page.allowed,
                )
        return self._read()

    def _before_kill(self) -> float:
        """Seconds until the worker is killed, after it was asked to stop; raises Stopped if they are over."""
        if self._until is never:
            return inf
        ask, kill = self._until()
        self._run.deadline_page.ask_to_stop(ask)
        left = kill - monotonic()
        if left <= 0 and not self._run.poll(0):
            raise CallStopped
        return left

    def _read(self) -> tuple[Any, ...]:
        message: tuple[Any, ...] = pickle.loads(self._run.channel.recv_bytes())  # noqa: S301 - our own child wrote it
        return message

    def _handle(self, kind: str, detail: Any = None) -> None:
        if kind == "phase":
            self._stage = detail
            self._spans.enter(detail)
        elif kind == "more":
            found = None if self._more is None else self._more()
            self._run.channel.send_bytes(self._run.sender.dumps(found))
        else:
            self.close()
        if kind in {"lease", "offer"}:
            self._take(detail)

    def _take(self, deadline: float) -> None:
        """Wait for the device in the child's name; the child waits for the empty message."""
        word = b""
        if self._lease is not None:
            self._ticket = self._lease.queue(self._priority)
            try:
                with self._spans.waiting():
                    wait(self._is_granted, self._until)
            except CallStopped:
                self.close()
                word = _STOP
        self._run.deadline_page.allow(deadline)
        self._run.channel.send_bytes(word)

    def _is_granted(self, seconds: float | None) -> bool:
        """Whether the worker gets the lease within `seconds`, or ever; raises EOFError if the worker dies."""
        while self._ticket is not None and not self._ticket.granted.wait(GLANCE if seconds is None else seconds):
            if self._run.ended.is_set():
                raise EOFError
            if seconds is not None:
                return False
        return True

    def _unwrap(self, kind: str, answer: Any) -> Any:
        if kind == "done":
            return answer
        if kind == "stopped":
            raise CallStopped
        if kind == "failed":
            raise logged_fault(f"{self._name} failed during {self._stage}", self._stage, answer)
        error: TilewiseError = answer
        if isinstance(error, DeviceError):
            error.facts.setdefault("stage", self._stage)
        raise error


def logged_fault(what: str, stage: str | None, trace: str | None = None) -> InternalError:
    """The error of an exception that nobody foresaw, by default the one in hand: its trace is not for callers."""
    number, trace = token_hex(6), trace or traceback.format_exc()
    _LOG.error("%s, error %s:\n%s", what, number, trace)
    error = InternalError(f"{what}: the log tells of error {number}", id=number, stage=stage)
    error.__cause__ = RuntimeError(trace)
    return error


T = TypeVar("T")
U = TypeVar("U")


class PendingCall(Generic[T]):
    """`finish`, which is to be called once whatever happens, waits for the call's end and gives its value.

    It raises as Child.call does. A message has come once `fileno` is readable.
    """

    def __init__(self, call: RemoteCall, finish: Callable[[], T]) -> None:
        self._call, self.finish = call, finish

    def fileno(self) -> int:
        """The descriptor to watch until the child says something."""
        return self._call.fileno()

    def is_over(self) -> bool:
        """Hear the message that has come: whether it was the value, so that `finish` need not wait."""
        return self._call.receive_ready()

    def then(self, after: Callable[[Callable[[], T]], U]) -> PendingCall[U]:
        """The same call, whose end `after` sees to: it is given `finish`."""
        return PendingCall(self._call, partial(after, self.finish))
