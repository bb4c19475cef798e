"""GET /events: what happens to all jobs, and the service's health, as one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.event_broadcaster import Follower, health_event, written
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import header
from app.api.params import read_query
from app.api.routes.jobs import EVENT_NUMBER, STREAM_HEADERS, last_event
from app.api.schemas import Nothing
from app.api.state import State, state_of
from app.services.jobs.feed import JobFeed

router = DirectRouter("jobs")

_ONE: Final = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": f"^{EVENT_NUMBER}$"},
        "event": {"enum": ["job", "trial", "health"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_TOLD: Final = 'event: health\ndata: {"status":"ready","reasons":[]}\n\n'
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events `job` (its state and progress), `trial` (with its `job`) and `health`, with JSON data.",
        "content": {"text/event-stream": {"itemSchema": _ONE, "example": _TOLD}},
    }
}


@router.get(
    "/events",
    summary="Follow all jobs",
    response_class=Response,
    responses=_STREAM | documented(errors.Invalid, errors.StoreFailed),
    openapi_extra={
        "parameters": [
            header("Last-Event-ID", "Go on after this event.", type="string", pattern=f"^{EVENT_NUMBER}$"),
        ]
    },
)
async def follow_events(request: Request) -> Response:
    """Server-sent events of all jobs that are yours: first the jobs that have not ended, then what happens.

    What happens within a tenth of a second is told together, to all followers from one reading. Health is told every
    five seconds. After Last-Event-ID the newest 1,000 trials since are told.
    """
    read_query(Nothing, request)
    given = request.headers.get("last-event-id")
    after = None if given is None else last_event(given)
    follower = Follower(principal_of(request))
    return StreamingResponse(_stream(state_of(request.app), follower, after), 200, STREAM_HEADERS, "text/event-stream")


async def _stream(state: State, follower: Follower, after: int | None) -> AsyncIterator[bytes]:
    service, threads = state.slot.get(), state.threads
    try:
        # Before the jobs are read: what is committed meanwhile is told twice, not never.
        await state.broadcaster.add(follower, service, threads)
        events = await threads.call(JobFeed(service.database, service.jobs).missed, after)
        first = [written(event) for event in events if event.concerns(follower.principal)]
        yield b"".join([health_event(service), *first])
        while not follower.ended:
            await follower.woken.wait()
            follower.woken.clear()
            pieces, follower.pending = follower.pending, []
            if pieces:
                yield b"".join(pieces)
    finally:
        state.broadcaster.remove(follower)
