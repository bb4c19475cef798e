"""Jobs in a simulation: tunes, products made as jobs, and idempotent requests, on a database that fails now and then.

Job service, queue, executor, retried writes and results are the service's own, and so is everything of
`served_products`; the database is SQLite in memory, behind one lock. A tune's shape takes a few trials that do nothing.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final, cast
from unittest.mock import patch
from uuid import UUID

from sqlalchemy import StaticPool, create_engine
from sqlalchemy.orm import Session

from app.devices.fleet import Unit
from app.devices.process import CallStopped
from app.errors import (
    Closing,
    DeviceError,
    KeyInUse,
    NoRoom,
    OverShare,
    QueueFull,
    StoreFailed,
    TilewiseError,
)
from app.services.jobs import service as jobs_module
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import Idempotency, IdempotentRequest
from app.services.jobs.service import ENDED, JobService
from app.services.principal import ANONYMOUS
from app.services.tuning import executor as executor_module
from app.services.tuning.progress import JobProgress, ShapeProgress
from app.services.tuning.request import TuneSpec
from app.services.tuning.service import TuningService
from app.services.tuning.shape_tuner import TuningContext
from app.store.database import Database
from app.store.records import AnswerRecord, BestRecord, JobRecord
from app.store.repository import BestRepository, JobRepository, TrialRepository
from app.store.tables import Base
from app.tuning.budget import Budget
from app.worker.serving import batched, product
from kernels.problem import Problem
from tests.simulation import served_products
from tests.simulation.primitives import OrderedSet, SimulatedLock, replaced, simulated
from tests.simulation.scheduler import Simulation
from tests.simulation.served_products import Faults, World, measure
from tests.simulation.turns import PREFIXES
from tests.support.store.stored_records import TRIAL

_TUNED: Final = (Problem(4, 6, 5), Problem(8, 8, 8))
_WAITING: Final = 120.0  # seconds that a client waits for a job
_REFUSED: Final = (NoRoom, OverShare, QueueFull, StoreFailed, KeyInUse)


@lru_cache(1)
def _schema() -> sqlite3.Connection:
    """A database with the tables and no rows, to copy."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    Base.metadata.create_all(engine)
    return connection


class SimulatedDatabase:
    """In place of Database: a transaction at a time; every one fails while `is_failing`."""

    def __init__(self, simulation: Simulation) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        _schema().backup(self._connection)
        self._engine = create_engine("sqlite://", creator=lambda: self._connection, poolclass=StaticPool)
        self._lock, self._simulation = SimulatedLock(simulation), simulation
        self.is_failing, self.failures = False, 0

    def write(self, work: Callable[[Session], Any]) -> Any:
        """Run a transaction; raises StoreFailed."""
        with self._lock:
            if self.is_failing:
                self.failures += 1
                raise StoreFailed("the disk is full")
            with (
                self._simulation.uninterrupted(),
                Session(self._engine, expire_on_commit=False) as session,
                session.begin(),
            ):
                return work(session)

    read = write

    def close(self) -> None:
        """Free the memory."""
        self._engine.dispose()
        self._connection.close()


class SimulatedTuner:
    """In place of ShapeTuner: as many trials as the budget says, each a call of the worker and a row."""

    def __init__(
        self,
        context: TuningContext,
        job_id: str,
        spec: TuneSpec,
        unit: Unit,
        problem: Problem,
        progress: ShapeProgress,
        _: object,
    ) -> None:
        self.unit, self.problem, self.progress, self.inside, self.serves = unit, problem, progress, 0.0, True
        self._context, self._job_id, self._spec = context, job_id, spec

    def tune(self) -> BestRecord | None:
        """Try, save and promote; None if the job was interrupted."""
        database = self._context.database
        saved = database.read(lambda session: TrialRepository(session).of_job(self._job_id))
        self.progress.resumed(len(saved))
        for number in range(len(saved), self.progress.kernel_budget(1).trials or 1):
            if self.progress.interrupted():
                return None
            try:
                self.unit.trials.call(measure, 2, deadline=20.0, until=self.progress.until_interrupted)
            except (CallStopped, Closing):
                return None
            except DeviceError:
                continue
            self._save(number)
        return self._promoted()

    def _save(self, number: int) -> None:
        config = TRIAL.config.__class__((("BM", number + 1),))
        row = replace(
            TRIAL, job_id=self._job_id, device_model=self.unit.device.model, problem=self.problem, config=config
        )
        left = self.progress.trial_finished()

        def save(session: Session) -> None:
            TrialRepository(session).add(row)
            JobRepository(session).advance(self._job_id, 1.0, left, self.progress.job_elapsed)

        self._context.database.write(save)
        self._context.jobs.notify(self._job_id)

    def _promoted(self) -> BestRecord:
        rows = self._context.database.read(lambda session: TrialRepository(session).of_job(self._job_id))
        if not rows:
            raise DeviceError("no trial ended")
        best = BestRecord(rows[0].device_model, self.problem, rows[0], None, None, None, None, TRIAL.created_at)
        self._context.database.write(lambda session: BestRepository(session).promote(best))
        return best


@dataclass
class Services:
    """What is opened at each start of the service."""

    jobs: JobService
    results: AsyncProducts
    idempotency: Idempotency
    tuning: TuningService

    def stop(self) -> None:
        """Stop, in the service's order."""
        self.tuning.stop()
        self.results.stop()
        self.jobs.stop()


@dataclass
class JobWorld(World):
    """A world with jobs: what clients were told is kept beside."""

    folder: Path = field(kw_only=True)  # of results
    database: SimulatedDatabase = field(init=False)
    told: dict[str, JobRecord] = field(default_factory=dict)  # as a client saw them last
    ended: dict[str, int] = field(default_factory=dict)  # the step at which a client was told of an end
    answered: dict[str, tuple[str, str]] = field(default_factory=dict)  # fingerprint and body by key
    services: Services = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.database = SimulatedDatabase(self.simulation)
        self.stack.callback(self.database.close)

    def open(self) -> None:
        """Start the services."""
        database, nowhere = cast("Database", self.database), cast("Any", None)
        jobs = JobService(database)
        jobs.start()
        results = AsyncProducts(database, jobs, self.matmul, self.folder, 3600.0)
        results.start()
        idempotency = Idempotency(database, 3600.0)
        idempotency.start()
        context = TuningContext(database, jobs, self.best, self.quarantine)
        tuning = TuningService(context, self.fleet, self.misses, lambda _unit, _stop: nowhere, queue=3)
        tuning.start()
        self.services = Services(jobs, results, idempotency, tuning)

    def tune_client(self, count: int) -> None:
        """Ask for tunes, wait for them, cancel some."""
        rng = self.simulation.rng
        for number in range(count):
            self.simulation.sleep(rng.choice((0.0, 0.1, 1.0)))
            budget = Budget(trials=rng.choice((1, 2, 4)))
            spec = TuneSpec((rng.choice(_TUNED),), (), ("naive",), "random", budget, retune=rng.random() < 0.5)
            asked = self.simulation.steps
            try:
                job = self.services.tuning.submit(spec, ANONYMOUS)
            except _REFUSED as error:
                self.outcomes[type(error).__name__] += 1
                continue
            self.tell(job, asked)
            if rng.random() < 0.3:
                self._cancel(job.id, f"cancellation {number}")
            self._await(job.id)

    def _cancel(self, job_id: str, name: str) -> None:
        delay = self.simulation.rng.choice((0.0, 0.01, 0.3))

        def cancel() -> None:
            self.simulation.sleep(delay)
            try:
                self.services.jobs.cancel(job_id, ANONYMOUS)
            except StoreFailed:
                self.outcomes["StoreFailed"] += 1

        self.simulation.spawn(cancel, name)

    def _await(self, job_id: str) -> None:
        """Wait as a client does that follows a job; expects to be woken by its end."""
        asked = self.simulation.now
        while True:
            try:
                job = self.services.jobs.wait(job_id, _WAITING)
                break
            except StoreFailed:
                self.simulation.sleep(0.5)
        self.tell(job)
        assert job.state in ENDED, f"{job_id} is {job.state} after {_WAITING} s"
        assert self.simulation.now - asked < _WAITING - 1, f"nobody was woken by the end of {job_id}"
        self.outcomes[f"{job.kind} {job.state}"] += 1

    def tell(self, job: JobRecord, asked: float = inf) -> None:
        """Take note of what a client was told that `asked` at a step: of an end that anyone had been told by then too.

        A job that several have asked for may have ended while one of them is being answered.
        """
        before = self.told.get(job.id)
        if before is not None and before.state in ENDED and before.state != job.state:
            assert self.ended[job.id] > asked, f"{before} became {job}"
            return
        if job.state in ENDED:
            self.ended.setdefault(job.id, self.simulation.steps)
        self.told[job.id] = job

    def job_client(self, name: str, count: int) -> None:
        """Ask for products as jobs, each with a key; some keys come twice."""
        for number in range(count):
            self.simulation.sleep(self.simulation.rng.choice((0.0, 0.1, 1.0)))
            key = f"key {name} {number}" if self.simulation.rng.random() < 0.7 else "the same key"
            try:
                attempt = self.services.idempotency.claim(ANONYMOUS, key, key)
                if isinstance(attempt, AnswerRecord):
                    self._expect_answer(attempt)
                else:
                    self._answer(attempt)
            except _REFUSED as error:
                self.outcomes[type(error).__name__] += 1

    def _answer(self, attempt: IdempotentRequest) -> None:
        idempotency, results = self.services.idempotency, self.services.results
        try:
            with self.matmul.reserve(Problem(4, 6, 5)) as buffers:
                buffers.a[...], buffers.b[...] = 1.0, 2.0
                job = results.create(buffers, attempt.record_job)
                self.tell(job)
                if self.simulation.rng.random() < 0.2:
                    self._cancel(job.id, f"cancellation of {attempt.key}")
                results.make(job.id, buffers, None, None)
        except TilewiseError:
            idempotency.given_up(attempt)
            raise
        self._await(job.id)
        idempotency.answered(attempt, 202, {}, job.id)
        self.answered[attempt.key] = attempt.key, job.id

    def _expect_answer(self, found: AnswerRecord) -> None:
        print_, body = self.answered.get(found.key, (found.fingerprint, found.body))
        assert (found.fingerprint, found.body) == (print_, body), f"{found.key} has another answer"
        assert found.job_id in self.told, "the key stands for a job that nobody was told of"

    def disk(self, spells: int) -> None:
        """Have the database fail for some time, some times."""
        rng = self.simulation.rng
        for _ in range(spells):
            self.simulation.sleep(rng.choice((0.05, 0.5, 2.0)) * rng.random())
            self.database.is_failing = True
            self.simulation.sleep(rng.choice((0.0, 0.05, 1.0, 5.0)))
            self.database.is_failing = False

    def conduct(self, restarts: int) -> None:
        """Open the services, have clients come, restart now and then, and look at what is left at the end."""
        rng, spawn = self.simulation.rng, self.simulation.spawn
        self.open()
        for _ in range(restarts + 1):
            clients = [partial(self.tune_client, rng.randrange(1, 4)) for _ in range(rng.choice((1, 3)))]
            clients += [partial(self.job_client, str(n), rng.randrange(1, 4)) for n in range(rng.choice((0, 2)))]
            clients += [partial(self.disk, rng.choice((0, 0, 2)))]
            tasks = [spawn(client, f"client {number}") for number, client in enumerate(clients)]
            while not all(task.done for task in tasks) or any("cancellation" in one for one in self.simulation.names):
                self.simulation.sleep(0.1)
            if restarts:
                self.expect_told()
                self._restart_under_way()
        self.simulation.sleep(5.0)
        self.expect_told()
        self._expect_forgotten()
        self.services.stop()

    def _restart_under_way(self) -> None:
        """Stop the services while a tune runs, and start them again: it goes on."""
        try:
            spec = TuneSpec(_TUNED[:1], (), ("naive",), "random", Budget(trials=4), retune=True)
            job = self.services.tuning.submit(spec, ANONYMOUS)
        except QueueFull:
            return
        self.tell(job)
        self.simulation.sleep(self.simulation.rng.choice((0.0, 0.05, 0.5)))
        self.services.stop()
        self.unit.trials.__init__("trials", served_products.set_up, ("trials",), lease=self.lease)  # type: ignore[misc]
        self.open()
        self._await(job.id)

    def expect_told(self) -> None:
        """Expect every job that a client was told of to be there, to have ended, and as it was said."""
        for job_id, before in self.told.items():
            job = self.services.jobs.get(job_id)
            assert job.state in ENDED, f"{job_id} is {job.state}"
            assert before.state not in ENDED or before.state == job.state, f"{before} became {job}"

    def _expect_forgotten(self) -> None:
        """Expect nothing to be kept of jobs that have ended."""
        kept = {**self.services.jobs.kept, "tuning": self.services.tuning.kept}
        assert not any(kept.values()), f"something is kept of jobs that have ended: {kept}"


def run(seed: int) -> tuple[Simulation, Counter[str]]:
    """One run: its simulation, and how many jobs came to what; raises what went wrong."""
    simulation = Simulation(seed)
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIXES)]
    folder = Path(tempfile.mkdtemp(dir=served_products.MEMORY))
    with ExitStack() as stack, simulated(simulation, *modules):
        stack.callback(shutil.rmtree, folder)
        stack.enter_context(replaced(simulation, product, "multiply", served_products.multiply_one))
        stack.enter_context(replaced(simulation, batched, "multiply", served_products.multiply_all))
        stack.enter_context(replaced(simulation, executor_module, "ShapeTuner", SimulatedTuner))
        clock = simulation.inside(simulation.clock, monotonic)
        stack.enter_context(patch.object(JobProgress.__init__, "__defaults__", (clock,)))
        stack.enter_context(patch.object(jobs_module, "set", OrderedSet, create=True))
        drawn = partial(simulation.rng.getrandbits, 128)
        stack.enter_context(replaced(simulation, jobs_module, "uuid4", lambda: UUID(int=drawn())))
        world = JobWorld(simulation, Faults.drawn(simulation), stack, folder=folder / "results")
        served_products.worlds.append(world)
        try:
            simulation.spawn(lambda: world.conduct(simulation.rng.choice((0, 0, 1))), "conductor")
            simulation.spawn(lambda: world.client("client", 3), "product client")
            simulation.spawn(world.saboteur, "saboteur", daemon=True)
            simulation.run()
            world.expect_idle()
        finally:
            served_products.worlds.pop()
    return simulation, world.outcomes
