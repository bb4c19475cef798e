"""StoreFollower: has what a service keeps in memory follow what other services commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.services.access.api_keys import ApiKeys
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.jobs.service import JobService
from app.services.sharing.best import SharedBestConfigs
from app.store.database import Database
from app.store.records import FaultRecord
from app.store.repository import FaultRepository
from app.store.sharing.notices import API_KEY, BEST, CANCEL, FAULT, JOB, Notice
from kernels.problem import Problem


@dataclass(frozen=True)
class Followed:
    """What is kept in memory of a database that services share."""

    best: SharedBestConfigs
    misses: MissCounter
    quarantine: Quarantine
    jobs: JobService
    keys: ApiKeys


class StoreFollower:
    """Takes what `service` hears: bests, faults, keys and jobs are then as the database has them.

    Its methods are for one thread, and raise StoreFailed where the database cannot be read. `wake` looks for jobs.
    """

    def __init__(self, database: Database, service: str, followed: Followed, wake: Callable[[], None]) -> None:
        self._database, self._service, self._followed, self._wake = database, service, followed, wake
        self._faults: set[FaultRecord] = set()

    def heard(self, notices: Sequence[Notice]) -> None:
        """Take what was committed; its own jobs and keys a service knows."""
        kinds = {notice.kind for notice in notices}
        others = [notice for notice in notices if notice.origin != self._service]
        bests = {(notice.subject[0], Problem(**notice.subject[1])) for notice in notices if notice.kind == BEST}
        self._refresh_bests(bests)
        if FAULT in kinds:
            self._read_faults()
        if any(notice.kind == API_KEY for notice in others):
            self._followed.keys.refresh()
        for job_id in dict.fromkeys(notice.subject[0] for notice in others if notice.kind == CANCEL):
            self._followed.jobs.mark_cancelled(job_id)
        for job_id in dict.fromkeys(notice.subject[0] for notice in others if notice.kind in {JOB, CANCEL}):
            self._followed.jobs.notify(job_id)
        if JOB in kinds:
            self._wake()

    def missed(self) -> None:
        """Read again all that may have changed unheard."""
        self._followed.best.reload()
        self._read_faults()
        self._followed.keys.refresh()
        self._followed.jobs.find_cancelled()
        for job_id in self._followed.jobs.followed():
            self._followed.jobs.notify(job_id)
        self._wake()

    def _refresh_bests(self, places: set[tuple[str, Problem]]) -> None:
        self._followed.best.refresh(places)
        for place in places:
            if self._followed.best.record(*place) is not None:
                self._followed.misses.drop(*place)

    def _read_faults(self) -> None:
        stored = self._database.read(lambda session: FaultRepository(session).held())
        fresh = [fault for fault in stored if fault not in self._faults]
        self._faults.update(fresh)
        if fresh:
            self._followed.quarantine.remember(*fresh)
            self._followed.best.changed()
