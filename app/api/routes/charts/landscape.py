"""GET /landscape: the trials of a problem as a grid over two parameters of a kernel."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Problem
from app.api.routes.charts.tables import TABLE, told
from app.api.schemas import ConfigText, DeviceId, Name, ProblemQuery, config_of
from app.api.state import service_of, threads_of
from app.services.charts import landscape as charts
from app.services.charts.points import config_points
from app.services.jobs.service import JobService
from kernels.device import Device

router = DirectRouter("trials")

Parameter = Annotated[str, Field(pattern="^[A-Z][A-Z_]{0,15}$")]


class LandscapeQuery(ProblemQuery):
    """Which problem's trials, of which kernel, over which two of its parameters."""

    device: DeviceId = None
    kernel: Annotated[Name | None, Field(description="Whose configs; by default the fastest config's kernel.")] = None
    x: Annotated[Parameter | None, Field(description="The parameter across; by default BN.", examples=["BN"])] = None
    y: Annotated[Parameter | None, Field(description="The parameter down; by default BM.", examples=["BM"])] = None
    held: Annotated[
        ConfigText | None, Field(description="Only configs that have these values.", examples=["BK=16"])
    ] = None
    aggregate: Annotated[
        Literal["best", "median"], Field(description="A cell's time: its fastest config's, or the median of all.")
    ] = "best"
    job_id: Annotated[Name | None, Field(description="Only this job's trials.")] = None


class GridCell(Answer):
    """The configs that have two values: tried and measured, all rejected, not tried, or refused by the space."""

    x: int
    y: int
    state: Literal["measured", "rejected", "untried", "illegal"]
    median_ms: float | None
    gflops: float | None
    config: Annotated[dict[str, int] | None, Field(description="The fastest of them.")]
    measured: Annotated[int, Field(description="How many were measured.")]
    rejected: Annotated[int, Field(description="How many were rejected.")]
    reason: Annotated[
        str | None,
        Field(description="Why the first was rejected, or the rule that refuses an illegal cell's first config."),
    ]


class TimeGrid(Answer):
    """A grid of cells, row by row of `y_values`; a config's time is of its best round: report, final or search."""

    device: str
    problem: Problem
    kernel: str
    x: Annotated[str, Field(description="The parameter across.", examples=["BN"])]
    y: Annotated[str, Field(description="The parameter down.", examples=["BM"])]
    x_values: list[int]
    y_values: list[int]
    tried: Annotated[dict[str, list[int]], Field(description="Each parameter's values that were tried.")]
    kernels: Annotated[list[str], Field(description="The kernels of which there are trials, for `kernel`.")]
    cells: list[GridCell]


_CELL: Final = {
    "x": 16,
    "y": 16,
    "state": "measured",
    "median_ms": 0.0425,
    "gflops": 6316.1,
    "config": {"BM": 16, "BN": 16, "BK": 16},
    "measured": 3,
    "rejected": 0,
    "reason": None,
}
_PROBLEM: Final = {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
EXAMPLES: Final[dict[str, Any]] = {
    "GridCell": _CELL,
    "TimeGrid": {
        "device": "cuda:0",
        "problem": _PROBLEM | {"trans_a": False, "trans_b": False},
        "kernel": "tiled",
        "x": "BN",
        "y": "BM",
        "x_values": [16],
        "y_values": [16],
        "tried": {"BM": [16], "BN": [16], "BK": [8, 16, 32]},
        "kernels": ["naive", "tiled"],
        "cells": [_CELL],
    },
}


@router.get(
    "/landscape",
    summary="The best time over two parameters",
    response_model=TimeGrid,
    responses=TABLE
    | documented(
        errors.UnknownDevice,
        errors.UnknownJob,
        errors.NotTuned,
        errors.NotAcceptable,
        errors.Invalid,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    query=LandscapeQuery,
)
async def landscape(request: Request) -> Response:
    """Every trial of a problem as a grid of cells: the best time of each, and why there is none where there is none."""
    asked, service = read_query(LandscapeQuery, request), service_of(request)
    if asked.job_id is not None:
        await threads_of(request).call(service.jobs.get, asked.job_id, principal_of(request))
    device = service.fleet.unit(asked.device).device
    return told(request, await threads_of(request).call(time_grid, service.jobs, asked, device), "cells")


def time_grid(jobs: JobService, asked: LandscapeQuery, device: Device) -> TimeGrid:
    """The answer; raises NotTuned and Invalid."""
    problem = asked.problem()
    filters = {"device_model": device.model, "job_id": asked.job_id}
    points = [point for point in config_points(jobs, _members(asked), **filters) if point.kernel != "vendor"]
    held = None if asked.held is None else config_of(asked.held)
    axes = charts.Axes(asked.x, asked.y, held, asked.aggregate)
    found = charts.landscape(points, asked.kernel, problem, device, axes)
    return TimeGrid(
        device=device.id,
        problem=Problem.of(problem),
        kernel=found.kernel,
        x=found.x,
        y=found.y,
        x_values=list(found.x_values),
        y_values=list(found.y_values),
        tried={name: list(values) for name, values in found.tried.items()},
        kernels=list(dict.fromkeys(point.kernel for point in points)),
        cells=[_cell(cell, problem.flops) for cell in found.cells],
    )


def _cell(cell: charts.GridCell, flops: int) -> GridCell:
    return GridCell(
        x=cell.x,
        y=cell.y,
        state=cast("Any", cell.state),
        median_ms=cell.median_ms,
        gflops=None if cell.median_ms is None else flops / cell.median_ms / 1e6,
        config=None if cell.config is None else dict(cell.config),
        measured=cell.measured,
        rejected=cell.rejected,
        reason=cell.reason,
    )


def _members(asked: ProblemQuery) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in ProblemQuery.model_fields}
