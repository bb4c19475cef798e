"""The report on a workload: per shape and in all, what its products took before, and what they take now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.services.best.lookup import timing_of
from app.store.records import BestRecord, TrialRecord
from app.workloads.counted import CountedProblem
from kernels.problem import Problem
from kernels.space import Config

UNTUNED: Final = "it has not been tuned on this device"
_ALONE: Final = "nothing was measured beside the winner"


class StoredBests(Protocol):
    """Knows what is stored for a device model and a problem."""

    def record(self, model: str, problem: Problem) -> BestRecord | None:
        """The stored best, or None."""
        ...


@dataclass(frozen=True, slots=True)
class CallTime:
    """The median of one call of a config, with its 95 % interval, None where one sample says nothing of it."""

    name: str
    config: Config
    median_ms: float
    ci95_ms: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class ProductReport:
    """One problem of a workload: its time at stake, and its figures, or the reason why one is None.

    `before` is the vendor's library, or the untuned default where that was not measured; `winner` the fastest of ours.
    """

    counted: CountedProblem
    stake_ms: float
    before: CallTime | None
    winner: CallTime | None
    reason: str | None = None

    @property
    def after(self) -> CallTime | None:
        """What a program does best from now on: the winner if it is faster beyond both intervals, else as before."""
        if self.before is None or self.winner is None:
            return None
        return self.winner if _upper(self.winner) < _lower(self.before) else self.before

    @property
    def is_measured(self) -> bool:
        """Whether all figures are there."""
        return self.after is not None


@dataclass(frozen=True, slots=True)
class WorkloadTime:
    """Milliseconds of all calls, and what lies between the sums of all lower and of all upper bounds."""

    ms: float
    ci95_ms: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """All problems of a workload, those with most at stake first.

    `before` and `after` are of the problems that were measured, which have `covered` of the time at stake; both None
    where none was.
    """

    device: str
    shapes: tuple[ProductReport, ...]
    before: WorkloadTime | None
    after: WorkloadTime | None
    covered: float

    @property
    def sentence(self) -> str:
        """The report in one line."""
        if self.before is None or self.after is None:
            return f"your program's products: none of {len(self.shapes)} shapes has been measured on {self.device}"
        measured = sum(each.is_measured for each in self.shapes)
        won = sum(each.is_measured and each.after is each.winner for each in self.shapes)
        times = f"{self.before.ms:.3g} ms -> {self.after.ms:.3g} ms"
        return (
            f"your program's products: {times} on {self.device} "
            f"({won} of {measured} shapes faster; {len(self.shapes)} in all, "
            f"measured {100 * self.covered:.0f} % of the time)"
        )


def report_of(
    counted: Sequence[CountedProblem], stakes: Sequence[float], device: str, model: str, bests: StoredBests
) -> WorkloadReport:
    """The report by what is stored for a device's model now."""
    shapes = [_shape(one, stake, bests.record(model, one.problem)) for one, stake in zip(counted, stakes, strict=True)]
    shapes.sort(key=lambda each: -each.stake_ms)
    measured, total = [each for each in shapes if each.is_measured], sum(stakes)
    before = _total([(each.counted.count, each.before) for each in measured if each.before])
    after = _total([(each.counted.count, each.after) for each in measured if each.after])
    covered = sum(each.stake_ms for each in measured) / total if total else 0.0
    return WorkloadReport(device, tuple(shapes), before, after, covered)


def _shape(counted: CountedProblem, stake: float, best: BestRecord | None) -> ProductReport:
    if best is None:
        return ProductReport(counted, stake, None, None, UNTUNED)
    before, name = (best.vendor, "vendor") if best.vendor is not None else (best.default, "default")
    winner = _measured(best.trial, best.trial.kernel)
    if before is None:
        return ProductReport(counted, stake, None, winner, best.default_reason or best.vendor_reason or _ALONE)
    return ProductReport(counted, stake, _measured(before, name), winner)


def _upper(call: CallTime) -> float:
    return call.median_ms if call.ci95_ms is None else call.ci95_ms[1]


def _lower(call: CallTime) -> float:
    return call.median_ms if call.ci95_ms is None else call.ci95_ms[0]


def _measured(trial: TrialRecord, name: str) -> CallTime | None:
    timing = timing_of(trial)
    return None if timing is None else CallTime(name, trial.config, timing.median_ms, timing.ci95_ms)


def _total(calls: Sequence[tuple[int, CallTime]]) -> WorkloadTime | None:
    """The sum; its interval holds at least as often as each of those that it is the sum of, if they move together."""
    if not calls:
        return None
    bounds = [(count, call.ci95_ms) for count, call in calls]
    total = sum(count * call.median_ms for count, call in calls)
    if any(interval is None for _, interval in bounds):
        return WorkloadTime(total, None)
    low, high = (sum(count * interval[end] for count, interval in bounds if interval) for end in (0, 1))
    return WorkloadTime(total, (low, high))
