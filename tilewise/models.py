"""What the service answers, as frozen dataclasses. Members that a newer service adds are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from numpy.typing import NDArray

from tilewise._certificates import Certificate
from tilewise._import_source import ImportSource
from tilewise._notebook import ShownBest, ShownJob
from tilewise.decoding import from_json
from tilewise.progress import Progress
from tilewise.shapes import Problem

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of `samples` launches and its 95 % interval, in milliseconds; None if one says nothing of it.

    `policy` names how they were timed; `dropped` says that the config was clearly slower than the best.
    """

    median_ms: float
    ci95_ms: tuple[float, float] | None
    samples: int
    limited: bool = False
    dropped: bool = False
    policy: str = "events"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error against the float64 product: relative L2, and the largest |error|_ij / (|a_i| |b_j|)."""

    relative_l2: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device was doing meanwhile: clocks in MHz, power in watts, degrees Celsius, reasons for lower clocks."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """What compiling a config took in seconds, and what its launch takes; None where neither compiler nor driver tells.

    Local memory is a thread's, shared memory and the most threads a block's; `grid` blocks of `block` threads launch.
    """

    seconds: float | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    constant_bytes: int | None = None
    max_threads: int | None = None
    grid: int | None = None
    block: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a best is compared with: our best naive or tiled kernel, the untuned default, or the vendor's library."""

    name: str = ""
    timing: Timing | None = None
    gflops: float | None = None
    config: Mapping[str, int] | None = None
    error: Accuracy | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """How a config runs: blocks, threads of a block (x fastest), shared bytes of a block."""

    grid: int
    block: tuple[int, ...]
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Best(ShownBest):
    """The best known config of a problem on a device, and how exact (`match`) that answer is.

    `instructions` is the path by which its products reach an arithmetic unit: fma, wmma, mma.sync, wgmma or dmma.
    For nearest and default, `expected_loss` is the time that is expected over what a tune would reach, and `loss_bound`
    what that ratio does not exceed 95 times in 100. `provisional`: a tune of the problem is under way. `declined` says
    why `precision` is strict though the problem is to be emulated.
    """

    device: str
    problem: Problem
    kernel: str
    config: Mapping[str, int]
    match: str
    instructions: str = ""
    launch: Launch | None = None
    timing: Timing | None = None
    gflops: float | None = None
    error: Accuracy | None = None
    baselines: Mapping[str, Baseline | None] | None = None
    vendor_is_faster: bool | None = None
    matched_problem: Problem | None = None
    environment: str | None = None
    tuned_at: datetime | None = None
    conditions: Conditions | None = None
    provisional: bool = False
    expected_loss: float | None = None
    loss_bound: float | None = None
    precision: str = "strict"
    declined: str | None = None
    source: ImportSource | None = None


@dataclass(frozen=True, slots=True)
class Miss:
    """A shape that was asked for and not tuned: how often, and how exact the last answer was."""

    device_model: str
    problem: Problem
    count: int
    match: str
    first_at: datetime | None = None
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """What a config took in the round in which all of a result's were measured in turn: the median and its interval.

    `ci95_ms` is None if a single sample says nothing of it; `limited`: too few samples for an interval below 2 %.
    """

    kernel: str
    config: Mapping[str, int]
    median_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    samples: int | None = None
    limited: bool = False
    gflops: float | None = None


@dataclass(frozen=True, slots=True)
class Winner:
    """One shape of a finished job: the fastest config, beside naive, tiled, the default and the vendor's library.

    All figures are of one round; what was not measured in it is None, and its `_reason` says why. Of ours none is
    faster than the winner; the vendor's library may be, and is never the winner.
    """

    problem: Problem
    kernel: str
    config: Mapping[str, int]
    device_model: str = ""
    instructions: str = ""
    median_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    samples: int | None = None
    limited: bool = False
    gflops: float | None = None
    naive: Figure | None = None
    tiled: Figure | None = None
    default: Figure | None = None
    vendor: Figure | None = None
    naive_reason: str | None = None
    tiled_reason: str | None = None
    default_reason: str | None = None
    vendor_reason: str | None = None
    vendor_is_faster: bool | None = None


@dataclass(frozen=True, slots=True)
class Job(ShownJob):
    """One job as it stands."""

    id: str
    kind: str
    state: str
    progress: Progress = field(default_factory=Progress)
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the job will not change any more."""
        return self.state in ENDED

    @property
    def best(self) -> tuple[Winner, ...]:
        """What won each shape on each device model; best_config says more."""
        return tuple(from_json(Winner, entry) for entry in self._entries() if "kernel" in entry)

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """The entries of the shapes that failed: `problem` and `error`."""
        entries = (entry for entry in self._entries() if "kernel" not in entry)
        return tuple({**entry, "problem": from_json(Problem, entry["problem"])} for entry in entries)

    def _entries(self) -> list[Mapping[str, Any]]:
        return list((self.result or {}).get("best", ()))


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job: progress, trial or end; `id` resumes a stream."""

    id: int
    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One config tried on one problem and device model: measured, or rejected at a stage for a reason."""

    id: int
    job_id: str
    problem: Problem
    kernel: str
    config: Mapping[str, int]
    state: str
    device_model: str = ""
    device_uuid: str = ""
    environment: str = ""
    stage: str | None = None
    reason: str | None = None
    timing: Timing | None = None
    gflops: float | None = None
    error: Accuracy | None = None
    registers: int | None = None
    compilation: Compilation | None = None
    created_at: datetime | None = None
    round: str = "search"
    conditions: Conditions | None = None
    retaken: int = 0
    samples_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A config that is not served on a device: where it failed (`stage`), why, and since when.

    Without a dtype and precision it is quarantined for every one.
    """

    kernel: str
    config: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    precision: str | None = None
    stage: str = ""
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the service's host."""

    id: str
    platform: str
    name: str
    architecture: str
    model: str = ""
    driver: str = ""
    runtime: str = ""
    compiler: str = ""
    uuid: str = ""
    memory_bytes: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether products are served, and why not: ready, degraded (some kernels are quarantined) or not_ready.

    `verified` of `total` defaults have been checked so far and `pending` not yet; None if the service does not say.
    """

    status: str
    reasons: tuple[str, ...] = ()
    verified: int | None = None
    pending: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """What made a product; `declined`: why it is not emulated; `devices`: how many tiles each of several made."""

    c: NDArray[Any]
    kernel: str
    config: Mapping[str, int]
    match: str
    timing_ms: Mapping[str, float]
    device: str | None = None
    instructions: str = ""
    precision: str = "strict"
    declined: str | None = None
    certificate: Certificate | None = None
    devices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Covered:
    """A dtype and precision on a platform: the architectures on which a kernel computes it by the same instructions."""

    dtype: str
    precision: str
    platform: str
    architectures: tuple[str, ...] = ()
    instructions: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that the service can tune: its parameters, what it covers, and its role: serving, or lesson."""

    name: str
    summary: str = ""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    shapes: str = ""
    covers: tuple[Covered, ...] = ()
    role: str = "serving"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or a batch of them, that the service keeps: an operand that need not be sent.

    `shape` and `dtype` are NumPy's, `devices` those that have a copy. An evictable one may be dropped by the service
    where it needs room. `version` tells it from others that had its name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = 0
    evictable: bool = False
    version: int = 0
    devices: tuple[str, ...] = ()
    created_at: datetime | None = None
    used_at: datetime | None = None
    transposed: bool = False

    @property
    def T(self) -> Matrix:  # noqa: N802 - NumPy's name for it
        """Its transpose, or that of each of a batch, as an operand: nothing is copied anywhere."""
        return replace(self, shape=(*self.shape[:-2], *self.shape[-2:][::-1]), transposed=not self.transposed)
