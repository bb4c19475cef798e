"""What the newest jobs spent their time on: spans as a tracer's, kept in memory whether there is one or not."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.observability.request_context import RequestContext
from app.observability.tracing import Attributes, Span, epoch_of, now

JOBS: Final = 16  # whose spans are kept, the newest
SPANS: Final = 20_000  # of one job, the newest
REQUESTS: Final = 2000  # that the service answered during one job, the newest
TOGETHER: Final = 40_000  # of all jobs when another begins, at 0.4 kB each: the oldest jobs' give way
_FAULT: Final = 500  # the first status that says the service failed
_WORKER: Final = "tilewise.worker"  # the attribute of spans that a worker is busy with


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """A span that is over, in nanoseconds since 1970; `lane` is what was busy: the job, the store or a worker."""

    name: str
    lane: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    error: str | None = None


@dataclass(slots=True)
class JobTrace:
    """The spans of one job that are over, and the requests that were answered from `since` on while it ran.

    `dropped` older spans and `dropped_requests` are not kept.
    """

    work: deque[RecordedWork] = field(default_factory=lambda: deque(maxlen=SPANS))
    dropped: int = 0
    requests: deque[RecordedWork] = field(default_factory=lambda: deque(maxlen=REQUESTS))
    dropped_requests: int = 0
    since: int = field(default_factory=now)

    def add(self, work: RecordedWork) -> None:
        """Keep one more."""
        self.dropped += len(self.work) == SPANS
        self.work.append(work)

    def add_request(self, name: str, start: int, end: int, status: int) -> None:
        """Keep a request that was answered; what of it was before the job is cut off."""
        error = f"it was answered {status}" if status >= _FAULT else None
        told = {"http.response.status_code": status}
        self.dropped_requests += len(self.requests) == REQUESTS
        self.requests.append(RecordedWork(name, "HTTP", max(start, self.since), end, told, error))


class RecordingSpan:
    """A span that is recorded when it ends, beside the tracer's where there is one."""

    def __init__(self, trace: JobTrace, beside: Span | None, name: str, start: int, attributes: Attributes) -> None:
        self._trace, self._beside = trace, beside
        self._name, self._start, self._attributes = name, start, dict(attributes)

    @property
    def trace_id(self) -> str:
        """The tracer's id of the trace; empty where there is no tracer."""
        return "" if self._beside is None else self._beside.trace_id

    def child(self, name: str, start: int | None = None, attributes: Attributes | None = None) -> RecordingSpan:
        """A span inside it."""
        beside = None if self._beside is None else self._beside.child(name, start, attributes)
        return RecordingSpan(self._trace, beside, name, now() if start is None else start, attributes or {})

    def end(self, at: int | None = None, error: BaseException | str | None = None) -> None:
        """Record it, and end the tracer's."""
        if self._beside is not None:
            self._beside.end(at, error)
        lane = "store" if self._name.startswith("store ") else str(self._attributes.get(_WORKER, "job"))
        told = None if error is None else str(error)
        end = now() if at is None else at
        self._trace.add(RecordedWork(self._name, lane, self._start, end, self._attributes, told))

    def describe(self, name: str, attributes: Attributes) -> None:
        """Give it another name, and more attributes."""
        self._name = name
        self._attributes |= attributes
        if self._beside is not None:
            self._beside.describe(name, attributes)


class JobTraces:
    """The traces of the newest jobs of this process."""

    def __init__(self) -> None:
        self._traces: OrderedDict[str, JobTrace] = OrderedDict()
        self._running: Mapping[str, JobTrace] = {}  # replaced, never changed: requests read it without the lock
        self._lock = threading.Lock()

    def recording(self, job_id: str, context: RequestContext | None) -> RequestContext:
        """A context like that of the request that asked for a job, whose spans are recorded as the job's."""
        with self._lock:
            trace = self._traces.setdefault(job_id, JobTrace())
            self._traces.move_to_end(job_id)
            self._running = {**self._running, job_id: trace}
            while len(self._traces) > JOBS or (len(self._traces) > 1 and self._spans() > TOGETHER):
                self._traces.popitem(last=False)
        context = context or RequestContext("")
        return context._replace(span=RecordingSpan(trace, context.span, "job", now(), {}))

    def end(self, job_id: str) -> None:
        """Record no more requests as answered during a job."""
        with self._lock:
            self._running = {name: trace for name, trace in self._running.items() if name != job_id}

    def note_request(self, method: str, route: str, status: int, started: float, ended: float) -> None:
        """Record a request, by its moments of perf_counter, for each job that runs; else this costs a look."""
        for trace in self._running.values():
            trace.add_request(f"{method} {route}", epoch_of(started), epoch_of(ended), status)

    def _spans(self) -> int:
        return sum(len(trace.work) + len(trace.requests) for trace in self._traces.values())

    def get(self, job_id: str) -> JobTrace | None:
        """What is recorded of a job; None if it did not run in this process, or long ago."""
        with self._lock:
            return self._traces.get(job_id)


def chrome_trace(trace: JobTrace, title: str) -> dict[str, Any]:
    """A trace in Chrome's format, which Perfetto reads: a thread for each lane, more where its spans overlap.

    Times are microseconds since the first span.
    """
    work = sorted([*trace.work.copy(), *trace.requests.copy()], key=lambda one: (one.start, -one.end))
    first = work[0].start if work else 0
    threads: dict[tuple[str, int], int] = {}
    events = []
    for one, place in zip(work, _placed(work), strict=True):
        thread = threads.setdefault((one.lane, place), len(threads) + 1)
        told = {"error": one.error} if one.error else {}
        events.append(
            {
                "ph": "X",
                "name": one.name,
                "cat": one.lane,
                "ts": (one.start - first) / 1e3,
                "dur": (one.end - one.start) / 1e3,
                "pid": 1,
                "tid": thread,
                "args": {**one.attributes, **told},
            }
        )
    names = [_named("process_name", 0, title)]
    for (lane, place), thread in threads.items():
        names.append(_named("thread_name", thread, f"{lane} {place + 1}" if place else lane))
    facts = {"first_nanoseconds": first, "dropped_spans": trace.dropped, "dropped_requests": trace.dropped_requests}
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": facts}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}


def _placed(work: Iterable[RecordedWork]) -> Iterable[int]:
    """For each span, by start, the first place of its lane where it lies within or after what is there."""
    lanes: dict[str, list[list[int]]] = {}
    for one in work:
        places = lanes.setdefault(one.lane, [])
        for number, ends in enumerate(places):
            while ends and ends[-1] <= one.start:
                ends.pop()
            if not ends or one.end <= ends[-1]:
                ends.append(one.end)
                yield number
                break
        else:
            places.append([one.end])
            yield len(places) - 1
