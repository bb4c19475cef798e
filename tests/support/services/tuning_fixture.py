"""One device and one database, and tunes of single shapes between them, without a service around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.devices.fleet import Fleet, Unit
from app.services.best.lookup import BestConfigs
from app.services.best.quarantine import Quarantine
from app.services.jobs.service import JobService, new_job
from app.services.tuning.progress import JobProgress
from app.services.tuning.request import ListedConfig, TuneSpec, max_trials
from app.services.tuning.shape_tuner import ShapeTuner, TuningContext
from app.store.database import Database, migrate, open_database
from app.store.records import BestRecord, FaultRecord, JobRecord, TrialRecord
from app.store.repository import FaultRepository, JobRepository, TrialRepository
from app.tuning import budget, finals
from kernels.problem import Problem
from kernels.space import Config


@dataclass
class House:
    """What a service has open; `stops` says when a tune is to be interrupted."""

    fleet: Fleet
    context: TuningContext
    stops: Callable[[], bool] = field(default=lambda: False)

    @property
    def unit(self) -> Unit:
        return self.fleet.unit()

    @property
    def database(self) -> Database:
        return self.context.database

    def job(self, problem: Problem, configs: Sequence[Config] | None = None, **rest: Any) -> JobRecord:
        """A running job of one shape, with a small budget; `configs` are tiled's that it tries, default beside them."""
        spec = TuneSpec(
            (problem,),
            (self.unit.device.id,),
            ("tiled",),
            "auto" if configs is None else "exhaustive",
            budget.Budget(6 if configs is None else None, 60.0),
            None if configs is None else tuple(ListedConfig("tiled", one) for one in configs),
        )
        job = new_job("tune", {**spec.to_json(), **rest})
        job = replace(job, id=f"{len(self.context.jobs.list()) + 1:08x}{job.id[8:]}")
        self.database.write(lambda session: JobRepository(session).add(job))
        self.database.write(lambda session: JobRepository(session).start(job.id, 1, datetime.now(UTC)))
        return job

    def attempts(self, job: JobRecord) -> ShapeTuner:
        spec = TuneSpec.from_json(job.request)
        (problem,) = spec.problems
        progress = JobProgress(spec.budget, [max_trials(problem, self.unit.device, spec)], self.stops)
        return ShapeTuner(self.context, job.id, spec, self.unit, problem, progress.begin(0, self.unit.device.id))

    def tune(self, job: JobRecord) -> BestRecord:
        """Tune the job's shape to its end."""
        best = self.attempts(job).tune()
        assert best is not None
        return best

    def trials(self, job: JobRecord, round_: str | None = None, **filters: Any) -> list[TrialRecord]:
        """The job's trials, of one round or all."""
        return self.database.read(
            lambda session: TrialRepository(session).search(job_id=job.id, round=round_, limit=1000, **filters)
        )

    def faults(self) -> list[FaultRecord]:
        device = self.unit.device
        return self.database.read(lambda session: FaultRepository(session).of(device.model, device.environment))


@contextmanager
def brief_finals() -> Iterator[None]:
    """Let finals take few rounds, in time enough: what these tests are about does not depend on how sure times are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finals, "_ROUNDS", 6)
        patch.setattr(finals, "_REPORT_ROUNDS", 6)
        patch.setattr(budget, "FINALS", (60.0, 60.0))
        yield


@contextmanager
def house(fleet: Fleet, file: Path) -> Iterator[House]:
    """A house on a database, which is made where there is none."""
    url = f"sqlite:///{file}"
    migrate(url)
    with open_database(url) as database:
        quarantine = Quarantine.load(database)
        best = BestConfigs.load(fleet, database, quarantine)
        yield House(fleet, TuningContext(database, JobService(database), best, quarantine))
