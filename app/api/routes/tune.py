"""POST /tune: a tune becomes one durable job."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.json_body import read_json
from app.api.errors import documented, timed_out
from app.api.idempotency import KEY, key_of, once
from app.api.negotiation import Preference, preference
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import body, header
from app.api.responses import Job, reply
from app.api.routes.jobs import ended_within
from app.api.schemas import TuneRequest
from app.api.state import service_of, threads_of
from app.services.jobs.idempotency import IdempotentRequest, fingerprint
from app.services.jobs.service import ENDED
from app.services.tuning.request import TuneSpec
from app.services.tuning.service import record_nothing
from app.store.records import JobRecord

router = DirectRouter("tune")

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
        errors.KeyInUse,
        errors.KeyReused,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.Unsupported,
        errors.TooLarge,
        errors.BudgetTooSmall,
        errors.QueueFull,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    openapi_extra={
        "parameters": [header("Prefer", "`wait=N` waits up to N seconds, 60 at most, for the job's end."), KEY],
        "requestBody": body(TuneRequest),
    },
)
async def tune(request: Request) -> Response:
    """Compile, verify and measure tile sizes for the shapes, and keep the fastest of each.

    The same work is one job: while it runs, and after it as long as its answers are exact and `retune` is false.
    A job survives a restart of the service. Follow it at `/jobs/{id}/events`.
    """
    asked, prefer = await read_json(TuneRequest, request), preference(request)
    print_ = _fingerprint(request, asked) if key_of(request) else ""
    return await once(request, print_, partial(_submitted, request, asked.spec(), prefer), _told)


def _fingerprint(request: Request, asked: TuneRequest) -> str:
    return fingerprint(
        request.method, request.url.path, request.scope["query_string"], asked.model_dump_json().encode()
    )


async def _submitted(
    request: Request, spec: TuneSpec, prefer: Preference, attempt: IdempotentRequest | None
) -> Response:
    service, threads = service_of(request), threads_of(request)
    record_job = record_nothing if attempt is None else attempt.record_job
    job = await threads.call(service.tuning.submit, spec, principal_of(request), record_job)
    headers = {"Location": f"/jobs/{job.id}"}
    if prefer.wait is not None:
        job = await ended_within(service, threads, job.id, prefer.wait)
        headers["Preference-Applied"] = f"wait={prefer.wait:g}"
        if job.state in ENDED:
            return reply(Job.of(job), 200, headers)
    return reply(Job.of(job), 202, headers | {"Retry-After": "1"})


async def _told(job: JobRecord) -> Response:
    """The job, where its first answer was not kept."""
    return reply(Job.of(job), 202, {"Location": f"/jobs/{job.id}", "Retry-After": "1"})
