"""What happens to all jobs, read once however many follow it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.services.jobs.service import JobService, progress, trial_data
from app.services.principal import ANONYMOUS, Principal
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import JobRepository, TrialRepository

MOST_REPLAYED: Final = 1000  # trials that a follower who was away is told; older ones are in the list of trials


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A trial, or a job as it stands; `id` is that of the newest trial that was committed by then, `owner` whose."""

    id: int
    name: str
    owner: str
    data: Mapping[str, Any]

    def concerns(self, principal: Principal) -> bool:
        """Whether a principal may know of it: what is its own, and everything where nobody has a name."""
        return principal.name in {self.owner, ANONYMOUS.name}


class JobFeed:
    """The events of all jobs since the last look. One caller at a time reads; `wake` may be called by any thread."""

    def __init__(self, database: Database, jobs: JobService) -> None:
        self._database, self._jobs = database, jobs
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._last = 0

    def follow(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Begin here, and call `wake` after each commit that concerns a job; the result ends that."""
        self._last = self._database.read(lambda session: TrialRepository(session).last_id())

        def changed(job_id: str) -> None:
            with self._lock:
                self._changed.add(job_id)
            wake()

        return self._jobs.subscribe_all(changed)

    def news(self) -> Sequence[FeedEvent]:
        """Trials that were committed since the last call, then the jobs that changed, as they stand."""
        with self._lock:
            changed, self._changed = self._changed, set()
        events = self._events(changed, self._last)
        self._last = max((event.id for event in events), default=self._last)
        return events

    def missed(self, after: int | None) -> Sequence[FeedEvent]:
        """At most MOST_REPLAYED trials after event `after` (None: none), then each job that has not ended."""
        unfinished = self._database.read(lambda session: JobRepository(session).unfinished())
        last = self._database.read(lambda session: TrialRepository(session).last_id()) if after is None else after
        return self._events({job.id for job in unfinished}, last)

    def _events(self, changed: set[str], after: int) -> list[FeedEvent]:
        trials = self._database.read(lambda session: TrialRepository(session).newest(after, MOST_REPLAYED))
        ids = dict.fromkeys([*(trial.job_id for trial in trials), *sorted(changed)])
        found = self._database.read(lambda session: JobRepository(session).some(list(ids)))
        jobs = {job.id: self._jobs.with_times(job) for job in found}
        last = max((trial.id or 0 for trial in trials), default=after)
        events = [
            FeedEvent(trial.id or 0, "trial", jobs[trial.job_id].principal, {"job": trial.job_id} | trial_data(trial))
            for trial in trials
            if trial.job_id in jobs
        ]
        return events + [FeedEvent(last, "job", job.principal, job_data(job)) for job in jobs.values()]


def job_data(job: JobRecord) -> dict[str, Any]:
    """A job as its event carries it: whoever wants its result, which may be large, asks for the job."""
    return {"id": job.id, "kind": job.kind, "state": job.state, "progress": progress(job)}
