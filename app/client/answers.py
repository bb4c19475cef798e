"""What the service answers, as frozen dataclasses. Members that a newer service adds are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from numpy.typing import NDArray

T = TypeVar("T")
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
    """The median of `samples` launches and its 95 % interval, in milliseconds."""

    median_ms: float
    ci95_ms: tuple[float, float]
    samples: int
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error against the float64 product: relative L2, and the largest |error|_ij / (|a_i| |b_j|)."""

    relative_l2: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a best is compared with: our best naive or tiled kernel, or the vendor's library."""

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
    """The best known config of a problem on a device, and how exact (`match`) that answer is."""

    device: str
    problem: Problem
    kernel: str
    config: Mapping[str, int]
    match: str
    launch: Launch | None = None
    timing: Timing | None = None
    gflops: float | None = None
    error: Accuracy | None = None
    baselines: Mapping[str, Baseline | None] | None = None
    matched_problem: Problem | None = None
    environment: str | None = None
    tuned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: trials done of about `total`, and the fastest so far in milliseconds."""

    done: int = 0
    total: int = 0
    best_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Winner:
    """One shape of a finished job: the fastest config, beside the best naive and tiled and the vendor's library.

    `problem` is the problem's key; times are medians in milliseconds, None where there is none.
    """

    problem: str
    kernel: str
    config: Mapping[str, int]
    device_model: str = ""
    median_ms: float | None = None
    gflops: float | None = None
    naive_ms: float | None = None
    tiled_ms: float | None = None
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


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that the service can tune: its parameters with their values, and what it covers."""

    name: str
    summary: str = ""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product with what made it. `timing` is the service's own, in milliseconds: receive, queue, h2d, kernel."""

    c: NDArray[Any]
    kernel: str
    config: Mapping[str, int]
    match: str
    timing: Mapping[str, float]
    device: str | None = None


def read(kind: type[T], body: Mapping[str, Any]) -> T:
    """Make a dataclass of a JSON object; raises TypeError where a member that has no default is missing."""
    hints = _hints(cast("Any", kind))
    return kind(**{name: _value(hint, body[name]) for name, hint in hints.items() if name in body})


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {member.name: hints[member.name] for member in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin in (Union, UnionType):
        return _value(next(kind for kind in arguments if kind is not type(None)), value)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if origin is Mapping:
        return {name: _value(arguments[1], each) for name, each in value.items()}
    if hint is datetime:
        return datetime.fromisoformat(value)
    return read(cast("type[Any]", hint), value) if is_dataclass(hint) else value
