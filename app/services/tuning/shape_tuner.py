"""Tunes one shape of a job: saves each outcome, then promotes the winner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Final

from app.devices.fleet import Unit
from app.errors import BudgetTooSmall, Closing, LaunchFailed
from app.services.best.lookup import BestConfigs
from app.services.best.quarantine import Quarantine
from app.services.jobs.service import JobService
from app.services.tuning.forecast import TrialForecasts
from app.services.tuning.progress import JobProgress
from app.services.tuning.request import KNOWN
from app.services.tuning.search_scope import searched
from app.services.tuning.trial_records import VENDOR, TrialRecorder, known_elsewhere, outcome_of, refused_here
from app.services.tuning.trial_runner import Interrupted, TrialRunner
from app.store.database import Database
from app.store.records import BestRecord, FaultRecord, JobRecord, TrialRecord
from app.store.repository import BestRepository, FaultRepository, JobRepository, MissRepository, TrialRepository
from app.tuning import tuner
from app.tuning.budget import Budget
from app.tuning.outcome import FORECAST, FinalReport, Measured, Outcome, Rejected
from app.worker.measuring import trial
from kernels.problem import Problem
from kernels.space import Config

_LOG = logging.getLogger(__name__)
_BESIDE: Final = ("naive", "tiled", "default", "vendor")
_UNDER_WAY: Final = "the tune is under way: it is measured beside the best at its end"
_MISSING: Final = "it was not measured beside the best"


@dataclass(frozen=True)
class TuningContext:
    """Where what is measured goes: the database, and what is kept true in memory."""

    database: Database
    jobs: JobService
    best: BestConfigs
    quarantine: Quarantine
    forecasts: TrialForecasts = field(default_factory=TrialForecasts)


class ShapeTuner:
    """The trials of one problem on one device for one job; `inside` are the seconds spent in children."""

    def __init__(
        self, ledger: TuningContext, job: JobRecord, unit: Unit, problem: Problem, running: JobProgress
    ) -> None:
        self._ledger, self._job, self._running = ledger, job, running
        self._unit, self._problem = unit, problem
        self._bench = trial.FixtureKey(job.id, problem, int(job.id[:8], 16))
        learn = partial(ledger.forecasts.learn, unit.device)
        self._runner = TrialRunner(unit, self._bench, running.interrupted, self._enter, running.until, learn)
        self._recorder = TrialRecorder(job.id, unit, problem)
        self._kernels = searched(problem, unit.device, job.request)
        self._saved: list[TrialRecord] = []
        self._provided: TrialRecord | None = None

    @property
    def inside(self) -> float:
        """Seconds spent compiling, verifying and measuring."""
        return self._runner.inside

    def tune(self) -> BestRecord | None:
        """Search every kernel's space and promote what the finals chose; None where the job was interrupted.

        What an earlier process saved of the search is not tried again, but for what there was no time for then. Raises
        LaunchFailed where no config could be measured, BudgetTooSmall where there was no time to.
        """
        self._saved = self._ledger.database.write(self._stored)
        self._running.resumed(len(self._saved))
        best = None
        try:
            for step in tuner.tune(self._task(), self._runner, self._budget, [outcome_of(row) for row in self._saved]):
                if isinstance(step, FinalReport):
                    best = self._conclude(step)
                else:
                    self._save(step)
        except (Interrupted, Closing):
            return None
        finally:
            self._runner.abandon()
            if self._runner.proving:
                self._ledger.forecasts.proved(self._unit.device, self._runner.proving)
            if best is None:
                self._ledger.best.withdraw(self._unit.device.model, self._problem)
        if best is None and self._running.until().ask <= monotonic():
            seconds = self._running.seconds
            raise BudgetTooSmall(f"the budget of {seconds:g} s was over before a config of {self._problem} was proved")
        if best is None:
            reasons = "; ".join(sorted({row.reason for row in self._saved if row.reason})[:3])
            raise LaunchFailed(f"no config of {self._problem} could be measured: {reasons}")
        return best

    def _stored(self, session: Any) -> list[TrialRecord]:
        rows = TrialRepository(session).of_job(self._job.id)
        place = self._unit.device.model, self._problem, "search"
        mine = [row for row in rows if (row.device_model, row.problem, row.round) == place]
        TrialRepository(session).drop(row.id for row in mine if row.id is not None and row.stage == FORECAST)
        return [row for row in mine if row.stage != FORECAST]

    def _task(self) -> tuner.Task:
        device = self._unit.device
        where = self._kernels, self._unit, self._problem
        tried = [(row.kernel, row.config) for row in self._saved]
        known, refused = self._ledger.database.read(
            lambda session: (known_elsewhere(session, *where), refused_here(session, *where, tried))
        )
        asked = self._job.request["strategy"]
        how = ("exhaustive" if asked == KNOWN else asked), self._bench.seed
        forecast = partial(self._ledger.forecasts.of, device)
        what = self._kernels, self._problem, device
        return tuner.Task(*what, *how, known, refused, forecast, thorough=asked == KNOWN)

    def _budget(self) -> Budget:
        """What may be taken as of now; whoever reads it while a strategy thinks hears of an interruption."""
        if self._running.interrupted():
            raise Interrupted
        return self._running.budget(len(self._kernels))

    def _enter(self, phase: str) -> None:
        """Say what the job does from now on."""
        eta, spent = self._running.enter(phase), self._running.elapsed
        self._ledger.database.write(lambda session: JobRepository(session).enter(self._job.id, phase, eta, spent))
        self._ledger.jobs.committed(self._job.id)

    def _save(self, outcome: Outcome) -> None:
        """Commit an outcome with its fault and the job's progress, then tell whoever follows or is served by it."""
        record, faults = self._recorder.trial(outcome), self._faults([outcome])
        self._saved.append(record)
        fastest, eta, spent = self._fastest(), self._running.tried(), self._running.elapsed
        best_ms = fastest.median_ms if fastest else None

        def commit(session: Any) -> int:
            FaultRepository(session).add(*faults)
            JobRepository(session).advance(self._job.id, best_ms, eta, spent)
            return TrialRepository(session).add(record)

        self._saved[-1] = replace(record, id=self._ledger.database.write(commit))
        _LOG.info("saved %s %s %s %s", self._job.id, self._problem, outcome.kernel, outcome.config)
        self._ledger.jobs.committed(self._job.id)
        self._hold(faults)
        self._provide(self._fastest())

    def _faults(self, outcomes: Iterable[Outcome]) -> list[FaultRecord]:
        """What is held against configs, from outcomes of this runner's; the vendor's library is not ours to refuse."""
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected) and outcome.kernel != VENDOR]
        kinds = ((one, self._runner.kind(one)) for one in rejected)
        return [self._recorder.fault(one, kind) for one, kind in kinds if kind is not None]

    def _hold(self, faults: Sequence[FaultRecord]) -> None:
        if faults:
            self._ledger.quarantine.remember(*faults)
            self._ledger.best.changed()

    def _fastest(self) -> TrialRecord | None:
        ours = [row for row in self._saved if row.state == "measured" and row.kernel != VENDOR]
        return min(ours, key=_median, default=None)

    def _provide(self, fastest: TrialRecord | None) -> None:
        """Have the best so far served, once every kernel's default has been tried."""
        tried = {row.kernel for row in self._saved}
        if fastest is not None and fastest is not self._provided and tried >= {one.name for one in self._kernels}:
            self._provided = fastest
            self._ledger.best.provisional(self._best(fastest, {}, dict.fromkeys(_BESIDE, _UNDER_WAY)))

    def _conclude(self, final: FinalReport) -> BestRecord:
        """Commit the finals' samples, the report's and the promotion as one."""
        faults, rows = self._faults(final.wrong), self._rows(final)
        beside = {name: (one.kernel, one.config) for name, one in _beside(final).items()}
        model = self._unit.device.model

        def commit(session: Any) -> BestRecord:
            TrialRepository(session).redo(self._job.id, model, self._problem)
            saved = [replace(row, id=TrialRepository(session).add(row)) for row in rows]
            winner = next(row for row in saved if row.round == "report")
            report = {(row.kernel, row.config): row for row in saved if row.round == "report"}
            best = self._best(winner, {name: report[place] for name, place in beside.items()}, final.reasons)
            FaultRepository(session).add(*faults)
            BestRepository(session).promote(best)
            MissRepository(session).forget(model, self._problem)
            return best

        best = self._ledger.database.write(commit)
        self._ledger.jobs.committed(self._job.id)
        self._hold(faults)
        self._ledger.best.promoted([best])
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
        """The winner beside what was measured in turn with it, and why the rest was not."""
        told: dict[str, Any] = {name: beside.get(name) for name in _BESIDE}
        missing = {f"{name}_reason": reasons.get(name, _MISSING) for name in _BESIDE if name not in beside}
        return BestRecord(
            device_model=winner.device_model,
            problem=self._problem,
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
