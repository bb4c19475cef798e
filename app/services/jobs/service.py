"""Jobs: list, read, cancel, wait, and the events of their progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from app.errors import ClaimLost, Closing, StoreFailed, UnknownJob
from app.services.jobs.export import recordings
from app.services.jobs.write_retry import Write, WriteRetry
from app.services.principal import ANONYMOUS, Principal
from app.services.tuning.progress import FINALS, PREPARING, SEARCH, JobTimes
from app.services.tuning.request import budget_seconds
from app.store.database import Database
from app.store.records import JobRecord, PointRecord, ProfileRecord, TrialRecord
from app.store.repository import DeviceRepository, JobRepository, ProfileRepository, TrialRepository
from app.store.sharing.claims import HeldClaims
from app.tuning.replay import lines

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
CANCELLING: Final = "cancelling"  # a running job's state, as it is told, once its cancellation is asked for
_PAGE: Final = 5000  # trials read at once
_LINES: Final = 500  # of recordings in one piece
_LOG: Final = logging.getLogger(__name__)
_EACH: Final = 8  # events that there may be for one trial, in the order of their numbers
_TOLD, _FIRST_PREPARING, _SEARCHING, _FINALS, _PREPARING, _CANCELLING, _END = range(1, 8)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One server-sent event of a job: `id` rises, `name` is progress, trial or end, `data` is JSON."""

    id: int
    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs and trials there are, by state."""

    jobs: Mapping[str, int]
    trials: Mapping[str, int]


def new_job(
    kind: str, request: dict[str, Any], fingerprint: str = "", total: int = 0, principal: Principal = ANONYMOUS
) -> JobRecord:
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
        principal=principal.name,
    )


class JobService:
    """The jobs of one database. Every method blocks for a query; none takes a device.

    Between `start` and `stop` an end that the database does not take is written as soon as it does. `held` are the
    claims of a service that shares the database.
    """

    def __init__(self, database: Database, held: HeldClaims | None = None) -> None:
        self._database, self._held = database, held
        self._followers: dict[str, set[Callable[[], None]]] = {}
        self._followers_of_all: set[Callable[[str], None]] = set()
        self._times: dict[str, Callable[[], JobTimes]] = {}
        self._active: set[str] = set()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self._ends = WriteRetry((StoreFailed, Closing), self._failure_to_store)

    @property
    def kept(self) -> dict[str, tuple[str, ...]]:
        """The jobs of which something is kept in memory, by what that is."""
        kept: dict[str, Iterable[str]] = {"followers": self._followers, "times": self._times, "active": self._active}
        kept |= {"cancelled": self._cancelled, "ends": self._ends.waiting}
        return {name: tuple(ids) for name, ids in kept.items()}

    def start(self) -> None:
        """Start the thread that retries ends that the database did not take."""
        self._ends.start()

    def stop(self) -> None:
        """Stop retrying; a job whose end is not written counts as interrupted at the next start."""
        self._ends.stop()

    def get(self, job_id: str, principal: Principal = ANONYMOUS) -> JobRecord:
        """A principal's job; raises UnknownJob. To whoever is anonymous, where nobody has a name, all jobs belong."""
        record = self._database.read(lambda session: JobRepository(session).get(job_id))
        if record is None or principal.name not in {record.principal, ANONYMOUS.name}:
            raise UnknownJob(f"there is no job {job_id}")
        return self.with_times(record)

    def list(
        self,
        state: str | None = None,
        kind: str | None = None,
        before: str | None = None,
        limit: int = 50,
        principal: Principal = ANONYMOUS,
    ) -> Sequence[JobRecord]:
        """A principal's jobs, newest first; `before` is the id of the last one already seen."""
        owner = None if principal.name == ANONYMOUS.name else principal.name
        page = self._database.read(lambda session: JobRepository(session).list(state, kind, before, limit, owner))
        return [self.with_times(record) for record in page]

    def set_times(self, job_id: str, times: Callable[[], JobTimes] | None) -> None:
        """Set the function that gives a running job's times and devices; None removes it."""
        with self._lock:
            if times is None:
                self._times.pop(job_id, None)
            else:
                self._times[job_id] = times

    def with_times(self, record: JobRecord) -> JobRecord:
        """A job with its times as of now, not of its last trial; `cancelling` if its cancellation was asked for."""
        times = self._times.get(record.id) if record.state == "running" else None
        if times is not None:
            told = times()
            record = replace(record, eta_seconds=told.eta_seconds, spent_seconds=told.elapsed, devices=told.devices)
        return replace(record, state=CANCELLING) if record.state == "running" and record.cancel_requested else record

    def trials(self, **filters: Any) -> Sequence[TrialRecord]:
        """Stored trials by device_model, problem_key, kernel, state, job_id, round, after (an id) and limit."""
        return self._database.read(lambda session: TrialRepository(session).search(**filters))

    def profiles(self, problem: Mapping[str, Any], **filters: Any) -> Sequence[ProfileRecord]:
        """Stored profiles, newest first, by device_model, job_id, before (a number) and limit."""
        return self._database.read(lambda session: ProfileRepository(session).list(problem, **filters))

    def points(self, problem: Mapping[str, Any], **filters: Any) -> Sequence[PointRecord]:
        """Stored trials without their samples, by the filters of `trials`."""
        return self._database.read(lambda session: TrialRepository(session).points(problem, **filters))

    def recordings(self, **filters: Any) -> Iterator[str]:
        """All trials by the filters of `trials` but `after` and `limit`, as the text of recordings, in pieces.

        The trials of one space are in memory at a time.
        """
        devices = self._database.read(lambda session: DeviceRepository(session).all())
        for space in self._database.read(lambda session: TrialRepository(session).spaces(**filters)):
            text = lines(recordings(self._all_trials(filters | space), devices))
            while piece := "".join(islice(text, _LINES)):
                yield piece

    def trials_by_space(self, **filters: Any) -> Iterator[Sequence[TrialRecord]]:
        """All trials by the filters of `recordings`, those of one device model, problem and kernel's text at a time."""
        for space in self._database.read(lambda session: TrialRepository(session).spaces(**filters)):
            yield self._all_trials(filters | space)

    def _all_trials(self, filters: Mapping[str, Any]) -> Sequence[TrialRecord]:
        found: list[TrialRecord] = []
        while page := self.trials(**filters, after=found[-1].id if found else 0, limit=_PAGE):
            found += page
        return found

    def counts(self) -> JobCounts:
        """How many jobs and trials there are, by state."""
        return self._database.read(
            lambda session: JobCounts(JobRepository(session).tally(), TrialRepository(session).tally())
        )

    def cancel(self, job_id: str, principal: Principal) -> JobRecord:
        """Ask a job to stop; one that has ended stays as it is. Raises UnknownJob."""
        found = self.get(job_id, principal)
        if found.state == "running" and job_id not in self._active and self._held is None:
            self.end(job_id, "cancelled")  # no thread works on it that would stop
        elif found.state not in ENDED:
            self.mark_cancelled(job_id)
            self._database.write(lambda session: JobRepository(session).request_cancel(job_id, datetime.now(UTC)))
            self.notify(job_id)
        job = self.get(job_id)
        with self._lock:
            if job.state in ENDED and job_id not in self._active:
                self._cancelled.discard(job_id)
        return job

    def mark_cancelled(self, job_id: str) -> None:
        """The cancellation of a job was asked for; another service's job is stopped there."""
        with self._lock:
            if self._held is None or job_id in self._held:
                self._cancelled.add(job_id)

    def find_cancelled(self) -> None:
        """Mark the jobs held here whose cancellation was asked for unheard."""
        for job in self._database.read(lambda session: JobRepository(session).unfinished()):
            if job.cancel_requested:
                self.mark_cancelled(job.id)

    def mark_active(self, job_id: str) -> None:
        """Mark a job that a thread works on: its cancellation is remembered until `mark_inactive`."""
        with self._lock:
            self._active.add(job_id)

    def mark_inactive(self, job_id: str) -> None:
        """Unmark a job that no thread works on any more."""
        with self._lock:
            self._active.discard(job_id)
            self._cancelled.discard(job_id)

    def end(
        self,
        job_id: str,
        state: str,
        result: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
        **more: float,
    ) -> None:
        """End a job, now or as soon as the database takes it; followers are notified only then.

        `more` may be its last `done` and `spent_seconds`.
        """
        write = partial(self._write_end, job_id, state, result, error, datetime.now(UTC), **more)
        self._ends.write(f"job {job_id}", write)

    def _write_end(
        self,
        job_id: str,
        state: str,
        result: dict[str, Any] | None,
        error: dict[str, Any] | None,
        at: datetime,
        **more: float,
    ) -> None:
        try:
            self._database.write(
                lambda session: JobRepository(session).finish(job_id, state, result, error, at, **more)
            )
        except ClaimLost as lost:
            _LOG.warning("%s: what became of it here is dropped", lost.message)
        self.mark_inactive(job_id)
        self.notify(job_id)

    def _failure_to_store(self, name: str, error: Exception) -> Write:
        """The end of a job whose result cannot be stored."""
        del error
        failure = {"code": "internal", "error": "the service has a fault: see its log"}
        return partial(self._write_end, name.removeprefix("job "), "failed", None, failure, datetime.now(UTC))

    def is_cancelled(self, job_id: str) -> bool:
        """Whether the cancellation of a queued or active job was asked for in this process."""
        with self._lock:
            return job_id in self._cancelled

    def wait(self, job_id: str, seconds: float) -> JobRecord:
        """The job once it has ended, or as it is after `seconds`."""
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
        """Call `wake`, from any thread, after each commit that concerns the job; the result unsubscribes."""
        with self._lock:
            self._followers.setdefault(job_id, set()).add(wake)

        def unsubscribe() -> None:
            with self._lock:
                wakes = self._followers.get(job_id, set())
                wakes.discard(wake)
                if not wakes:
                    self._followers.pop(job_id, None)

        return unsubscribe

    def subscribe_all(self, wake: Callable[[str], None]) -> Callable[[], None]:
        """As `subscribe`, for whatever job: `wake` is given its id."""
        with self._lock:
            self._followers_of_all.add(wake)

        def unsubscribe() -> None:
            with self._lock:
                self._followers_of_all.discard(wake)

        return unsubscribe

    def is_followed(self, job_id: str) -> bool:
        """Whether a client waits for the job, or follows its events."""
        with self._lock:
            return job_id in self._followers

    def followed(self) -> Sequence[str]:
        """The jobs that clients wait for, or whose events they follow."""
        with self._lock:
            return tuple(self._followers)

    def notify(self, job_id: str) -> None:
        """Wake the followers of a job after a commit."""
        with self._lock:
            wakes, wakes_of_all = tuple(self._followers.get(job_id, ())), tuple(self._followers_of_all)
        for wake in wakes:
            wake()
        for wake_of_all in wakes_of_all:
            wake_of_all(job_id)

    def events(self, job_id: str, after: int = 0) -> Sequence[JobEvent]:
        """What happened since event `after`: committed trials, the progress they make, and the end; raises UnknownJob.

        A trial's event has eight times its row's id; what is told after it has a number of its own for each phase, in
        the order of phases, and the end has the last.
        """
        seen = after // _EACH
        trials, job = self._database.read(
            lambda session: (TrialRepository(session).of_job(job_id, seen), JobRepository(session).get(job_id))
        )
        if job is None:
            raise UnknownJob(f"there is no job {job_id}")
        job = self.with_times(job)
        events = [JobEvent(_EACH * (trial.id or 0), "trial", trial_data(trial)) for trial in trials]
        last = events[-1].id if events else _EACH * seen
        events.append(JobEvent(last + _number(job, first=last == 0), "progress", progress(job)))
        if job.state in ENDED:
            events.append(JobEvent(last + _END, "end", {"id": job.id, "state": job.state, **progress(job)}))
        return [event for event in events if event.id > after]


def _number(job: JobRecord, *, first: bool) -> int:
    """The number of the event after a trial that tells the job's progress; `first`: there was no trial yet."""
    if job.state == CANCELLING:
        return _CANCELLING
    if job.phase == PREPARING:
        return _FIRST_PREPARING if first else _PREPARING
    return {SEARCH: _SEARCHING, FINALS: _FINALS}.get(job.phase or "", _TOLD)


def progress(job: JobRecord) -> dict[str, Any]:
    """How far a job is: trials done, of how many at most, the search's fastest median so far, what it does now.

    `elapsed_seconds` are those spent on the job so far, of `budget_seconds` (None: not limited); `eta_seconds` is the
    time left, None while it cannot be estimated. `devices` are those that tune a running job's shapes.
    """
    return {
        "done": job.total if job.kind == "matmul" and job.state == "succeeded" else job.done,
        "total": job.total,
        "search_best_ms": job.best_ms,
        "phase": job.phase,
        "eta_seconds": job.eta_seconds,
        "elapsed_seconds": _elapsed(job),
        "budget_seconds": budget_seconds(job.request) if job.kind == "tune" else None,
        "devices": [asdict(device) for device in job.devices],
    }


def _elapsed(job: JobRecord) -> float | None:
    """Seconds spent on a job; None before it began."""
    if job.spent_seconds is not None or job.started_at is None:
        return job.spent_seconds
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()


def trial_data(trial: TrialRecord) -> dict[str, Any]:
    """A trial as its event carries it."""
    return {
        "id": trial.id,
        "problem": asdict(trial.problem),
        "round": trial.round,
        "kernel": trial.kernel,
        "config": dict(trial.config),
        "dropped": trial.dropped,
        "state": trial.state,
        "stage": trial.stage,
        "reason": trial.reason,
        "median_ms": trial.median_ms,
        "ci95_ms": None if trial.ci95_lo_ms is None else [trial.ci95_lo_ms, trial.ci95_hi_ms],
        "gflops": trial.problem.flops / trial.median_ms / 1e6 if trial.median_ms else None,
        "conditions": None if trial.conditions is None else dict(trial.conditions),
        "retaken": trial.retaken,
        "created_at": trial.created_at.isoformat(),
    }
