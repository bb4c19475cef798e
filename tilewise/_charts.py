"""ChartMethods: what charts of stored trials are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tilewise._analysis import Occupancy
from tilewise._requests import RequestMethods, filter_members, members_of
from tilewise._sansio import Flow, Operation
from tilewise.shapes import Problem, ShapeLike, shape_of


@dataclass(frozen=True, slots=True)
class GridCell:
    """The configs that have two values: `state` is measured, rejected, untried or illegal; `config` is the fastest."""

    x: int
    y: int
    state: str
    median_ms: float | None = None
    gflops: float | None = None
    config: Mapping[str, int] | None = None
    measured: int = 0
    rejected: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """The trials of a problem over two parameters of a kernel: cells row by row of `y_values`."""

    device: str
    problem: Problem
    kernel: str
    x: str
    y: str
    x_values: tuple[int, ...]
    y_values: tuple[int, ...]
    cells: tuple[GridCell, ...]
    tried: Mapping[str, tuple[int, ...]]
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A bound: `kind` memory in bytes/s or compute in flop/s; `source` is measured, declared or estimated."""

    name: str
    kind: str
    value: float
    source: str
    basis: str


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A config's rate at its operations a byte, and what part of the lower ceiling there that is."""

    problem: Problem
    kernel: str
    config: Mapping[str, int]
    round: str
    median_ms: float
    gflops: float
    intensity: float
    loaded_intensity: float | None
    bound: str
    attained: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device's ceilings for a class of problems, the intensity at which they meet, and points below them."""

    device: str
    dtype: str
    precision: str
    ceilings: tuple[Ceiling, ...]
    ridge: float
    points: tuple[RooflinePoint, ...]


@dataclass(frozen=True, slots=True)
class WarpAccess:
    """A load or store of a warp: `taken` turns of shared memory, or sectors of global, where `least` would do."""

    what: str
    memory: str
    taken: int
    least: int


@dataclass(frozen=True, slots=True)
class LessonRun:
    """A config of a lesson, by the model and as measured; `measured_ms` is None before a job has measured it."""

    config: Mapping[str, int]
    bytes_read: int
    intensity: float
    blocks: int
    threads: int
    shared_bytes: int
    occupancy: Occupancy | None
    accesses: tuple[WarpAccess, ...]
    predicted_ms: float
    measured_ms: float | None


@dataclass(frozen=True, slots=True)
class LessonStep:
    """A rung of the ladder: its idea, its diff to the rung below, and what it does on a device.

    `run` is None where it does not run there, for `refusal`. `changed` is the run with `change` made to its config,
    None where that is not legal.
    """

    number: int
    kernel: str
    title: str
    idea: str
    source: str
    diff: str
    problem: Problem
    instructions: str
    refusal: str | None
    run: LessonRun | None
    change: Mapping[str, int]
    changed: LessonRun | None


@dataclass(frozen=True, slots=True)
class TileChoice:
    """A square tile of float32 on a device, and whether the articles' decision tree advises it there."""

    tile: int
    shared_bytes: int
    fits: bool
    occupancy: float | None
    advised: bool


@dataclass(frozen=True, slots=True)
class Lessons:
    """The ladder of lessons on a device, and the articles' decision tree for tiles, answered for it."""

    device: str
    lessons: tuple[LessonStep, ...]
    advice: str = ""
    tiles: tuple[TileChoice, ...] = ()


class ChartMethods(RequestMethods):
    """Aggregates of trials. Every method raises ClientError if the service refuses."""

    @Operation
    def job_trace(self, job_id: str) -> Flow[bytes]:
        """Give what a tune spent its time on, as a file that Perfetto opens."""
        return (yield from self._get(f"/jobs/{quote(job_id, safe='')}/trace")).body

    @Operation
    def landscape(
        self,
        problem: Problem,
        *,
        kernel: str | None = None,
        x: str | None = None,
        y: str | None = None,
        device: str | None = None,
    ) -> Flow[TimeGrid]:
        """Give the best time over two parameters of a kernel, by default of the fastest config's."""
        query = {**members_of(problem), "kernel": kernel, "x": x, "y": y, "device": device}
        return self._as(TimeGrid, (yield from self._get("/landscape", query)))

    @Operation
    def lessons(
        self, shape: ShapeLike = 512, *, change: Mapping[str, int] | None = None, device: str | None = None
    ) -> Flow[Lessons]:
        """Give the ladder of lessons: what each changes, what it costs by the model, and what a job measured of it."""
        wanted = shape_of(shape)
        sizes = {"m": wanted.m, "n": wanted.n, "k": wanted.k}
        told = ",".join(f"{name}={value}" for name, value in (change or {}).items()) or None
        return self._as(Lessons, (yield from self._get("/lessons", {**sizes, "change": told, "device": device})))

    @Operation
    def roofline(
        self,
        problem: Problem | ShapeLike | None = None,
        *,
        dtype: str = "float32",
        precision: str = "strict",
        points: str = "bests",
        device: str | None = None,
    ) -> Flow[Roofline]:
        """Give a device's ceilings, and of one problem or all where the bests, or all trials, lie below them."""
        kind = {} if isinstance(problem, Problem) else {"dtype": dtype, "precision": precision}
        query = {**kind, **filter_members(problem, None), **kind, "points": points, "device": device}
        return self._as(Roofline, (yield from self._get("/roofline", query)))
