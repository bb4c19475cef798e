"""GET /roofline: a device's ceilings, and what was measured below them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Config, Problem
from app.api.routes.charts.tables import TABLE, told
from app.api.schemas import DeviceId, DtypeField, Name, PrecisionField, ProblemFilter
from app.api.state import service_of, threads_of
from app.services.best.lookup import BestConfigs
from app.services.charts import roofline as charts
from app.services.charts.points import ConfigPoint, config_points
from app.services.jobs.service import JobService
from kernels import problem as kernel_problem
from kernels.device import Device

router = DirectRouter("trials")


class RooflineQuery(ProblemFilter):
    """Which device's roofline, for which class of problems, and with which points."""

    device: DeviceId = None
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    points: Annotated[
        Literal["bests", "trials"], Field(description="What is drawn: the best of each problem, or every config tried.")
    ] = "bests"
    kernel: Annotated[Name | None, Field(description="Only this kernel's points.")] = None
    job_id: Annotated[Name | None, Field(description="Only this job's.")] = None
    limit: Annotated[int, Field(ge=1, le=20_000, description="Of trials the newest so many.")] = 5000


class Ceiling(Answer):
    """A bound of a roofline, and where its figure comes from."""

    name: Annotated[str, Field(description="memory, fma, tensor cores, or reached.")]
    kind: Literal["memory", "compute"]
    value: Annotated[float, Field(description="Bytes a second of memory, operations a second else.")]
    source: Annotated[
        Literal["measured", "declared", "estimated"],
        Field(description="Measured here, told by the driver, or worked out from what it tells."),
    ]
    basis: Annotated[str, Field(description="How, in words.")]


class RooflinePoint(Answer):
    """A config's place in a roofline."""

    problem: Problem
    kernel: str
    config: Config
    round: Literal["search", "final", "report"]
    median_ms: float
    gflops: float
    intensity: Annotated[float, Field(description="Operations over the fewest bytes: A and B read once, C written.")]
    loaded_intensity: Annotated[
        float | None,
        Field(description="Operations over the bytes that blocks load and store by the model, with no cache."),
    ]
    bound: Annotated[Literal["memory", "compute"], Field(description="Which ceiling is lower at `intensity`.")]
    attained: Annotated[float, Field(description="The rate as a fraction of that ceiling.")]


class Roofline(Answer):
    """Ceilings, the intensity at which memory's meets the highest of arithmetic, and points."""

    device: str
    dtype: str
    precision: str
    ceilings: list[Ceiling]
    ridge: Annotated[float, Field(description="Operations a byte.")]
    points: list[RooflinePoint]


_PROBLEM: Final = {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
_POINT: Final = {
    "problem": _PROBLEM | {"trans_a": False, "trans_b": False},
    "kernel": "tiled",
    "config": {"BM": 16, "BN": 16, "BK": 16},
    "round": "report",
    "median_ms": 0.0425,
    "gflops": 6316.1,
    "intensity": 85.3,
    "loaded_intensity": 3.94,
    "bound": "compute",
    "attained": 0.094,
}
_CEILING: Final = {
    "name": "fma",
    "kind": "compute",
    "value": 66.9e12,
    "source": "declared",
    "basis": "units x clock, as the driver tells them: nobody has measured it",
}
EXAMPLES: Final[dict[str, Any]] = {
    "Ceiling": _CEILING,
    "RooflinePoint": _POINT,
    "Roofline": {
        "device": "cuda:0",
        "dtype": "float32",
        "precision": "strict",
        "ceilings": [_CEILING],
        "ridge": 13.9,
        "points": [_POINT],
    },
}


@router.get(
    "/roofline",
    summary="A device's ceilings, and what reached which",
    response_model=Roofline,
    responses=TABLE
    | documented(
        errors.UnknownDevice,
        errors.UnknownJob,
        errors.NotAcceptable,
        errors.Invalid,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    query=RooflineQuery,
)
async def roofline(request: Request) -> Response:
    """What bounds a class of problems on a device, each ceiling with its source, and the rate of what was measured."""
    asked, service = read_query(RooflineQuery, request), service_of(request)
    if asked.job_id is not None:
        await threads_of(request).call(service.jobs.get, asked.job_id, principal_of(request))
    device = service.fleet.unit(asked.device).device
    return told(
        request,
        await threads_of(request).call(ceilings_and_points, service.jobs, service.best, asked, device),
        "points",
    )


def ceilings_and_points(jobs: JobService, best: BestConfigs, asked: RooflineQuery, device: Device) -> Roofline:
    """The answer."""
    kind = kernel_problem.Problem(1, 1, 1, dtype=asked.dtype, precision=asked.precision)
    points = _bests(best, asked, device) if asked.points == "bests" else _trials(jobs, asked, device)
    found = charts.roofline(kind, device, points)
    return Roofline(
        device=device.id,
        dtype=asked.dtype,
        precision=asked.precision,
        ceilings=[Ceiling.model_validate(asdict(each)) for each in found.ceilings],
        ridge=found.ridge,
        points=[_point(each) for each in found.points],
    )


def _point(point: charts.RooflinePoint) -> RooflinePoint:
    members = asdict(point) | {"problem": Problem.of(point.problem), "config": dict(point.config)}
    return RooflinePoint.model_validate(members)


def _trials(jobs: JobService, asked: RooflineQuery, device: Device) -> list[ConfigPoint]:
    filters = {"kernel": asked.kernel, "job_id": asked.job_id, "device_model": device.model}
    return config_points(jobs, asked.members(), limit=asked.limit, **filters)


def _bests(best: BestConfigs, asked: RooflineQuery, device: Device) -> list[ConfigPoint]:
    members = asked.members().items()
    trials = (record.trial for record in best.all() if record.device_model == device.model)
    return [
        ConfigPoint(trial.problem, trial.kernel, trial.config, trial.round, trial.median_ms, None)
        for trial in trials
        if asked.kernel in {None, trial.kernel}
        and asked.job_id in {None, trial.job_id}
        and all(getattr(trial.problem, name) == value for name, value in members)
    ]
