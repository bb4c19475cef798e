"""What the service answers, as frozen dataclasses. Members that a newer service adds are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from numpy.typing import NDArray

from app.client.reading import read

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of op(A)[m,k] x op(B)[k,n], for `batch` independent pairs."""

    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        sizes = f"{self.m}x{self.n}x{self.k}"
        return sizes if self.batch == 1 else f"{self.batch} of {sizes}"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is computed: sizes, dtype, precision class and transpositions."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float32"
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False

    @property
    def shape(self) -> Shape:
        """The sizes alone."""
        return Shape(self.m, self.n, self.k, self.batch)

    @property
    def key(self) -> str:
        """One line that names it, as in GET /trials: float32/strict/nn/1x1024x1024x1024, batch first."""
        letters = "".join("t" if transposed else "n" for transposed in (self.trans_a, self.trans_b))
        return f"{self.dtype}/{self.precision}/{letters}/{self.batch}x{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of `samples` launches and its 95 % interval, in milliseconds; None where one says nothing of it.

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
class Best:
    """The best known config of a problem on a device, and how exact (`match`) that answer is.

    `instructions` is the path by which its products reach an arithmetic unit: fma, wmma, mma.sync, wgmma or dmma.
    For nearest, `expected_loss` is the time that is expected over what a tune would reach, and `loss_bound` what that
    ratio does not exceed 95 times in 100. `provisional`: a tune of the problem is under way. `declined` says why
    `precision` is strict though the problem is to be emulated.
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
    matched_problem: Problem | None = None
    environment: str | None = None
    tuned_at: datetime | None = None
    conditions: Conditions | None = None
    provisional: bool = False
    expected_loss: float | None = None
    loss_bound: float | None = None
    precision: str = "strict"
    declined: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A shape that was asked for and not tuned: how often, and how exact the last answer was."""

    device_model: str
    problem: Problem
    count: int
    match: str
    first_at: datetime | None = None
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: trials done of at most `total`, and the fastest so far in milliseconds.

    `phase` is search or finals; `eta_seconds` the time left, None while nobody can say.
    """

    done: int = 0
    total: int = 0
    best_ms: float | None = None
    phase: str | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Winner:
    """One shape of a finished job: the fastest config, beside naive, tiled, the default and the vendor's library.

    `problem` is the problem's key; times are medians in milliseconds, None where there is none.
    """

    problem: str
    kernel: str
    config: Mapping[str, int]
    device_model: str = ""
    instructions: str = ""
    median_ms: float | None = None
    gflops: float | None = None
    naive_ms: float | None = None
    tiled_ms: float | None = None
    default_ms: float | None = None
    vendor_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
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
        return tuple(read(Winner, entry) for entry in self._entries() if "kernel" in entry)

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """The entries of the shapes that failed: `problem` and `error`."""
        return tuple(entry for entry in self._entries() if "kernel" not in entry)

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
    created_at: datetime | None = None
    round: str = "search"
    conditions: Conditions | None = None
    samples_ms: tuple[float, ...] | None = None


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


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product with what made it. `timing` is the service's own, in milliseconds: receive, queue, h2d, kernel.

    `instructions` is the path by which products reached an arithmetic unit, or the name of the vendor's library.
    `precision` is the one it was made in, `declined` says why that is strict where it was to be emulated.
    """

    c: NDArray[Any]
    kernel: str
    config: Mapping[str, int]
    match: str
    timing: Mapping[str, float]
    device: str | None = None
    instructions: str = ""
    precision: str = "strict"
    declined: str | None = None
