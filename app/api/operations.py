"""Whether the service lives, whether it serves, and its metrics."""

from __future__ import annotations

from typing import Any, Final, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.answers import Answer, reply
from app.api.errors import MEDIA, documented, problem
from app.api.metrics import metrics_of
from app.api.openapi import DirectRoute
from app.api.service import service_of, threads_of

router = APIRouter(route_class=DirectRoute, tags=["operations"])

_UNREADY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "`not_ready`: products are not served yet, or not any more.",
        "headers": {"Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}}},
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class Live(Answer):
    """The process answers."""

    status: Literal["live"] = "live"


class Ready(Answer):
    """Products are served: every device's float32 defaults were verified."""

    status: Literal["ready"] = "ready"


@router.get("/health/live", summary="Does the process answer?", response_model=Live, responses=documented())
async def live(request: Request) -> Response:
    """200 as long as the process can answer; says nothing of its devices."""
    del request
    return reply(Live())


@router.get("/health/ready", summary="Are products served?", response_model=Ready, responses=documented() | _UNREADY)
async def ready(request: Request) -> Response:
    """200 once every device's float32 defaults were verified in this process."""
    reason = service_of(request).ready()
    if reason is not None:
        return problem(503, "not_ready", reason, headers={"Retry-After": "1"})
    return reply(Ready())


@router.get("/metrics", summary="Metrics for Prometheus", responses=_TEXT | documented(errors.StoreFailed))
async def metrics(request: Request) -> Response:
    """Requests, products by phase, jobs by state, trials by outcome, lent bytes, restarts of children."""
    text = await threads_of(request).call(metrics_of(request).text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
