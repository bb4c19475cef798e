"""Liveness, readiness, version and metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.api.errors import MEDIA, documented, problem
from app.api.openapi.direct_route import DirectRouter
from app.api.responses import Answer, reply
from app.api.state import service_of, state_of, threads_of

router = DirectRouter("operations")

_UNREADY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "`not_ready`: products are not served yet, or not any more. The body has `verified`, `pending` "
        "and `total`, numbers of float32 defaults.",
        "headers": {"Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}}},
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}
_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class Live(Answer):
    """The process answers."""

    status: Literal["live"] = "live"


class Version(Answer):
    """The service's version."""

    name: Literal["tilewise"] = "tilewise"
    version: Annotated[str, Field(examples=["1.0.0"])]


class Ready(Answer):
    """Products are served: a device's lowest float32 default was verified.

    `degraded` says that something else than usual serves, such as the kernel below one that is quarantined.
    """

    status: Literal["ready", "degraded"] = "ready"
    reasons: Annotated[list[str], Field(description="Why the service is degraded.")]
    verified: Annotated[int, Field(description="Float32 defaults that were verified, of all devices.")]
    pending: Annotated[int, Field(description="Those that are neither verified nor quarantined yet.")]
    total: int


@router.get("/health/live", summary="Does the process answer?", response_model=Live, responses=documented())
async def health_live(request: Request) -> Response:
    """200 as long as the process can answer; says nothing of its devices."""
    del request
    return reply(Live())


@router.get("/health/ready", summary="Are products served?", response_model=Ready, responses=documented() | _UNREADY)
async def health_ready(request: Request) -> Response:
    """200 once the lowest float32 default of a device was verified in this process; the others follow."""
    service = service_of(request)
    reason, states = service.ready(), service.defaults.states()
    counts = {name: sum(getattr(state, name) for state in states) for name in ("verified", "pending", "total")}
    if reason is not None:
        return problem(503, "not_ready", reason, counts, {"Retry-After": "1"})
    reasons = service.defaults.degraded()
    return reply(Ready(status="degraded" if reasons else "ready", reasons=reasons, **counts))


@router.get("/health", summary="Are products served?", response_model=Ready, responses=documented() | _UNREADY)
async def health(request: Request) -> Response:
    """The same as /health/ready."""
    return await health_ready(request)


@router.get("/version", summary="The service's version", response_model=Version, responses=documented())
async def get_version(request: Request) -> Response:
    """Which version of Tilewise this is."""
    del request
    return reply(Version(version=version("tilewise")))


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=_TEXT | documented(),
)
async def metrics(request: Request) -> Response:
    """Requests, products by phase, jobs, trials, memory, disk, connections, restarts of children."""
    text = await threads_of(request).call(state_of(request.app).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
