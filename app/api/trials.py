"""Stored trials: every config that was tried, with its timing or the reason why it was rejected."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.answers import Trials, reply
from app.api.errors import documented
from app.api.openapi import DirectRoute, parameters
from app.api.query import read_query
from app.api.schemas import TrialsQuery
from app.api.service import service_of, threads_of

router = APIRouter(route_class=DirectRoute, tags=["tuning"])


@router.get(
    "/trials",
    summary="List trials, oldest first",
    response_model=Trials,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.StoreFailed),
    openapi_extra={"parameters": parameters(TrialsQuery)},
)
async def list_trials(request: Request) -> Response:
    """A page of trials. `next` is the page after it: give it as `after`."""
    asked, service = read_query(TrialsQuery, request), service_of(request)
    model = None if asked.device is None else service.fleet.unit(asked.device).device.model
    page = await threads_of(request).call(
        service.jobs.trials,
        device_model=model,
        problem_key=asked.problem,
        kernel=asked.kernel,
        state=asked.state,
        job_id=asked.job_id,
        after=asked.after,
        limit=asked.limit,
    )
    return reply(Trials.of(page, asked.limit))
