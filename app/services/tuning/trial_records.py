"""Converts trial outcomes to database records and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from app.devices.fleet import Unit
from app.services.best.lookup import distance
from app.services.best.quarantine import WRONG
from app.store.records import FaultRecord, TrialRecord
from app.store.repository import FaultRepository, TrialRepository
from app.tuning.outcome import Accuracy, Compilation, Conditions, Measured, Outcome, Rejected, Timing
from app.tuning.search.strategy import PriorTimes
from kernels import KERNELS
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config

VENDOR: Final = "vendor"


@dataclass(frozen=True, slots=True)
class TrialRecorder:
    """Makes the records of one job's trials of one problem on one device."""

    job_id: str
    unit: Unit
    problem: Problem

    def trial(
        self, outcome: Outcome, stage: str = "search", conditions: Conditions | None = None, retaken: int = 0
    ) -> TrialRecord:
        """An outcome of a round (search, final or report) as a trial that is not saved yet."""
        return TrialRecord(
            id=None,
            job_id=self.job_id,
            device_model=self.unit.device.model,
            device_uuid=self.unit.device.uuid,
            environment=self.unit.device.environment,
            problem=self.problem,
            kernel=outcome.kernel,
            kernel_digest=self._digest(outcome.kernel),
            config=outcome.config,
            created_at=datetime.now(UTC),
            round=stage,
            conditions=None if conditions is None else {**asdict(conditions), "throttled": list(conditions.throttled)},
            retaken=retaken,
            **_compiled(outcome.compilation),
            **(_measured(outcome) if isinstance(outcome, Measured) else _rejected(outcome)),
        )

    def fault(self, rejected: Rejected, kind: str) -> FaultRecord:
        """A rejection as a fault, which counts for every problem that the failure does not depend on.

        A wrong answer counts everywhere, what no compiler could do for the family that it was compiled for.
        """
        scope = self.problem.key
        if kind == WRONG:
            scope = ""
        elif rejected.stage == "compile" and kind in {"compile", "timeout"}:
            scope = self.problem.family
        return FaultRecord(
            device_model=self.unit.device.model,
            environment=self.unit.device.environment,
            kernel=rejected.kernel,
            kernel_digest=self._digest(rejected.kernel),
            config=rejected.config,
            scope=scope,
            kind=kind,
            stage=rejected.stage,
            reason=rejected.reason,
            job_id=self.job_id,
            at=datetime.now(UTC),
        )

    def _digest(self, kernel: str) -> str:
        return (self.unit.vendor.name or VENDOR) if kernel == VENDOR else KERNELS[kernel].digest


def outcome_of(row: TrialRecord) -> Outcome:
    """A stored trial as the outcome it was."""
    if row.median_ms is None:
        return Rejected(row.kernel, row.config, row.stage or "", row.reason or "", compilation_of(row))
    interval = None if row.ci95_lo_ms is None or row.ci95_hi_ms is None else (row.ci95_lo_ms, row.ci95_hi_ms)
    timing = Timing(row.median_ms, interval, row.samples or 0, row.limited, row.dropped, row.policy or "events")
    accuracy = Accuracy(row.relative_l2 or 0.0, row.max_scaled or 0.0)
    return Measured(row.kernel, row.config, timing, accuracy, compilation_of(row), row.seconds)


def compilation_of(row: TrialRecord) -> Compilation | None:
    """What is known of a stored trial's compilation; None if nothing is."""
    if row.registers is None and row.compilation is None:
        return None
    told = dict(row.compilation or {})
    block = told.pop("block", None)
    return Compilation(registers=row.registers, block=None if block is None else (block[0], block[1]), **told)


def known_elsewhere(
    session: Any, kernels: Sequence[Kernel], unit: Unit, problem: Problem
) -> dict[str, list[PriorTimes]]:
    """What each kernel's configs took on other shapes of the family, and on other devices."""
    model = unit.device.model
    return {
        kernel.name: [
            PriorTimes({config: ms / 1e3 for config, ms in record.median_ms.items()}, distance(record.problem, problem))
            for record in TrialRepository(session).known(kernel.name, kernel.digest, problem, model)
        ]
        for kernel in kernels
    }


def refused_here(
    session: Any, kernels: Sequence[Kernel], unit: Unit, problem: Problem, tried: Iterable[tuple[str, Config]]
) -> Mapping[str, list[Config]]:
    """The configs of each kernel's text that failed on this device model and environment, those tried left out."""
    faults = FaultRepository(session).of(unit.device.model, unit.device.environment)
    digests, known = {kernel.name: kernel.digest for kernel in kernels}, set(tried)
    found: dict[str, dict[Config, None]] = {kernel.name: {} for kernel in kernels}
    for fault in faults:
        current = digests.get(fault.kernel) == fault.kernel_digest
        if current and fault.concerns(problem) and (fault.kernel, fault.config) not in known:
            found[fault.kernel][fault.config] = None
    return {name: list(configs) for name, configs in found.items()}


def _measured(outcome: Measured) -> dict[str, Any]:
    timing = outcome.timing
    lo, hi = timing.ci95_ms or (None, None)
    return {
        "state": "measured",
        "stage": None,
        "reason": None,
        "median_ms": timing.median_ms,
        "ci95_lo_ms": lo,
        "ci95_hi_ms": hi,
        "samples": timing.samples,
        "limited": timing.limited,
        "dropped": timing.dropped,
        "policy": timing.policy,
        "seconds": tuple(round(seconds * 1e9) / 1e9 for seconds in outcome.seconds),  # as they are stored
        "relative_l2": outcome.accuracy.relative_l2,
        "max_scaled": outcome.accuracy.max_scaled,
    }


def _compiled(known: Compilation | None) -> dict[str, Any]:
    """The columns of a compilation: registers have one, and what else is known is JSON."""
    told = {} if known is None else {name: value for name, value in asdict(known).items() if value is not None}
    registers = told.pop("registers", None)
    if "block" in told:
        told["block"] = list(told["block"])
    return {"registers": registers, "compilation": told or None}


def _rejected(outcome: Rejected) -> dict[str, Any]:
    unmeasured = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "samples", "relative_l2", "max_scaled")
    told = {"state": "rejected", "stage": outcome.stage, "reason": outcome.reason, "limited": False}
    return told | dict.fromkeys(unmeasured)
