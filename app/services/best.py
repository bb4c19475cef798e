"""The answer to "which config?": always one, and how exact it is. In memory; kept true on promotion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import log2

from app.devices.fleet import Fleet
from app.errors import NotTuned, Unsupported
from app.store.engine import Database
from app.store.records import BestRecord, TrialRecord
from app.store.repository import Bests
from app.tuning.outcome import Accuracy, Timing
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Kernel, Launch
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the best is compared with: the best of a kernel's own space, or the vendor's library.

    Everything but the name is None where it was not measured; `reason` says why.
    """

    name: str
    timing: Timing | None
    gflops: float | None
    config: Config | None
    accuracy: Accuracy | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A kernel and config for a problem on a device, and how exact the answer is.

    For nearest, timing, accuracy and baselines are the matched problem's; for default they are None.
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


def timing_of(trial: TrialRecord) -> Timing | None:
    """A stored trial's timing, or None where it was rejected."""
    if trial.median_ms is None or trial.ci95_lo_ms is None or trial.ci95_hi_ms is None:
        return None
    return Timing(trial.median_ms, (trial.ci95_lo_ms, trial.ci95_hi_ms), trial.samples or 0, trial.limited)


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
    """The three that every tune measures: naive, tiled and the vendor's library."""
    vendor = record.vendor.kernel_digest if record.vendor else "vendor"
    return {
        "naive": baseline("naive", record.naive, None),
        "tiled": baseline("tiled", record.tiled, None),
        "vendor": baseline(vendor, record.vendor, record.vendor_reason),
    }


@dataclass(frozen=True)
class _Snapshot:
    """All bests of one generation: by model and problem, and by model and family for the nearest."""

    exact: dict[tuple[str, Problem], BestRecord] = field(default_factory=dict)
    families: dict[tuple[str, str], tuple[BestRecord, ...]] = field(default_factory=dict)

    def with_records(self, records: Iterable[BestRecord]) -> _Snapshot:
        exact = dict(self.exact)
        exact.update({(record.device_model, record.problem): record for record in records})
        families: dict[tuple[str, str], tuple[BestRecord, ...]] = {}
        for (model, problem), record in exact.items():
            families[model, problem.family] = (*families.get((model, problem.family), ()), record)
        return _Snapshot(exact, families)


class BestConfigs:
    """Every best of this database, in memory: an answer takes no lock, no query and no device.

    `generation` rises whenever any answer may have changed.
    """

    def __init__(self, fleet: Fleet, records: Iterable[BestRecord] = ()) -> None:
        self.generation = 0
        self._fleet = fleet
        self._snapshot = _Snapshot().with_records(records)

    @classmethod
    def load(cls, fleet: Fleet, database: Database) -> BestConfigs:
        """Read every stored best once."""
        return cls(fleet, database.read(lambda session: Bests(session).all()))

    def promoted(self, records: Iterable[BestRecord]) -> None:
        """Take what was just committed."""
        self._snapshot = self._snapshot.with_records(records)
        self.generation += 1

    def all(self) -> list[BestRecord]:
        """Every best, in no order."""
        return list(self._snapshot.exact.values())

    def record(self, model: str, problem: Problem) -> BestRecord | None:
        """The stored best of one device model and problem."""
        return self._snapshot.exact.get((model, problem))

    def answer(self, problem: Problem, device_id: str | None = None, *, exact: bool = False) -> Answer:
        """Answer exact, else stale, else nearest, else the model's default.

        Raises UnknownDevice, NoDevice, Unsupported where no kernel covers the problem, NotTuned where `exact` is
        asked for and there is none.
        """
        device = self._fleet.unit(device_id).device
        record = self._snapshot.exact.get((device.model, problem))
        if record is not None and (launch := _launch(record.trial, problem, device)):
            match = "exact" if is_current(record.trial, device) else "stale"
            if match == "exact" or not exact:
                return _stored(record, device, problem, launch, match)
        if exact:
            raise NotTuned(f"{problem.key} has not been tuned on {device.id}", problem=problem.key, device=device.id)
        return self._nearest(problem, device) or default_answer(problem, device)

    def _nearest(self, problem: Problem, device: Device) -> Answer | None:
        near = sorted(
            self._snapshot.families.get((device.model, problem.family), ()),
            key=lambda record: distance(record.problem, problem),
        )
        for record in near:
            if record.problem != problem and (launch := _launch(record.trial, problem, device)):
                return _stored(record, device, problem, launch, "nearest")
        return None


def distance(one: Problem, other: Problem) -> float:
    """How far two shapes are apart: the Euclidean distance in log2 of m, n, k and batch."""
    pairs = ((one.m, other.m), (one.n, other.n), (one.k, other.k), (one.batch, other.batch))
    return float(sum(log2(x / y) ** 2 for x, y in pairs) ** 0.5)


def is_current(trial: TrialRecord, device: Device) -> bool:
    """Whether driver, runtime, compiler and kernel text are those the trial was measured with."""
    kernel = CATALOGUE.get(trial.kernel)
    return kernel is not None and trial.kernel_digest == kernel.digest and trial.environment == device.environment


def covering(problem: Problem, device: Device) -> list[Kernel]:
    """The kernels that compute such a problem on such a device, in ladder order; raises Unsupported for none."""
    kernels = [kernel for kernel in CATALOGUE.values() if kernel.covers(problem, device)]
    if not kernels:
        raise Unsupported(f"no kernel computes {problem.dtype} ({problem.precision}) on {device.id}")
    return kernels


def default_launch(kernel: Kernel, problem: Problem, device: Device) -> Launch:
    """The launch of a kernel's untuned choice; raises Unsupported where its space refuses even that."""
    try:
        return kernel.launch(kernel.default(problem, device), problem, device)
    except ValueError as refusal:
        raise Unsupported(f"{kernel.name} cannot run {problem.key} on {device.id}: {refusal}") from refusal


def default_answer(problem: Problem, device: Device) -> Answer:
    """What the model chooses, untuned: the highest rung that covers the problem, at its default config."""
    kernel = covering(problem, device)[-1]
    launch = default_launch(kernel, problem, device)
    return Answer(device, problem, kernel.name, launch.config, launch, "default")


def _launch(trial: TrialRecord, problem: Problem, device: Device) -> Launch | None:
    kernel = CATALOGUE.get(trial.kernel)
    if kernel is None or not kernel.covers(problem, device):
        return None
    try:
        return kernel.launch(kernel.space.config(trial.config), problem, device)
    except ValueError:
        return None  # the space has changed since, or a rule refuses the config for this shape


def _stored(record: BestRecord, device: Device, problem: Problem, launch: Launch, match: str) -> Answer:
    trial, timing = record.trial, timing_of(record.trial)
    return Answer(
        device=device,
        problem=problem,
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
    )
