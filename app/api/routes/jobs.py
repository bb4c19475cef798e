"""Jobs: the list, one of them, its cancellation, its result, and its events as they are committed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Annotated, Any, Final

import orjson
from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.dispatch import ANSWERS
from app.api.errors import documented
from app.api.formats import json_matrix
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import header
from app.api.paging import jobs_page
from app.api.params import StrictModel, read_query
from app.api.responses import Job, Jobs, reply, told
from app.api.routes.job_result import result_of
from app.api.schemas import JobsQuery, Nothing, ResultQuery
from app.api.state import service_of, threads_of
from app.server.thread_pool import RequestThreads
from app.services.jobs.service import ENDED, JobEvent
from app.services.service import Service
from app.services.tuning.extension import extend
from app.store.records import JobRecord

router = DirectRouter("jobs")


_SILENCE: Final = 15.0  # seconds after which a comment keeps a quiet stream open
_CLOSING: Final = 0.5  # seconds between looks at whether the service shuts down
_TOGETHER: Final = 0.005  # seconds in which the streams that one commit wakes join in one reading
# Seconds after a telling for which what happens is told together, and the events that are sent at once: a send to each
# of a hundred followers takes milliseconds from whoever tunes.
_PAUSE: Final = 0.05
_MOST: Final = 256
_Told = tuple[int, bool, list[bytes]]  # the last event of a reading, whether it is the end, and what is sent of them
# Readings that have not begun, by service, job and the last event told.
_readings: Final[dict[tuple[int, str, int], asyncio.Task[_Told]]] = {}
JobId = Annotated[str, Path(description="The job's id.")]
EVENT_NUMBER: Final = "[0-9]{1,18}"
STREAM_HEADERS: Final = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
_ENDED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Job, "description": "The job, which had ended already."}
}
_RESULT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The result.",
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": {"c": [[19.0, 22.0], [43.0, 50.0]]}},
            **{
                media: {"schema": {"type": "string", "format": "binary"}}
                for media in ANSWERS
                if media != json_matrix.MEDIA
            },
        },
    }
}
_ONE: Final = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"enum": ["progress", "trial", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_TOLD: Final = 'id: 7\nevent: progress\ndata: {"state":"running","progress":{"done":7,"total":46}}\n\n'
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events `progress`, `trial` and `end`, each with a rising id and JSON data.",
        "content": {"text/event-stream": {"itemSchema": _ONE, "example": _TOLD}},
    },
    204: {"description": "The job has ended, and Last-Event-ID was its last event: do not ask again."},
}


class ExtendQuery(StrictModel):
    """How much longer a tune may take."""

    seconds: Annotated[float, Field(gt=0, le=3600, description="Seconds more, for the whole job.", examples=[20])] = 20


@router.get(
    "/jobs",
    summary="List jobs, newest first",
    response_model=Jobs,
    responses=documented(errors.Invalid, errors.StoreFailed),
    query=JobsQuery,
)
async def list_jobs(request: Request) -> Response:
    """A page of jobs. `next` is the page after it: give it as `cursor`."""
    asked = read_query(JobsQuery, request)
    return reply(await threads_of(request).call(jobs_page, service_of(request).jobs, asked, principal_of(request)))


@router.get(
    "/jobs/{job_id}",
    summary="One job",
    response_model=Job,
    responses=documented(errors.UnknownJob, errors.Invalid, errors.StoreFailed),
)
async def get_job(request: Request, job_id: JobId) -> Response:
    """A job as it stands. While it has not ended, Retry-After says when to ask again."""
    read_query(Nothing, request)
    _checked(job_id)
    service = service_of(request)
    job = await threads_of(request).call(service.jobs.get, job_id, principal_of(request))
    after = service.matmul.admission.retry_after() if job.kind == "matmul" else 1
    return reply(Job.of(job), headers={} if job.state in ENDED else {"Retry-After": str(after)})


@router.delete(
    "/jobs/{job_id}",
    summary="Cancel a job",
    status_code=202,
    response_model=Job,
    response_description="The job, `cancelling` until it has ended: within two seconds.",
    responses=_ENDED | documented(errors.UnknownJob, errors.Invalid, errors.StoreFailed),
)
async def cancel_job(request: Request, job_id: JobId) -> Response:
    """Ask a job to stop, whatever it does. It stays in the list, and what it has measured stays.

    A product that waits is never made. One whose launch is under way cannot be interrupted politely: the process that
    makes it is killed where the launch has not ended within a second, and replaced; what waits is made then.
    """
    read_query(Nothing, request)
    _checked(job_id)
    job = await threads_of(request).call(service_of(request).jobs.cancel, job_id, principal_of(request))
    return reply(Job.of(job), 200 if job.state in ENDED else 202)


@router.post(
    "/jobs/{job_id}/extend",
    summary="Give a tune more time",
    response_model=Job,
    responses=documented(
        errors.UnknownJob, errors.Invalid, errors.BudgetTooSmall, errors.QueueFull, errors.NoDevice, errors.StoreFailed
    ),
    query=ExtendQuery,
)
async def extend_job(request: Request, job_id: JobId) -> Response:
    """Seconds more for a tune that waits or runs: what it has found stays, and its search goes on."""
    asked, service = read_query(ExtendQuery, request), service_of(request)
    _checked(job_id)
    arguments = service.tuning, service.jobs, job_id, asked.seconds, principal_of(request)
    return reply(Job.of(await threads_of(request).call(extend, *arguments)))


@router.get(
    "/jobs/{job_id}/result",
    summary="The result of a job",
    response_class=Response,
    responses=_RESULT
    | documented(
        errors.UnknownJob,
        errors.NoResult,
        errors.NotAcceptable,
        errors.Invalid,
        errors.Unsupported,
        errors.TooLarge,
        errors.StoreFailed,
    ),
    query=ResultQuery,
    openapi_extra={
        "parameters": [
            header("Accept", f"Of a product, one of {', '.join(ANSWERS)}; .npy by default."),
        ]
    },
)
async def get_job_result(request: Request, job_id: JobId) -> Response:
    """What a tune job's `result` holds, alone; of a product, C in any form.

    C is kept for TILEWISE_RESULT_TTL seconds, unless newer results need its place within TILEWISE_RESULT_BYTES.
    """
    asked = read_query(ResultQuery, request)
    _checked(job_id)
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.jobs.get, job_id, principal_of(request))
    if job.kind == "matmul":
        return await result_of(request, job, asked.convert)
    if job.result is None:
        raise errors.NoResult(f"job {job.id} is {job.state} and has no result", state=job.state)
    return Response(orjson.dumps(told(job.result)), media_type="application/json")


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=Response,
    responses=_STREAM | documented(errors.UnknownJob, errors.Invalid, errors.StoreFailed),
    openapi_extra={
        "parameters": [
            header("Last-Event-ID", "Go on after this event.", type="string", pattern=f"^{EVENT_NUMBER}$"),
        ]
    },
)
async def follow_job(request: Request, job_id: JobId) -> Response:
    """Server-sent events. A trial is sent once it is committed, together with what is within 50 ms of it.

    A comment comes every 15 s of silence.
    """
    read_query(Nothing, request)
    _checked(job_id)
    after = last_event(request.headers.get("last-event-id", "0"))
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.jobs.get, job_id, principal_of(request))
    if job.state in ENDED and not await threads.call(service.jobs.events, job_id, after):
        return Response(status_code=204)
    return StreamingResponse(_stream(service, threads, job_id, after), 200, STREAM_HEADERS, "text/event-stream")


async def ended_within(service: Service, threads: RequestThreads, job_id: str, seconds: float) -> JobRecord:
    """The job once it has ended, or as it is after `seconds`. Takes no thread and no query while it waits."""
    until = monotonic() + seconds
    async with _woken(service, job_id) as wait:
        while (job := await threads.call(service.jobs.get, job_id)).state not in ENDED:
            while (left := until - monotonic()) > 0 and not service.closing.is_set():
                if await wait(min(left, _CLOSING)):
                    break
            else:
                break
    return job


async def _stream(service: Service, threads: RequestThreads, job_id: str, after: int) -> AsyncIterator[bytes]:
    quiet_since = monotonic()
    async with _woken(service, job_id) as wait:
        while not service.closing.is_set():
            after, is_end, pieces = await _told(service, threads, job_id, after)
            for piece in pieces:
                yield piece
                quiet_since = monotonic()
            if is_end:
                return
            if pieces:
                await asyncio.sleep(_PAUSE)
            while not await wait(_CLOSING) and not service.closing.is_set():
                if monotonic() - quiet_since >= _SILENCE:
                    yield b": \n\n"
                    quiet_since = monotonic()


async def _told(service: Service, threads: RequestThreads, job_id: str, after: int) -> _Told:
    """A job's events after one, read and rendered once for all streams that were woken together."""
    key = (id(service), job_id, after)
    if key not in _readings:
        _readings[key] = asyncio.create_task(_read(key, service, threads))
    return await asyncio.shield(_readings[key])


async def _read(key: tuple[int, str, int], service: Service, threads: RequestThreads) -> _Told:
    await asyncio.sleep(_TOGETHER)
    del _readings[key]  # whoever is woken from now on may be for more than this reading finds
    _, job_id, after = key
    events = await threads.call(service.jobs.events, job_id, after)
    pieces = [b"".join(map(_written, events[at : at + _MOST])) for at in range(0, len(events), _MOST)]
    return (events[-1].id, events[-1].name == "end", pieces) if events else (after, False, [])


@asynccontextmanager
async def _woken(service: Service, job_id: str) -> AsyncIterator[Callable[[float], Any]]:
    """Gives a wait with a timeout, which says whether something was committed for the job meanwhile."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if not changed.is_set():  # else it is read once that is cleared: whoever tunes is not held up
            loop.call_soon_threadsafe(changed.set)

    async def wait(seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        changed.clear()
        return True

    unsubscribe = service.jobs.subscribe(job_id, wake)
    try:
        yield wait
    finally:
        unsubscribe()


def _checked(job_id: str) -> None:
    """Refuse what is no id before a query: some databases do not take every character."""
    if not (job_id.isascii() and job_id.isprintable()):
        raise errors.UnknownJob(f"there is no job {job_id!r}")


def _written(event: JobEvent) -> bytes:
    data = orjson.dumps(event.data, default=str)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.name.encode(), data)


def last_event(text: str) -> int:
    """The number in a Last-Event-ID; raises Invalid."""
    if not re.fullmatch(EVENT_NUMBER, text):
        raise errors.Invalid(f"Last-Event-ID is the number of an event, got {text[:40]!r}")
    return int(text)
