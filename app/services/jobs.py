"""Jobs as their owners see them: read, cancel, wait, and the events of their progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from app.errors import UnknownJob
from app.services.principal import Principal
from app.services.recordings import recordings
from app.services.running import FINALS
from app.store.engine import Database
from app.store.records import JobRecord, TrialRecord
from app.store.repository import Devices, Trials
from app.store.repository import Jobs as JobRows
from app.tuning.replay import lines

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_PAGE: Final = 5000  # trials read at once
_EACH: Final = 4  # events that there may be for one trial


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event of a job: `id` rises, `name` is progress, trial or end, `data` is JSON."""

    id: int
    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs and trials there are, by state."""

    jobs: Mapping[str, int]
    trials: Mapping[str, int]


def new_job(kind: str, request: dict[str, Any], fingerprint: str = "", total: int = 0) -> JobRecord:
    """A queued job that is not saved yet; equal fingerprints are equal work."""
    return JobRecord(
        id=uuid4().hex,
        kind=kind,
        state="queued",
        fingerprint=fingerprint,
        request=request,
        done=0,
        total=total,
        best_ms=None,
        result=None,
        error=None,
        cancel_requested=False,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
    )


class Jobs:
    """The jobs of one database. Every method blocks for a query; none takes a device."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wakes: dict[str, set[Callable[[], None]]] = {}
        self._left: dict[str, Callable[[], float | None]] = {}
        self._begun: set[str] = set()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()

    def get(self, job_id: str) -> JobRecord:
        """One job; raises UnknownJob."""
        record = self._database.read(lambda session: JobRows(session).get(job_id))
        if record is None:
            raise UnknownJob(f"there is no job {job_id}")
        return self._now(record)

    def list(
        self, state: str | None = None, kind: str | None = None, before: str | None = None, limit: int = 50
    ) -> Sequence[JobRecord]:
        """Jobs, newest first; `before` is the id of the last one already seen."""
        page = self._database.read(lambda session: JobRows(session).list(state, kind, before, limit))
        return [self._now(record) for record in page]

    def timed(self, job_id: str, left: Callable[[], float | None] | None) -> None:
        """Have `left` say, from now on, how many seconds a running job may still take; None ends that."""
        with self._lock:
            if left is None:
                self._left.pop(job_id, None)
            else:
                self._left[job_id] = left

    def _now(self, record: JobRecord) -> JobRecord:
        """A job with the time left as of this moment, not of its last trial."""
        left = self._left.get(record.id) if record.state == "running" else None
        return record if left is None else replace(record, eta_seconds=left())

    def trials(self, **filters: Any) -> Sequence[TrialRecord]:
        """Stored trials by device_model, problem_key, kernel, state, job_id, round, after (an id) and limit."""
        return self._database.read(lambda session: Trials(session).search(**filters))

    def recordings(self, **filters: Any) -> str:
        """All trials by the filters of `trials` but `after` and `limit`, as the text of recordings."""
        found: list[TrialRecord] = []
        while page := self.trials(**filters, after=found[-1].id if found else 0, limit=_PAGE):
            found += page
        devices = self._database.read(lambda session: Devices(session).all())
        return "".join(lines(recordings(found, devices)))

    def tally(self) -> Tally:
        """How many jobs and trials there are, by state."""
        return self._database.read(lambda session: Tally(JobRows(session).tally(), Trials(session).tally()))

    def cancel(self, job_id: str, principal: Principal) -> JobRecord:
        """Ask a job to stop after the trial it is in; one that has ended stays as it is. Raises UnknownJob."""
        del principal  # there is one until authentication lands: every job is its own
        if self.get(job_id).state not in ENDED:
            with self._lock:
                self._cancelled.add(job_id)
            self._database.write(lambda session: JobRows(session).ask_cancel(job_id, datetime.now(UTC)))
            self.committed(job_id)
        job = self.get(job_id)
        with self._lock:
            if job.state in ENDED and job_id not in self._begun:
                self._cancelled.discard(job_id)
        return job

    def begun(self, job_id: str) -> None:
        """Say that somebody works on a job: that it was cancelled is remembered until `ended`."""
        with self._lock:
            self._begun.add(job_id)

    def ended(self, job_id: str) -> None:
        """Say that nobody works on a job any more."""
        with self._lock:
            self._begun.discard(job_id)
            self._cancelled.discard(job_id)

    def is_cancelled(self, job_id: str) -> bool:
        """Whether cancellation was asked for in this process's life, of a job that waits or is worked on."""
        with self._lock:
            return job_id in self._cancelled

    def wait(self, job_id: str, seconds: float) -> JobRecord:
        """The job once it has ended, or as it is after so many seconds."""
        changed = threading.Event()
        unsubscribe = self.subscribe(job_id, changed.set)
        until = monotonic() + seconds
        try:
            while (record := self.get(job_id)).state not in ENDED and (left := until - monotonic()) > 0:
                changed.wait(left)
                changed.clear()
            return record
        finally:
            unsubscribe()

    def subscribe(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called, from any thread, after each commit that concerns the job, until the answer is called."""
        with self._lock:
            self._wakes.setdefault(job_id, set()).add(wake)

        def unsubscribe() -> None:
            with self._lock:
                wakes = self._wakes.get(job_id, set())
                wakes.discard(wake)
                if not wakes:
                    self._wakes.pop(job_id, None)

        return unsubscribe

    def followed(self, job_id: str) -> bool:
        """Whether somebody waits for the job, or watches it."""
        with self._lock:
            return job_id in self._wakes

    def committed(self, job_id: str) -> None:
        """Tell whoever follows the job that there is something to read."""
        with self._lock:
            wakes = tuple(self._wakes.get(job_id, ()))
        for wake in wakes:
            wake()

    def events(self, job_id: str, after: int = 0) -> Sequence[Event]:
        """What happened since event `after`: committed trials, the progress they make, and the end; raises UnknownJob.

        A trial's event has four times its row's id, the progress after it one more, that of the finals two more, the
        end three more.
        """
        seen = after // _EACH
        trials, job = self._database.read(
            lambda session: (Trials(session).of_job(job_id, seen), JobRows(session).get(job_id))
        )
        if job is None:
            raise UnknownJob(f"there is no job {job_id}")
        job = self._now(job)
        events = [Event(_EACH * (trial.id or 0), "trial", trial_data(trial)) for trial in trials]
        last = events[-1].id if events else _EACH * seen
        events.append(Event(last + (2 if job.phase == FINALS else 1), "progress", progress(job)))
        if job.state in ENDED:
            events.append(Event(last + 3, "end", {"id": job.id, "state": job.state, **progress(job)}))
        return [event for event in events if event.id > after]


def progress(job: JobRecord) -> dict[str, Any]:
    """How far a job is: trials done, of how many at most, the fastest median so far in milliseconds, what it does now.

    `eta_seconds` is the time left, None while nobody can say.
    """
    return {
        "done": job.done,
        "total": job.total,
        "best_ms": job.best_ms,
        "phase": job.phase,
        "eta_seconds": job.eta_seconds,
    }


def trial_data(trial: TrialRecord) -> dict[str, Any]:
    """A trial as its event carries it."""
    return {
        "id": trial.id,
        "problem": trial.problem.key,
        "round": trial.round,
        "kernel": trial.kernel,
        "config": dict(trial.config),
        "dropped": trial.dropped,
        "state": trial.state,
        "stage": trial.stage,
        "reason": trial.reason,
        "median_ms": trial.median_ms,
        "gflops": trial.problem.flops / trial.median_ms / 1e6 if trial.median_ms else None,
    }
