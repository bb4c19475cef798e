"""Spans of what a request causes. Where tracing is off there are none, and nothing here costs more than a look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter, time_ns
from typing import Final, Protocol, TypeAlias, cast

from app.observability.request_context import RequestContext, TraceParent, assign, current, entered

_STEP: Final = 1_000_000_000  # nanoseconds by which clocks that were not set do not drift apart unseen
_distance = 0
Attributes: TypeAlias = Mapping[str, str | int | float | bool]


class Span(Protocol):
    """A piece of work of a trace. Moments are nanoseconds since 1970; None is now."""

    @property
    def trace_id(self) -> str:
        """The trace's id, as 32 hexadecimal digits."""
        ...

    def child(self, name: str, start: int | None = None, attributes: Attributes | None = None) -> Span:
        """A span inside it."""
        ...

    def end(self, at: int | None = None, error: BaseException | str | None = None) -> None:
        """End it, as failed where there is an error."""
        ...

    def describe(self, name: str, attributes: Attributes) -> None:
        """Give it another name, and more attributes."""
        ...


class Tracer(Protocol):
    """What begins the spans of requests."""

    def begin(self, name: str, parent: TraceParent | None, start: int) -> Span:
        """A span of a request, in its caller's trace or in a new one."""
        ...


NoteRequest: TypeAlias = Callable[[str, str, int, float, float], None]


class TracerSlot:
    """Where an application, which is made first, finds the tracer once it is open; None where tracing is off.

    `note_request` is told each request that was answered: method, route, status, and its moments of perf_counter.
    """

    tracer: Tracer | None = None
    note_request: NoteRequest | None = None


def current_span() -> Span | None:
    """The span that what happens now is a part of; None where nothing is traced."""
    context = current()
    return None if context is None else cast("Span | None", context.span)


def begin_request(tracer: Tracer, started: float) -> Span:
    """Begin the span of the request of this context, which began at a moment of perf_counter."""
    context = current() or RequestContext("")
    span = tracer.begin("request", context.parent, epoch_of(started))
    assign(context._replace(span=span))
    return span


@contextmanager
def traced(name: str, attributes: Attributes | None = None) -> Iterator[None]:
    """A span around the block, inside the one under way; nothing where nothing is traced."""
    context = current()
    if context is None or context.span is None:
        yield
        return
    span: Span = context.span.child(name, None, attributes)
    try:
        with entered(context._replace(span=span)):
            yield
    except BaseException as error:
        span.end(error=error)
        raise
    span.end()


def trace_phases(
    started: float, seconds: Iterable[tuple[str | None, float]], attributes: Attributes | None = None
) -> None:
    """Spans for phases that are over, one after the other from a moment of perf_counter; None: no span for it."""
    span = current_span()
    if span is None:
        return
    start = epoch_of(started)
    for name, took in seconds:
        end = start + round(1e9 * took)
        if name is not None:
            span.child(name, start, attributes).end(end)
        start = end


def now() -> int:
    """The moment in nanoseconds since 1970, by the clock of all spans."""
    return epoch_of(perf_counter())


def epoch_of(moment: float) -> int:
    """A moment of perf_counter in nanoseconds since 1970, by the clock of all spans.

    The distance of the two clocks is kept, so that spans are in order however late a thread runs between two looks;
    it is taken anew where the host's time was set.
    """
    global _distance  # noqa: PLW0603 - one clock for the process
    found = time_ns() - round(1e9 * perf_counter())
    if abs(found - _distance) > _STEP:
        _distance = found
    return _distance + round(1e9 * moment)


class PhaseSpans:
    """The phases of a call, of which one at a time is under way; nothing where nothing is traced."""

    def __init__(self, worker: str) -> None:
        self._parent, self._attributes = current_span(), {"tilewise.worker": worker}
        self._phase: Span | None = None

    def enter(self, name: str) -> None:
        """The next phase begins."""
        if self._parent is not None:
            self.leave()
            self._phase = self._parent.child(name, None, self._attributes)

    def leave(self, error: BaseException | None = None) -> None:
        """The phase under way is over."""
        if self._phase is not None:
            self._phase.end(error=error)
            self._phase = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The call waits for the device inside the block."""
        span = self._phase or self._parent
        waits = None if span is None else span.child("wait for device", None, self._attributes)
        try:
            yield
        finally:
            if waits is not None:
                waits.end()
