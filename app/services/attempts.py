"""One shape of one job: every trial attempted in the trial child, saved, then told; ends with the shape's winner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from app.devices.fleet import Unit
from app.devices.scheduler import Priority
from app.errors import CompileFailed, DeviceError, LaunchFailed
from app.services.best import covering
from app.services.jobs import Jobs
from app.store.engine import Database
from app.store.records import BestRecord, JobRecord, TrialRecord
from app.store.repository import Jobs as JobRows
from app.store.repository import Trials
from app.tuning import trial as trials
from app.tuning.outcome import Accuracy, Measured, Outcome, Rejected, Timing
from app.tuning.tuner import Budget, tune
from kernels import CATALOGUE
from kernels.kernel import Kernel, Launch
from kernels.problem import Problem
from kernels.space import Config

TRIALS, SECONDS = 64, 20.0  # the contract's default budget: trials a kernel, seconds a shape
VENDOR = "vendor"
_LOG = logging.getLogger(__name__)
_BASELINES = ("naive", "tiled")
_MEASURING = 0.25  # seconds of launches a trial may spend on a narrow interval
_DEADLINE = 150.0  # seconds until the child names its first phase: it may have to be started


class Attempts:
    """The trials of one problem on one device for one job; `inside` adds up the seconds spent in children."""

    def __init__(
        self, database: Database, jobs: Jobs, closing: threading.Event, job: JobRecord, unit: Unit, problem: Problem
    ) -> None:
        self.inside = 0.0
        self._database, self._jobs, self._closing = database, jobs, closing
        self._job, self._unit, self._problem = job, unit, problem
        self._bench = trials.Bench(job.id, problem, int(job.id[:8], 16))
        self._saved: list[TrialRecord] = []

    def tune(self) -> BestRecord | None:
        """Measure the vendor's library, then search every kernel's space; None where the job was interrupted.

        Raises LaunchFailed where no config could be measured.
        """
        self._saved = self._stored()
        if not any(row.kernel == VENDOR for row in self._saved):
            self._save(self._guarded(VENDOR, Config(()), lambda: self._in_child(trials.attempt_vendor, self._problem)))
        for outcome in self._outcomes():
            if self._interrupted():
                return None
            self._save(outcome)
        return None if self._interrupted() else self._winner()

    def _interrupted(self) -> bool:
        return self._closing.is_set() or self._jobs.is_cancelled(self._job.id)

    def _stored(self) -> list[TrialRecord]:
        rows = self._database.read(lambda session: Trials(session).of_job(self._job.id))
        model = self._unit.device.model
        return [row for row in rows if row.device_model == model and row.problem == self._problem]

    def _outcomes(self) -> Any:
        request = self._job.request
        kernels = searched(self._problem, self._unit, request["kernels"])
        saved = [outcome_of(row) for row in self._saved if row.kernel != VENDOR]
        return tune(
            kernels,
            self._problem,
            self._unit.device,
            request["strategy"],
            Budget(trials_each(request["trials"], len(kernels)), request["seconds"] or SECONDS),
            self._bench.seed,
            self._attempt,
            saved=saved,
        )

    def _attempt(self, launch: Launch) -> Outcome:
        def attempt() -> Outcome:
            self._unit.prepare(launch.build)
            return self._in_child(trials.attempt, launch)

        return self._guarded(launch.kernel, launch.config, attempt)

    def _guarded(self, kernel: str, config: Config, attempt: Callable[[], Outcome]) -> Outcome:
        """Whatever a candidate does to its child is a value: it costs one trial."""
        started = perf_counter()
        _LOG.info("attempt %s %s %s %s", self._job.id, self._problem.key, kernel, config)
        try:
            return attempt()
        except DeviceError as error:
            return Rejected(kernel, config, _stage(error), error.message)
        finally:
            self.inside += perf_counter() - started

    def _in_child(self, function: Callable[..., Outcome], what: Launch | Problem) -> Outcome:
        outcome: Outcome = self._unit.trials.call(
            function, what, self._bench, _MEASURING, priority=Priority.MEASUREMENT, deadline=_DEADLINE
        )
        return outcome

    def _save(self, outcome: Outcome) -> None:
        """Commit an outcome with the job's progress, then tell whoever follows; what closing broke off is no trial."""
        if self._closing.is_set():
            return
        record = self._record(outcome)
        self._saved.append(record)
        best_ms = min((row.median_ms for row in self._candidates() if row.median_ms), default=None)

        def commit(session: Any) -> int:
            JobRows(session).advance(self._job.id, best_ms)
            return Trials(session).add(record)

        self._saved[-1] = replace(record, id=self._database.write(commit))
        _LOG.info("saved %s %s %s %s", self._job.id, self._problem.key, outcome.kernel, outcome.config)
        self._jobs.committed(self._job.id)

    def _candidates(self) -> list[TrialRecord]:
        return [row for row in self._saved if row.kernel != VENDOR and row.state == "measured"]

    def _winner(self) -> BestRecord:
        measured = sorted(self._candidates(), key=lambda row: row.median_ms or 0.0)
        if not measured:
            reasons = "; ".join(sorted({row.reason or "" for row in self._saved})[:3])
            raise LaunchFailed(f"no config of {self._problem.key} could be measured: {reasons}")
        of = {name: next((row for row in measured if row.kernel == name), None) for name in _BASELINES}
        vendor = next((row for row in self._saved if row.kernel == VENDOR), None)
        return BestRecord(
            device_model=self._unit.device.model,
            problem=self._problem,
            trial=measured[0],
            naive=of["naive"],
            tiled=of["tiled"],
            vendor=vendor if vendor and vendor.state == "measured" else None,
            vendor_reason=vendor.reason if vendor else None,
            tuned_at=datetime.now(UTC),
        )

    def _record(self, outcome: Outcome) -> TrialRecord:
        measured = outcome if isinstance(outcome, Measured) else None
        rejected = outcome if isinstance(outcome, Rejected) else None
        device = self._unit.device
        vendor = self._unit.vendor.name or VENDOR
        return TrialRecord(
            id=None,
            job_id=self._job.id,
            device_model=device.model,
            device_uuid=device.uuid,
            environment=device.environment,
            problem=self._problem,
            kernel=outcome.kernel,
            kernel_digest=vendor if outcome.kernel == VENDOR else CATALOGUE[outcome.kernel].digest,
            config=outcome.config,
            state="measured" if measured else "rejected",
            stage=rejected.stage if rejected else None,
            reason=rejected.reason if rejected else None,
            median_ms=measured.timing.median_ms if measured else None,
            ci95_lo_ms=measured.timing.ci95_ms[0] if measured else None,
            ci95_hi_ms=measured.timing.ci95_ms[1] if measured else None,
            samples=measured.timing.samples if measured else None,
            limited=measured.timing.limited if measured else False,
            relative_l2=measured.accuracy.relative_l2 if measured else None,
            max_scaled=measured.accuracy.max_scaled if measured else None,
            registers=measured.registers if measured else None,
            created_at=datetime.now(UTC),
        )


def searched(problem: Problem, unit: Unit, asked: list[str] | None) -> list[Kernel]:
    """The kernels to search: those asked for, and always the two baselines; raises Unsupported for none."""
    kernels = covering(problem, unit.device)
    return [kernel for kernel in kernels if asked is None or kernel.name in asked or kernel.name in _BASELINES]


def trials_each(trials_a_shape: int | None, kernels: int) -> int:
    """A shape's trials shared among its kernels, at least one each."""
    return TRIALS if trials_a_shape is None else max(1, trials_a_shape // kernels)


def expected(problem: Problem, unit: Unit, request: dict[str, Any]) -> int:
    """How many trials a shape takes at most: the vendor's, and each kernel's share or its whole space."""
    kernels = searched(problem, unit, request["kernels"])
    each = trials_each(request["trials"], len(kernels))
    return 1 + sum(min(each, len(kernel.space.legal(problem, unit.device))) for kernel in kernels)


def outcome_of(row: TrialRecord) -> Outcome:
    """A stored trial as the outcome it was."""
    if row.median_ms is None:
        return Rejected(row.kernel, row.config, row.stage or "", row.reason or "")
    interval = (row.ci95_lo_ms or row.median_ms, row.ci95_hi_ms or row.median_ms)
    timing = Timing(row.median_ms, interval, row.samples or 0, row.limited)
    accuracy = Accuracy(row.relative_l2 or 0.0, row.max_scaled or 0.0)
    return Measured(row.kernel, row.config, timing, accuracy, row.registers)


def _stage(error: DeviceError) -> str:
    """Where a child was when it failed: compile, launch, verify or measure."""
    return "compile" if isinstance(error, CompileFailed) else str(error.facts.get("stage", "launch"))
