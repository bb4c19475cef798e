"""GET /jobs/{job_id}/trace: what a job spent its time on, for Perfetto."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.routes.jobs import JobId
from app.api.schemas import Nothing
from app.api.state import service_of, threads_of
from app.observability.job_traces import JobTrace, chrome_trace

router = DirectRouter("jobs")

_EXAMPLE: Final = {
    "traceEvents": [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "job"}},
        {"ph": "X", "name": "trial", "cat": "job", "ts": 0.0, "dur": 812.5, "pid": 1, "tid": 1, "args": {}},
    ],
    "displayTimeUnit": "ms",
    "otherData": {"first_nanoseconds": 1769860809000000000, "dropped_spans": 0, "dropped_requests": 0},
}
_TRACE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The trace, in Chrome's format: complete events and names of threads.",
        "content": {"application/json": {"schema": {"type": "object"}, "example": _EXAMPLE}},
    }
}


@router.get(
    "/jobs/{job_id}/trace",
    summary="What a job spent its time on",
    response_class=Response,
    responses=_TRACE | documented(errors.UnknownJob, errors.NoResult, errors.Invalid, errors.StoreFailed),
)
async def get_job_trace(request: Request, job_id: JobId) -> Response:
    """A tune's spans so far, as Perfetto and chrome://tracing open them: the job, workers, compilers, the store, HTTP.

    HTTP has the requests that were answered meanwhile, whoever asked: method, route and status, of the newest 2,000.

    They are kept in memory, of the 16 newest jobs that ran since the service started, or of fewer that have 40,000:
    20,000 each.
    """
    read_query(Nothing, request)
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.jobs.get, job_id, principal_of(request))
    trace = service.tuning.traces.get(job.id)
    if trace is None:
        raise errors.NoResult(f"job {job.id} is {job.state}, and no trace of it is kept", state=job.state)
    title = f"tilewise {job.kind} {job.id[:8]}"
    return Response(await threads.call(_rendered, trace, title), media_type="application/json")


def _rendered(trace: JobTrace, title: str) -> bytes:
    return orjson.dumps(chrome_trace(trace, title))
