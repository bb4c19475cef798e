"""GET /importance: how much each parameter of a kernel matters on a problem."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Problem
from app.api.routes.charts.tables import TABLE, told
from app.api.schemas import DeviceId, Name, ProblemQuery
from app.api.state import service_of, threads_of
from app.services.charts import importance as charts
from app.services.charts.points import config_points
from app.services.jobs.service import JobService
from kernels.device import Device

router = DirectRouter("trials")


class ImportanceQuery(ProblemQuery):
    """Which problem's trials, of which kernel."""

    device: DeviceId = None
    kernel: Annotated[Name | None, Field(description="Whose configs; by default the fastest config's kernel.")] = None


class ParameterImportance(Answer):
    """How much one parameter matters, in parts of the variance of log time."""

    name: Annotated[str, Field(examples=["BK"])]
    alone: Annotated[float, Field(description="What the parameter explains alone, from 0 to 1.")]
    shuffled: Annotated[
        float | None,
        Field(
            description="By how much a forest of trees foretells unseen configs worse once this parameter's values are "
            "shuffled among them: what it and its interplay with the others matter. About 0 or below: nothing."
        ),
    ]


class Importance(Answer):
    """A kernel's parameters that vary, the one that matters most first."""

    device: str
    problem: Problem
    kernel: str
    measured: Annotated[int, Field(description="Configs with a time.")]
    explained: Annotated[
        float | None,
        Field(description=f"What the forest explains of unseen configs; null below {charts.FEWEST} configs."),
    ]
    parameters: list[ParameterImportance]


_PARAMETER: Final = {"name": "BK", "alone": 0.31, "shuffled": 0.84}
EXAMPLES: Final[dict[str, Any]] = {
    "ParameterImportance": _PARAMETER,
    "Importance": {
        "device": "cuda:0",
        "problem": {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
        | {"trans_a": False, "trans_b": False},
        "kernel": "tiled",
        "measured": 120,
        "explained": 0.93,
        "parameters": [_PARAMETER],
    },
}


@router.get(
    "/importance",
    summary="Which parameters matter",
    response_model=Importance,
    responses=TABLE
    | documented(
        errors.UnknownDevice,
        errors.NotTuned,
        errors.NotAcceptable,
        errors.Invalid,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    query=ImportanceQuery,
)
async def importance(request: Request) -> Response:
    """Of the trials of a problem: what each parameter explains alone, and what a forest loses without it.

    It is of the configs that were tried, which a search does not choose evenly.
    """
    asked, service = read_query(ImportanceQuery, request), service_of(request)
    device = service.fleet.unit(asked.device).device
    found = await threads_of(request).call(parameter_importance, service.jobs, asked, device)
    return told(request, found, "parameters")


def parameter_importance(jobs: JobService, asked: ImportanceQuery, device: Device) -> Importance:
    """The answer; raises NotTuned."""
    problem = asked.problem()
    members = {name: getattr(asked, name) for name in ProblemQuery.model_fields}
    points = [one for one in config_points(jobs, members, device_model=device.model) if one.kernel != "vendor"]
    found = charts.importance(points, asked.kernel, problem)
    return Importance.model_validate({"device": device.id, "problem": Problem.of(problem), **asdict(found)})
