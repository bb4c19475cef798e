"""Liveness, readiness, version and metrics."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
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
from app.devices.sandbox import Part
from app.services.health.status import STORE_FAILED

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
    """Products are served now: a device has verified its lowest float32 default, and its process answers.

    `degraded` says that something is wrong all the same: a kernel that is quarantined, a store that cannot be written,
    a device that does not serve.
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


class CordonedBy(Answer):
    """Why a device makes no products and runs no tunes."""

    reason: str
    by: Annotated[Literal["operator", "health"], Field(description="Who cordoned it.")]
    since: datetime


class HealthOfDevice(Answer):
    """One device now."""

    device: Annotated[str, Field(examples=["cuda:0"])]
    state: Literal["ok", "degraded", "failed", "cordoned", "starting"]
    serves: Annotated[bool, Field(description="It makes products now.")]
    reasons: Annotated[list[str], Field(description="What is wrong with it.")]
    served: Annotated[
        float | None, Field(description="Seconds since its last product, or verification of an idle device.")
    ]
    cordon: CordonedBy | None


class Health(Answer):
    """Everything now: the service, its devices and its store."""

    status: Literal["ready", "degraded", "not_ready"]
    reasons: list[str]
    devices: list[HealthOfDevice]
    store: Annotated[Literal["ok", "failed"], Field(description="Whether the last write was committed.")]
    sandbox: Annotated[
        list[Part],
        Field(description="What is restricted of the processes that run kernels."),
    ]


@router.get("/health/ready", summary="Are products served?", response_model=Ready, responses=documented() | _UNREADY)
async def health_ready(request: Request) -> Response:
    """200 as long as a device serves products: its lowest float32 default was verified, its process answers."""
    service = service_of(request)
    reason, states = service.ready(), service.defaults.states()
    counts = {name: sum(getattr(state, name) for state in states) for name in ("verified", "pending", "total")}
    is_open = service.access.authentication == "none"  # or else reasons are for /health, which needs a key
    if reason is not None:
        told = reason if is_open else "no product can be served now"
        return problem(503, "not_ready", told, counts, {"Retry-After": "1"})
    reasons = service.health.degraded()
    return reply(Ready(status="degraded" if reasons else "ready", reasons=reasons if is_open else [], **counts))


@router.get("/health", summary="What is wrong?", response_model=Health, responses=documented())
async def health(request: Request) -> Response:
    """Each device and the store, as they are now; 200 whatever is wrong."""
    service = service_of(request)
    unready, reasons = service.ready(), service.health.degraded()
    return reply(
        Health(
            status="not_ready" if unready else ("degraded" if reasons else "ready"),
            reasons=list(dict.fromkeys([unready, *reasons] if unready else reasons)),
            devices=[HealthOfDevice.model_validate(asdict(each)) for each in service.health.devices()],
            store="failed" if any(reason.startswith(STORE_FAILED) for reason in reasons) else "ok",
            sandbox=list(service.fleet.restricted),
        )
    )


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
