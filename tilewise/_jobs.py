"""JobMethods: jobs asked for, waited for, and told of as they go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from tilewise._http1 import HttpRequest
from tilewise._matmul import key
from tilewise._pool import KEY
from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation, Pause, Stream, StreamFlow, StreamItem, upcoming
from tilewise._sse import Parser
from tilewise.arguments import TuneArguments
from tilewise.errors import ClientError
from tilewise.models import Event, Job
from tilewise.shapes import Shape, ShapeLike, shapes_of

# The service writes a comment every 15 s: a stream silent for longer is broken.
SILENCE: Final = 45.0
POLL: Final = 0.1


class JobMethods(RequestMethods):
    """Jobs. Every method raises ClientError if the service refuses."""

    @Operation
    def tune(
        self,
        shapes: str | Shape | Iterable[ShapeLike],
        *,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernels: Iterable[str] | None = None,
        strategy: str = "auto",
        trials: int | None = None,
        seconds: float | None = None,
        gain_percent: float | None = None,
        retune: bool = False,
        wait: bool | float = False,
    ) -> Flow[Job]:
        """Ask for one tuning job over `shapes`: one such as "512x512x512" or Shape(512, 512, 512), or several.

        Each of several is such a text ("4096x16x4096x8" has a batch of 8), a Shape, (m, n, k), (m, n, k, batch), or a
        size for a cube. Raises ValueError for what is none, and for (m, n, k) alone, which could be three cubes.
        `trials` and `seconds` are the job's whole budget; with `gain_percent` a search ends once it expects to gain
        less than so many per cent, and what is None beside it is no limit. `wait` true waits until the job has ended, a
        number at most so many seconds; the job comes back as it then stands.
        """
        sizes, names = tuple(shapes_of(shapes)), None if kernels is None else tuple(kernels)
        kind, limits = (dtype, precision, trans_a, trans_b), (trials, seconds, gain_percent)
        arguments = TuneArguments(sizes, *kind, device, names, strategy, *limits, retune)
        return (yield from self._tuned(arguments, wait))

    @Operation
    def job(self, job_id: str) -> Flow[Job]:
        """Give the job as it stands."""
        return self._as(Job, (yield from self._get(place(job_id))))

    @Operation
    def cancel(self, job_id: str) -> Flow[Job]:
        """Ask that a job ends; gives it as it then stands (cancelling takes until the running trial's end)."""
        return self._as(Job, (yield from self.transport.exchange(HttpRequest("DELETE", place(job_id), again=True))))

    @Operation
    def extend(self, job_id: str, seconds: float = 20.0) -> Flow[Job]:
        """Give a tune that has not ended so many seconds more, for the whole job; gives it as it then stands."""
        target = f"{place(job_id)}/extend?seconds={seconds!r}"
        return self._as(Job, (yield from self.transport.exchange(HttpRequest("POST", target))))

    @Operation
    def wait(self, job_id: str, timeout: float | None = None) -> Flow[Job]:
        """Wait until the job has ended, at most so many seconds; gives it as it then stands."""
        return (yield from self._ended(job_id, timeout))

    @Stream
    def events(self, job_id: str, after: int = 0, patience: float = 60.0) -> StreamFlow[Event]:
        """Give the job's events with an id above `after`, as they come, to its end.

        A broken stream is resumed where it broke; UnreachableError once nothing has answered for `patience` seconds.
        """
        yield from self._events(job_id, after, patience, float("inf"))

    @Operation
    def ready(self, wait: float = 0.0) -> Flow[bool]:
        """Tell whether the service is ready, within `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            try:
                yield from self.transport.exchange(HttpRequest("GET", "/health/ready", again=True, patient=False))
            except ClientError:
                if time.monotonic() >= until:
                    return False
                yield Pause(POLL)
            else:
                return True

    def _tuned(self, arguments: TuneArguments, wait: bool | float) -> Flow[Job]:
        patience = 0.0 if isinstance(wait, bool) else wait
        headers = {"Content-Type": "application/json", KEY: key()}
        headers |= {"Prefer": f"wait={patience:g}"} if patience else {}
        data = (memoryview(json.dumps(arguments.body()).encode()),)
        ask = HttpRequest("POST", "/tune", data, headers, again=True, timeout=self.transport.timeout + patience)
        job = self._as(Job, (yield from self.transport.exchange(ask)))
        return (yield from self._ended(job.id, None)) if wait is True and not job.ended else job

    def _ended(self, job_id: str, timeout: float | None) -> Flow[Job]:
        until = float("inf") if timeout is None else time.monotonic() + timeout
        events = self._events(job_id, 0, 60.0, until)
        while (yield from upcoming(events)) is not None:
            pass
        return self._as(Job, (yield from self._get(place(job_id))))

    def _events(self, job_id: str, after: int, patience: float, until: float) -> StreamFlow[Event]:
        """As events, and at most to `until` on the monotonic clock."""
        heard = time.monotonic()
        while True:
            failure: OSError | ClientError = ConnectionError("the stream ended before the job")
            events = self._stream(job_id, after, until)
            try:
                while (told := (yield from upcoming(events))) is not None:
                    heard = time.monotonic()
                    if told.value is not None:
                        yield StreamItem(told.value)
                        after = told.value.id
                    if told.value is not None and told.value.name == "end":
                        return
            except (OSError, ClientError) as broken:
                failure = broken
            if isinstance(failure, _EndedError) or time.monotonic() >= until:
                return
            self._bear(failure, time.monotonic() - heard > patience)
            yield Pause(max(0.0, min(POLL, until - time.monotonic())))

    def _bear(self, failure: OSError | ClientError, tired: bool) -> None:
        """Raise what ended a stream, unless it is the kind that passes."""
        if isinstance(failure, ClientError) and failure.status != 503:  # noqa: PLR2004 - as a restarting service says
            raise failure
        if tired:
            raise self.transport.unreachable(failure) if isinstance(failure, OSError) else failure

    def _stream(self, job_id: str, after: int, until: float) -> StreamFlow[Event | None]:
        """One connection's events, None for a sign of life."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
        timeout = max(0.001, min(SILENCE, until - time.monotonic()))
        opened = yield from self.transport.open(
            HttpRequest("GET", f"{place(job_id)}/events", (), headers, timeout=timeout)
        )
        try:
            if opened.status == 204:  # noqa: PLR2004 - HTTP's word for: the job has ended, there is nothing more
                raise _EndedError("the job has ended", opened.status)
            parser = Parser()
            while piece := (yield from opened.some(max(0.0, min(SILENCE, until - time.monotonic())))):
                for event in parser.feed(piece):
                    yield StreamItem(event)
        finally:
            opened.close()


class _EndedError(ClientError):
    """A stream was asked for whose last event had been seen."""


def place(job_id: str) -> str:
    """A job's place."""
    return f"/jobs/{quote(job_id, safe='')}"
