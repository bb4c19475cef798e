"""WorkloadService: keeps the counted problems of files, and has them tuned by their time at stake."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, BinaryIO, Final

from app.devices.fleet import Fleet, Unit
from app.errors import QuotaExceeded, TilewiseError, UnknownWorkload
from app.services.best.lookup import BestConfigs
from app.services.principal import ANONYMOUS, Principal
from app.services.tuning.request import TuneSpec
from app.services.tuning.service import TuningService
from app.services.workloads.report import WorkloadReport, report_of
from app.store.database import Database
from app.store.records import JobRecord, WorkloadRecord
from app.store.repository import WorkloadRepository
from app.tuning.budget import Budget
from app.workloads.counted import CountedProblem, SkippedProducts, Workload
from app.workloads.options import ReadOptions
from app.workloads.reader import read_workload
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.problem import Problem

MOST_KEPT: Final = 1000  # workloads of one principal
_MOST_TUNED: Final = 256  # problems of one job, as of POST /tune
_TRIALS: Final = 2048  # of a shape: it is the seconds that end its search


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A workload that is kept, and the job that tuned it last."""

    record: WorkloadRecord
    problems: tuple[CountedProblem, ...]
    skipped: tuple[SkippedProducts, ...]

    @classmethod
    def of(cls, record: WorkloadRecord) -> StoredWorkload:
        """Take the store's record."""
        problems = tuple(map(CountedProblem.from_json, record.content["problems"]))
        return cls(record, problems, tuple(SkippedProducts(**each) for each in record.content["skipped"]))


class WorkloadService:
    """Workloads of principals; to whoever is anonymous, where nobody has a name, all of them belong."""

    def __init__(self, database: Database, fleet: Fleet, best: BestConfigs, tuning: TuningService) -> None:
        self._database, self._fleet, self._best, self._tuning = database, fleet, best, tuning
        self._reading = threading.Lock()  # a file at a time: each holds the interpreter's lock

    def create(
        self, stream: BinaryIO, name: str, source: str | None, options: ReadOptions, principal: Principal
    ) -> tuple[StoredWorkload, bool]:
        """Read a file and keep what it has; False beside it if the same is kept already.

        Raises InvalidWorkload, QuotaExceeded.
        """
        with self._reading:
            found = read_workload(stream, source, options)
        record = _record(found, name, principal)

        def add(session: Any) -> bool:
            repository = WorkloadRepository(session)
            if repository.get(record.id) is not None:
                return False
            if (kept := repository.count(principal.name)) >= MOST_KEPT:
                raise QuotaExceeded(f"you keep {kept} workloads already", limit=MOST_KEPT, used=kept, size=1)
            repository.add(record)
            return True

        is_new = self._database.write(add)
        return self.get(record.id, principal), is_new

    def get(self, workload_id: str, principal: Principal) -> StoredWorkload:
        """A principal's workload; raises UnknownWorkload."""
        record = self._database.read(lambda session: WorkloadRepository(session).get(workload_id))
        if record is None or principal.name not in {record.principal, ANONYMOUS.name}:
            raise UnknownWorkload(f"there is no workload {workload_id}")
        return StoredWorkload.of(record)

    def list(self, principal: Principal, before: str | None, limit: int) -> Sequence[StoredWorkload]:
        """A principal's workloads, newest first; `before` is the id of the last one already seen."""
        owner = None if principal.name == ANONYMOUS.name else principal.name
        found = self._database.read(lambda session: WorkloadRepository(session).list(owner, before, limit))
        return [StoredWorkload.of(record) for record in found]

    def delete(self, workload_id: str, principal: Principal) -> None:
        """Forget a workload; what was measured for it stays. Raises UnknownWorkload."""
        self.get(workload_id, principal)
        self._database.write(lambda session: WorkloadRepository(session).delete(workload_id))

    def report(self, workload: StoredWorkload, device_id: str | None = None) -> WorkloadReport:
        """What is known of it on a device now, by default where it was tuned; raises UnknownDevice, NoDevice."""
        unit = self._fleet.unit(device_id or workload.record.device)
        stakes = [self._stake(one, unit) for one in workload.problems]
        return report_of(workload.problems, stakes, unit.device.id, unit.device.model, self._best)

    def tune(
        self, workload: StoredWorkload, seconds: float, device_id: str | None, principal: Principal
    ) -> tuple[JobRecord, StoredWorkload]:
        """Tune its problems in one job, which spends its seconds by time at stake: those with most come first.

        For whichever of the last the seconds do not suffice is not tuned. Raises as TuningService.submit.
        """
        unit = self._fleet.unit(device_id or workload.record.device)
        stakes = sorted(((self._stake(one, unit), one.problem) for one in workload.problems), reverse=True)
        able = [(stake, problem) for stake, problem in stakes if self._is_able(unit, problem)] or stakes[:1]
        able = able[:_MOST_TUNED]
        budget = Budget(trials=_TRIALS * len(able), seconds=seconds)
        spec = TuneSpec(tuple(problem for _, problem in able), (unit.device.id,), budget=budget)
        count = self._tuning.affordable(spec)
        chosen = able[:count]
        spec = TuneSpec(
            tuple(problem for _, problem in chosen),
            spec.devices,
            budget=Budget(trials=_TRIALS * count, seconds=seconds),
            weights=tuple(stake for stake, _ in chosen),
        )
        job = self._tuning.submit(spec, principal)
        place = workload.record.id, job.id, unit.device.id
        self._database.write(lambda session: WorkloadRepository(session).set_job(*place))
        return job, self.get(workload.record.id, principal)

    def _stake(self, one: CountedProblem, unit: Unit) -> float:
        """Milliseconds that all its calls take: by the file, else by what is known here, else by the cost model."""
        if one.total_ms is not None:
            return one.total_ms
        try:
            answer = self._best.answer(one.problem, unit.device.id)
        except TilewiseError:
            return 0.0  # there is nothing to be won where no kernel computes it
        if answer.match in {"exact", "stale"} and answer.timing is not None:
            return one.count * answer.timing.median_ms
        return one.count * 1e3 * predict(CATALOGUE[answer.kernel], answer.config, one.problem, unit.device)

    def _is_able(self, unit: Unit, problem: Problem) -> bool:
        """Whether a kernel of the device computes a problem, and the device has memory for it."""
        try:
            self._best.answer(problem, unit.device.id)
        except TilewiseError:
            return False
        return problem.bytes <= unit.device.memory_bytes


def _record(found: Workload, name: str, principal: Principal) -> WorkloadRecord:
    content = {
        "problems": [one.to_json() for one in found.problems],
        "skipped": [asdict(one) for one in found.skipped],
    }
    text = json.dumps([principal.name, name, found.source, content], sort_keys=True)
    return WorkloadRecord(
        id=sha256(text.encode()).hexdigest()[:32],
        principal=principal.name,
        name=name,
        source=found.source,
        content=content,
        created_at=datetime.now(UTC),
    )
