"""POST /tune: an order for tuning becomes one durable job."""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.answers import Job, reply
from app.api.errors import documented, timed_out
from app.api.jobs import ended_within
from app.api.openapi import DirectRoute, body, header
from app.api.query import read_json
from app.api.schemas import TuneRequest
from app.api.service import service_of, threads_of
from app.services.jobs import ENDED
from app.services.principal import ANONYMOUS

router = APIRouter(route_class=DirectRoute, tags=["tuning"])

_LONGEST: Final = 60.0  # seconds that a request waits for its job
_WAIT: Final = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?([0-9]{1,6}(?:\.[0-9]{1,3})?)"?\s*(?:$|[,;])', re.IGNORECASE)
_LOCATION: Final = {"description": "The job's place.", "schema": {"type": "string"}}
_AGAIN: Final = {"description": "Seconds after which to ask for the job.", "schema": {"type": "integer"}}
_APPLIED: Final = {"description": "How long the answer was ready to wait.", "schema": {"type": "string"}}

_JOB: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Job, "description": "The job, ended within the time that `Prefer: wait` gave it."},
    202: {"headers": {"Location": _LOCATION, "Retry-After": _AGAIN, "Preference-Applied": _APPLIED}},
}


@router.post(
    "/tune",
    summary="Tune shapes",
    status_code=202,
    response_model=Job,
    response_description="The job, which may be one that does the same work already.",
    responses=_JOB
    | timed_out()
    | documented(
        errors.Malformed,
        errors.UnknownDevice,
        errors.UnknownKernel,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.Unsupported,
        errors.TooLarge,
        errors.QueueFull,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    openapi_extra={
        "parameters": [header("Prefer", "`wait=N` waits up to N seconds, 60 at most, for the job's end.")],
        "requestBody": body(TuneRequest),
    },
)
async def tune(request: Request) -> Response:
    """Compile, verify and measure tile sizes for the shapes, and keep the fastest of each.

    The same work is one job: while it runs, and after it as long as its answers are exact and `retune` is false.
    A job survives a restart of the service. Follow it at `/jobs/{id}/events`.
    """
    order = (await read_json(TuneRequest, request)).order()
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.tuning.submit, order, ANONYMOUS)
    headers = {"Location": f"/jobs/{job.id}"}
    patience = wanted_wait(",".join(request.headers.getlist("prefer")))
    if patience is not None:
        job = await ended_within(service, threads, job.id, patience)
        headers["Preference-Applied"] = f"wait={patience:g}"
        if job.state in ENDED:
            return reply(Job.of(job), 200, headers)
    return reply(Job.of(job), 202, headers | {"Retry-After": "1"})


def wanted_wait(prefer: str) -> float | None:
    """The seconds that a Prefer header asks to wait, 60 at most; None where it does not ask."""
    found = _WAIT.search(prefer)
    return min(float(found[1]), _LONGEST) if found else None
