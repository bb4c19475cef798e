"""The answer of GET /best-config: a kernel and config, how well it matches, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.store.records import BestRecord, TrialRecord
from app.tuning.measure.racing import EVENTS
from app.tuning.outcome import Accuracy, Timing
from kernels import CATALOGUE
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the best is compared with: the untuned choice, the best of a kernel's own space, or the vendor's library.

    Everything but the name is None where it was not measured; `reason` says why.
    """

    name: str
    timing: Timing | None
    gflops: float | None
    config: Config | None
    accuracy: Accuracy | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """Where an answer comes from that nobody measured here: an import, its format, and the device that it names."""

    import_id: str
    format: str
    device: str
    imported_at: datetime


@dataclass(frozen=True, slots=True)
class BestAnswer:
    """A kernel and config for a problem on a device, and how exact the answer is.

    For nearest, timing, accuracy and baselines are the matched problem's; for default they are None. For both
    `expected_loss` is the time that is expected over what a tune would reach, and `loss_bound` what that ratio does not
    exceed 95 times in 100; None for default where no problem of the family has been tuned. `provisional` says that a
    tune of this very problem is under way and may find a better one.
    `source` is None but for what was imported, whose match is nearest.
    `declined` says why the launch is strict though the problem is to be emulated; None where it is what was asked for.
    """

    device: Device
    problem: Problem
    kernel: str
    config: Config
    launch: Launch
    match: str
    timing: Timing | None = None
    gflops: float | None = None
    accuracy: Accuracy | None = None
    baselines: Mapping[str, Baseline] | None = None
    matched_problem: Problem | None = None
    environment: str | None = None
    tuned_at: datetime | None = None
    expected_loss: float | None = None
    loss_bound: float | None = None
    provisional: bool = False
    conditions: Mapping[str, Any] | None = None
    declined: str | None = None
    source: AnswerSource | None = None

    @property
    def precision(self) -> str:
        """The precision that the launch computes in."""
        return CATALOGUE[self.launch.kernel].computed_precision(self.launch.problem)

    @property
    def instructions(self) -> str:
        """The path by which the launch's products reach an arithmetic unit."""
        return CATALOGUE[self.launch.kernel].instructions

    @property
    def vendor_is_faster(self) -> bool | None:
        """Whether the vendor's library took less time beside it; None where that was not measured."""
        vendor = self.baselines["vendor"].timing if self.baselines else None
        return None if vendor is None or self.timing is None else vendor.median_ms < self.timing.median_ms


def timing_of(trial: TrialRecord) -> Timing | None:
    """A stored trial's timing, or None where it was rejected."""
    if trial.median_ms is None:
        return None
    bounded = trial.ci95_lo_ms is not None and trial.ci95_hi_ms is not None
    return Timing(
        median_ms=trial.median_ms,
        ci95_ms=(trial.ci95_lo_ms or 0.0, trial.ci95_hi_ms or 0.0) if bounded else None,
        samples=trial.samples or 0,
        limited=trial.limited,
        dropped=trial.dropped,
        policy=trial.policy or EVENTS,
    )


def accuracy_of(trial: TrialRecord) -> Accuracy | None:
    """A stored trial's error, or None where it was rejected."""
    if trial.relative_l2 is None or trial.max_scaled is None:
        return None
    return Accuracy(trial.relative_l2, trial.max_scaled)


def gflops(problem: Problem, timing: Timing | None) -> float | None:
    """10^9 floating-point operations a second at the median."""
    return problem.flops / timing.median_ms / 1e6 if timing and timing.median_ms else None


def baseline(name: str, trial: TrialRecord | None, reason: str | None) -> Baseline:
    """A stored trial as a baseline; without one, the reason why."""
    if trial is None:
        return Baseline(name, None, None, None, reason=reason or "not measured")
    timing = timing_of(trial)
    return Baseline(name, timing, gflops(trial.problem, timing), trial.config, accuracy_of(trial), trial.reason)


def baselines_of(record: BestRecord) -> dict[str, Baseline]:
    """What every tune measures in turn with the best: naive, tiled, the untuned choice, and the vendor's library."""
    default = record.default
    vendor = record.vendor.kernel_digest if record.vendor else "vendor"
    return {
        "naive": baseline("naive", record.naive, record.naive_reason),
        "tiled": baseline("tiled", record.tiled, record.tiled_reason),
        "default": baseline(default.kernel if default else "default", default, record.default_reason),
        "vendor": baseline(vendor, record.vendor, record.vendor_reason),
    }


def stored(record: BestRecord, device: Device, launch: Launch, match: str, *, provisional: bool = False) -> BestAnswer:
    """A record as the answer to the launch's problem, which need not be the record's."""
    trial, timing = record.trial, timing_of(record.trial)
    return BestAnswer(
        device=device,
        problem=launch.problem,
        kernel=trial.kernel,
        config=launch.config,
        launch=launch,
        match=match,
        timing=timing,
        gflops=gflops(record.problem, timing),
        accuracy=accuracy_of(trial),
        baselines=baselines_of(record),
        matched_problem=record.problem,
        environment=trial.environment,
        tuned_at=record.tuned_at,
        provisional=provisional,
        conditions=trial.conditions,
    )
