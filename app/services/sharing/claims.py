"""JobClaims: which of the jobs in a database that services share this one runs."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from app.devices.fleet import Unit
from app.errors import TilewiseError, UnknownJob
from app.services.principal import IDLE
from app.store.database import Database, revisions
from app.store.records import JobRecord
from app.store.repository import JobRepository
from app.store.sharing.claims import ClaimRepository, HeldClaims

_LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 0.5  # seconds between looks for jobs whose service is gone
_LOST: Final = {"code": "lost", "error": "the service that was making the product is gone"}
MATMUL: Final = "matmul"  # the kind of jobs whose operands only the service that took them has


class JobClaims:
    """Claims jobs for the devices that have none, and holds on to them, in a thread of its own.

    A claim holds for `lease` seconds, and is renewed thrice in that time. A job that is *placed* on a unit waits for
    its thread, or has it.
    """

    def __init__(self, database: Database, units: Sequence[Unit], lease: float) -> None:
        self.held = HeldClaims(uuid4().hex)
        self._database, self._units, self._lease = database, units, lease
        self._placed: dict[str, tuple[str, bool]] = {}  # the unit's id, and whether it is idle work
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._renew_at = 0.0
        self._refused: str | None = None

    def start(self, kinds: Collection[str], accept: Callable[[JobRecord], None]) -> None:
        """Claim jobs of some kinds from now on, and have each accepted by the threads of its devices."""
        self._thread = threading.Thread(target=self._run, args=(kinds, accept), name="claims", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give back what has not ended: another service takes it up at once."""
        self._closing.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout=5)
        fences = self.held.fences()
        try:
            self._database.write(lambda session: self._claims(session).release(fences))
        except TilewiseError as error:
            _LOG.warning("claims are not given back, and lapse: %s", error.message)

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def take_new(self, session: Any, job_id: str, device_id: str | None = None) -> None:
        """Claim a job in the transaction that makes it; on a device it is idle work, which gives way to any other."""
        self.held.hold(job_id, self._claims(session).take(job_id))
        if device_id is not None:
            with self._lock:
                self._placed[job_id] = device_id, True

    def done(self, job_id: str) -> None:
        """Nobody works on a job here any more; one that has not ended is given back."""
        fence = self.held.drop(job_id)
        with self._lock:
            self._placed.pop(job_id, None)
        if fence is not None and not self._closing.is_set():
            try:
                self._database.write(lambda session: self._claims(session).release({job_id: fence}))
            except TilewiseError as error:
                _LOG.warning("the claim of job %s lapses: %s", job_id, error.message)
        self.wake()

    def models_of(self, device_ids: Iterable[str]) -> str:
        """The models of some devices, as a job's row has them."""
        models = {unit.device.id: unit.device.model for unit in self._units}
        return json.dumps([models[device_id] for device_id in device_ids])

    def devices_of(self, job: JobRecord, device_ids: Sequence[str]) -> tuple[str, ...]:
        """The devices of this service that stand for those that a request names: equal ones, by their models."""
        return devices_here(job.device_models, device_ids, self._units)

    def _claims(self, session: Any) -> ClaimRepository:
        return ClaimRepository(session, self.held.service, self._lease)

    def _run(self, kinds: Collection[str], accept: Callable[[JobRecord], None]) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            try:
                self._renew()
                if self._knows_schema():
                    self._end_lapsed()
                    while not self._closing.is_set() and (job := self._claim(kinds)) is not None:
                        accept(job)
            except TilewiseError as error:
                _LOG.warning("no job is claimed: %s", error.message)
            self._wake.wait(min(_LOOK, self._lease / 6))

    def _renew(self) -> None:
        fences = self.held.fences()
        if monotonic() < self._renew_at or not fences:
            return
        for job_id in self._database.write(lambda session: self._claims(session).renew(fences)):
            if self.held.fence(job_id) == fences[job_id]:
                self.held.lose(job_id)
        self._renew_at = monotonic() + self._lease / 3

    def _knows_schema(self) -> bool:
        """Whether the database has the schema that this program knows; a newer one's work is left to newer services."""
        found = self._database.read(lambda session: self._claims(session).revision())
        known = found == revisions()[-1]
        if not known and self._refused != found:
            _LOG.warning("the database has schema %s now: no job is claimed here, what is known is answered", found)
        self._refused = None if known else found
        return known

    def _end_lapsed(self) -> None:
        def end(session: Any) -> list[str]:
            lapsed = self._claims(session).lapsed(MATMUL)
            for job_id in lapsed:
                self.held.hold(job_id, self._claims(session).take(job_id))
                JobRepository(session).fail(job_id, _LOST)
            return lapsed

        for job_id in self._database.write(end):
            self.held.drop(job_id)

    def _claim(self, kinds: Collection[str]) -> JobRecord | None:
        """Claim a job for a unit that has none, or only idle work; None if there is no such job or unit."""
        wanted = self._database.read(lambda session: self._claims(session).wanted(kinds))
        free = self._free(idle=False)
        among, skipped = (free, None) if free else (self._free(idle=True), IDLE.name)
        fits = {models: unit for models in wanted if (unit := self._fitting(models, among)) is not None}
        if not fits:
            return None
        held = [*self.held.fences(), *self.held.lost()]

        def claim(session: Any) -> tuple[JobRecord | None, int]:
            found = self._claims(session).claim(kinds, fits, held, IDLE.name, skipped)
            return (None, 0) if found is None else (JobRepository(session).get(found[0]), found[1])

        job, fence = self._database.write(claim)
        if job is not None:
            self.held.hold(job.id, fence)
            with self._lock:
                self._placed[job.id] = fits[job.device_models].device.id, job.principal == IDLE.name
        return job

    def _free(self, *, idle: bool) -> list[Unit]:
        """The units without a job; with `idle`, those whose only jobs are idle work."""
        with self._lock:
            taken = {device_id for device_id, is_idle in self._placed.values() if not (idle and is_idle)}
        return [unit for unit in self._units if unit.device.id not in taken and unit.trials.takes_calls]

    def _fitting(self, models: str | None, free: Sequence[Unit]) -> Unit | None:
        """The free unit that a job of these models begins on; None if a model is not here, or is busy."""
        wanted = [] if models is None else json.loads(models)
        if not {*wanted} <= {unit.device.model for unit in self._units}:
            return None
        return next((unit for unit in free if not wanted or unit.device.model == wanted[0]), None)


@dataclass(frozen=True, slots=True)
class JobAdder:
    """Saves new jobs for some devices; with claims as any service may take them that has such, but `mine`."""

    claims: JobClaims | None
    device_ids: Sequence[str]
    mine: bool = False

    def __call__(self, session: Any, job: JobRecord, record: Callable[[Any, str], None] | None = None) -> None:
        """Save one in the transaction of the session, in which `record` notes its id elsewhere."""
        if self.claims is None:
            JobRepository(session).add(job)
        else:
            JobRepository(session).add(replace(job, device_models=self.claims.models_of(self.device_ids)))
            if self.mine:
                self.claims.take_new(session, job.id, self.device_ids[0])
        if record is not None:
            record(session, job.id)


def devices_here(models: str | None, device_ids: Sequence[str], units: Sequence[Unit]) -> tuple[str, ...]:
    """The ids of units of the models that a row names, one for each of a request's devices.

    A device is itself where one of that id and model is here. Raises UnknownJob where a model is not here.
    """
    by_id = {unit.device.id: unit.device.model for unit in units}
    if models is None:
        return tuple(device_ids)
    wanted = list(zip(device_ids, json.loads(models), strict=True))
    if all(by_id.get(device_id) == model for device_id, model in wanted):
        return tuple(device_ids)
    own = {model: cycle([each for each, its in by_id.items() if its == model]) for _, model in wanted}
    try:
        return tuple(dict.fromkeys(next(own[model]) for _, model in wanted))
    except StopIteration:
        raise UnknownJob(f"the job is for {models}, and no such device is here") from None
