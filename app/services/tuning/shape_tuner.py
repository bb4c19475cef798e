"""Tunes one shape of a job: saves each outcome, then promotes the winner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from app.devices.fleet import Unit
from app.errors import BudgetTooSmall, Closing, LaunchFailed
from app.services.best.lookup import BestConfigs
from app.services.best.quarantine import Quarantine
from app.services.jobs.service import JobService
from app.services.sharing.claims import JobClaims
from app.services.tuning.forecast import TrialForecasts
from app.services.tuning.progress import ShapeProgress
from app.services.tuning.request import KNOWN, TuneSpec, is_lesson, kernels_to_search
from app.services.tuning.trial_records import VENDOR, TrialRecorder, known_elsewhere, outcome_of, refused_here
from app.services.tuning.trial_runner import Interrupted, TrialRunner
from app.store.database import Database
from app.store.records import BestRecord, FaultRecord, TrialRecord
from app.store.repository import BestRepository, FaultRepository, JobRepository, MissRepository, TrialRepository
from app.store.sharing.claims import expect_held
from app.tuning import tuner
from app.tuning.budget import Budget
from app.tuning.outcome import FORECAST, FinalReport, Measured, Outcome, Rejected
from app.tuning.search.inputs import PriorTimes
from app.tuning.search.search_task import StrategyFactory, make_strategy
from app.tuning.task import Task
from app.worker.measuring import trial
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config

_LOG = logging.getLogger(__name__)
_BESIDE: Final = ("naive", "tiled", "default", "vendor")
_UNFINISHED: Final = "the tune is under way: it is measured beside the best at its end"
_MISSING: Final = "it was not measured beside the best"


class ImportedResults(Protocol):
    """Knows what principals imported."""

    def priors(self, principal: str, kernel: str, problem: Problem) -> Sequence[PriorTimes]:
        """The times that a principal imported of a kernel's configs, by problem."""
        ...

    def fastest(self, principal: str, device: Device, problem: Problem) -> Sequence[tuple[str, Config]]:
        """The kernels and configs that were fastest in what a principal imported of a problem on such a device."""
        ...


class NothingImported:
    """Of whoever imports nothing."""

    def priors(self, principal: str, kernel: str, problem: Problem) -> Sequence[PriorTimes]:
        """None."""
        del principal, kernel, problem
        return ()

    def fastest(self, principal: str, device: Device, problem: Problem) -> Sequence[tuple[str, Config]]:
        """None."""
        del principal, device, problem
        return ()


@dataclass(frozen=True)
class TuningContext:
    """What tunes share: the database, what was imported, and the services that are told of what is measured.

    `claims` are there where services share the database.
    """

    database: Database
    jobs: JobService
    best: BestConfigs
    quarantine: Quarantine
    forecasts: TrialForecasts = field(default_factory=TrialForecasts)
    imported: ImportedResults = field(default_factory=NothingImported)
    claims: JobClaims | None = None


class ShapeTuner:
    """Tunes one problem on one device for one job; `inside` are the seconds spent in the trial worker.

    What a job of lessons finds `serves` no product: it is measured and told, and not promoted.
    """

    def __init__(
        self,
        context: TuningContext,
        job_id: str,
        spec: TuneSpec,
        unit: Unit,
        problem: Problem,
        progress: ShapeProgress,
        factory: StrategyFactory = make_strategy,
    ) -> None:
        self._factory = factory
        self.unit, self.problem, self.progress = unit, problem, progress
        self._context, self._job_id, self._strategy = context, job_id, spec.strategy
        self._fixture = trial.FixtureKey(job_id, problem, int(job_id[:8], 16))
        learn = partial(context.forecasts.learn, unit.device)
        self._runner = TrialRunner(unit, self._fixture, progress.interrupted, self._enter, progress.until, learn)
        self._recorder = TrialRecorder(job_id, unit, problem)
        self._kernels = kernels_to_search(problem, unit.device, spec)
        self.serves = not is_lesson(spec)
        self.inside_elsewhere = 0.0
        self._saved: list[TrialRecord] = []
        self._provisional: TrialRecord | None = None

    @property
    def inside(self) -> float:
        """Seconds spent compiling, verifying and measuring."""
        return self._runner.inside + self.inside_elsewhere

    def tune(self) -> BestRecord | None:
        """Search every kernel's space and promote what the finals chose; None where the job was interrupted.

        What an earlier process saved of the search is not tried again, but for what there was no time for then. Raises
        LaunchFailed if no config could be measured, BudgetTooSmall if there was no time to.
        """
        self._saved = self._context.database.write(self._stored)
        self.progress.resumed(len(self._saved))
        best = None
        try:
            for step in tuner.tune(self.task(), self._runner, self._budget, [outcome_of(row) for row in self._saved]):
                if isinstance(step, FinalReport):
                    best = self._conclude(step)
                else:
                    self._save(step)
        except (Interrupted, Closing):
            return None
        finally:
            self._runner.abandon()
            if self._runner.proving:
                self._context.forecasts.proved(self.unit.device, self._runner.proving)
            if best is None and self.serves:
                self._context.best.withdraw(self.unit.device.model, self.problem)
        seconds = self.progress.job_seconds
        if best is None and seconds is not None:
            self._expect_time(seconds)
        if best is None:
            reasons = "; ".join(sorted({row.reason for row in self._saved if row.reason})[:3])
            raise LaunchFailed(f"no config of {self.problem} could be measured: {reasons}")
        return best

    def _stored(self, session: Any) -> list[TrialRecord]:
        expect_held(session, self._job_id)
        rows = TrialRepository(session).of_job(self._job_id)
        place = self.unit.device.model, self.problem, "search"
        mine = [row for row in rows if (row.device_model, row.problem, row.round) == place]
        TrialRepository(session).drop(row.id for row in mine if row.id is not None and row.stage == FORECAST)
        return [row for row in mine if row.stage != FORECAST]

    def task(self) -> Task:
        """What the search is given: the kernels, what is known of other shapes, and the configs that are refused."""
        device = self.unit.device
        where = self._kernels, self.unit, self.problem
        tried = [(row.kernel, row.config) for row in self._saved]
        known, refused = self._context.database.read(
            lambda session: (self._known(session, *where), refused_here(session, *where, tried))
        )
        is_known = self._strategy == KNOWN
        how = ("exhaustive" if is_known else self._strategy), self._fixture.seed
        forecast = partial(self._context.forecasts.of, device)
        what = self._kernels, self.problem, device
        return Task(*what, *how, known, refused, forecast, thorough=is_known, factory=self._factory)

    def _known(
        self, session: Any, kernels: Sequence[Kernel], unit: Unit, problem: Problem
    ) -> dict[str, list[PriorTimes]]:
        """The times that a search starts from: those that the job's principal imported first, of equal distances."""
        job, known = JobRepository(session).get(self._job_id), known_elsewhere(session, kernels, unit, problem)
        if job is None:
            return known
        return {name: [*self._context.imported.priors(job.principal, name, problem), *known[name]] for name in known}

    def _budget(self) -> Budget:
        """Each kernel's budget as of now; raises Interrupted, which stops a strategy that is choosing configs."""
        if self.progress.interrupted():
            raise Interrupted
        return self.progress.kernel_budget(len(self._kernels))

    def _enter(self, phase: str) -> None:
        """Store the phase that the job enters."""
        eta, spent = self.progress.enter(phase), self.progress.job_elapsed
        self._context.database.write(lambda session: JobRepository(session).enter(self._job_id, phase, eta, spent))
        self._context.jobs.notify(self._job_id)

    def _save(self, outcome: Outcome) -> None:
        """Commit an outcome with its fault and the job's progress, tell followers, and serve the best so far."""
        record = self._recorder.trial(outcome, conditions=self._runner.conditions)
        faults = self._faults([outcome])
        self._saved.append(record)
        fastest, eta, spent = self._fastest(), self.progress.trial_finished(), self.progress.job_elapsed
        best_ms = fastest.median_ms if fastest else None

        def commit(session: Any) -> int:
            FaultRepository(session).add(*faults)
            JobRepository(session).advance(self._job_id, best_ms, eta, spent)
            return TrialRepository(session).add(record)

        self._saved[-1] = replace(record, id=self._context.database.write(commit))
        _LOG.info("saved %s %s %s %s", self._job_id, self.problem, outcome.kernel, outcome.config)
        self._context.jobs.notify(self._job_id)
        self._quarantine(faults)
        self._serve_provisional(self._fastest())

    def _faults(self, outcomes: Iterable[Outcome]) -> list[FaultRecord]:
        """The faults that this runner's outcomes show; the vendor's library has none."""
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected) and outcome.kernel != VENDOR]
        kinds = ((one, self._runner.kind(one)) for one in rejected)
        return [self._recorder.fault(one, kind) for one, kind in kinds if kind is not None]

    def _quarantine(self, faults: Sequence[FaultRecord]) -> None:
        if faults:
            self._context.quarantine.remember(*faults)
            self._context.best.changed()

    def _fastest(self) -> TrialRecord | None:
        ours = [row for row in self._saved if row.state == "measured" and row.kernel != VENDOR]
        return min(ours, key=_median, default=None)

    def _expect_time(self, seconds: float) -> None:
        """Raise BudgetTooSmall where it was for want of time that there is no winner."""
        over = f"the budget of {seconds:g} s was over before"
        if self._is_default_left_out():
            raise BudgetTooSmall(
                f"{over} the untuned default of {self.problem} was measured: "
                "it is forecast to be clearly faster than what was"
            )
        if self.progress.until().ask <= monotonic():
            raise BudgetTooSmall(f"{over} a config of {self.problem} was proved")

    def _is_default_left_out(self) -> bool:
        """Whether something was measured, but there was no time for the untuned default."""
        kernel = self._kernels[-1]
        default = kernel.default(self.problem, self.unit.device)
        tried = (row for row in self._saved if (row.kernel, row.config) == (kernel.name, default))
        return self._fastest() is not None and all(row.stage == FORECAST for row in tried)

    def _serve_provisional(self, fastest: TrialRecord | None) -> None:
        """Serve the best so far, once every kernel's default has been tried."""
        tried = {row.kernel for row in self._saved}
        is_new = fastest is not None and fastest is not self._provisional
        if self.serves and fastest and is_new and tried >= {one.name for one in self._kernels}:
            self._provisional = fastest
            self._context.best.provisional(self._best(fastest, {}, dict.fromkeys(_BESIDE, _UNFINISHED)))

    def _conclude(self, final: FinalReport) -> BestRecord:
        """Commit the samples of the finals and of the report, and the promotion, in one transaction."""
        faults, rows = self._faults(final.wrong), self._rows(final)
        beside = {name: (one.kernel, one.config) for name, one in _beside(final).items()}
        model = self.unit.device.model

        def commit(session: Any) -> BestRecord:
            TrialRepository(session).redo(self._job_id, model, self.problem)
            saved = [replace(row, id=TrialRepository(session).add(row)) for row in rows]
            winner = next(row for row in saved if row.round == "report")
            report = {(row.kernel, row.config): row for row in saved if row.round == "report"}
            best = self._best(winner, {name: report[place] for name, place in beside.items()}, final.reasons)
            FaultRepository(session).add(*faults)
            if self.serves:
                BestRepository(session).promote(best)
                MissRepository(session).forget(model, self.problem)
            return best

        best = self._context.database.write(commit)
        self._context.jobs.notify(self._job_id)
        self._quarantine(faults)
        if self.serves:
            self._context.best.promoted([best])
        return best

    def _rows(self, final: FinalReport) -> list[TrialRecord]:
        """The finals as trials; of the report's the winner comes first."""
        report: dict[tuple[str, Config], Measured] = {}
        for one in (final.best, *_beside(final).values()):
            report.setdefault((one.kernel, one.config), one)
        record, conditions, retaken = self._recorder.trial, final.conditions, final.retaken
        return [
            *(record(one, "final", conditions) for one in final.finalists),
            *(record(one, "final") for one in final.wrong),
            *(record(one, "report", conditions, retaken) for one in report.values()),
        ]

    def _best(self, winner: TrialRecord, beside: Mapping[str, TrialRecord], reasons: Mapping[str, str]) -> BestRecord:
        """The winner, what was measured in turn with it, and the reasons for what was not."""
        told: dict[str, Any] = {name: beside.get(name) for name in _BESIDE}
        missing = {f"{name}_reason": reasons.get(name, _MISSING) for name in _BESIDE if name not in beside}
        return BestRecord(
            device_model=winner.device_model,
            problem=self.problem,
            trial=winner,
            tuned_at=datetime.now(UTC),
            **{"vendor_reason": None, **told, **missing},
        )


def _beside(final: FinalReport) -> dict[str, Measured]:
    """What was measured in turn with the winner, by name."""
    found = {"default": final.default, "vendor": final.vendor, **final.baselines}
    return {name: one for name, one in found.items() if one is not None}


def _median(row: TrialRecord) -> float:
    return row.median_ms or 0.0
