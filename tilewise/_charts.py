"""ChartMethods: what charts of stored trials are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tilewise._requests import RequestMethods, filter_members, members_of
from tilewise._sansio import Flow, Operation
from tilewise.shapes import Problem, ShapeLike


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
