"""JobSharing: what differs for tune jobs where several services share their database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from app.errors import StoreFailed
from app.services.principal import Principal
from app.services.sharing.claims import JobAdder, JobClaims
from app.services.tuning.request import TuneSpec, fingerprint
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import JobRepository

_LOG: Final = logging.getLogger(__name__)


class JobSharing:
    """Without `claims` one service owns the database: every job is its own, and its devices are those of requests."""

    def __init__(self, database: Database, claims: JobClaims | None) -> None:
        self._database, self._claims = database, claims
        self.is_shared = claims is not None

    def start(self, kinds: Collection[str], accept: Callable[[JobRecord], None]) -> None:
        """Accept what an earlier process left unfinished; of a shared database what it claims from now on."""
        if self._claims is not None:
            self._claims.start(kinds, accept)
            return
        for job in self._database.read(lambda session: JobRepository(session).unfinished()):
            accept(job)

    def offer(self) -> bool:
        """Have a saved job claimed by whoever has a device for it; False where there is nobody else."""
        if self._claims is not None:
            self._claims.wake()
        return self.is_shared

    def adder(self, device_ids: Sequence[str], *, mine: bool = False) -> JobAdder:
        """What saves a job for devices; `mine` is one that no other service may take."""
        return JobAdder(self._claims, device_ids, mine=mine)

    def waiting(self, kinds: Collection[str], queued: int) -> int:
        """How many jobs of some kinds wait for a device, of which `queued` are known here."""
        if not self.is_shared:
            return queued
        return self._database.read(lambda session: JobRepository(session).waiting(kinds))

    def devices_of(self, job: JobRecord, device_ids: Sequence[str]) -> tuple[str, ...]:
        """The devices here that stand for those of a job's request."""
        return tuple(device_ids) if self._claims is None else self._claims.devices_of(job, device_ids)

    def spec_of(self, job: JobRecord) -> TuneSpec:
        """What a tune job is to do, on devices that are here."""
        spec = TuneSpec.from_json(job.request)
        return replace(spec, devices=self.devices_of(job, spec.devices))

    def work(self, principal: Principal, spec: TuneSpec) -> str:
        """The fingerprint of a spec; on a shared database with its devices' models, since their ids are each host's."""
        work = fingerprint(principal, spec)
        return work if self._claims is None else f"{work} {self._claims.models_of(spec.devices)}"

    def is_lost(self, job_id: str) -> bool:
        """Whether another service has claimed a job that is worked on here."""
        return self._claims is not None and self._claims.held.is_lost(job_id)

    def goes_on(self, error: Exception) -> bool:
        """Whether a job that met an error is taken up again, with what was saved, rather than ended."""
        if not self.is_shared or not isinstance(error, StoreFailed):
            return False
        _LOG.warning("a job is left for whoever claims it: %s", error.message)
        return True

    def done(self, job_id: str) -> None:
        """Nobody works on a job here any more."""
        if self._claims is not None:
            self._claims.done(job_id)
