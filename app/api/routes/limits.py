"""GET /limits: every limit and its current use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.formats import json_matrix
from app.api.negotiation import MAX_WAIT
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, reply
from app.api.schemas import Nothing
from app.api.state import service_of

router = DirectRouter("operations")


class DeviceBound(Answer):
    """One device."""

    id: str
    bytes: Annotated[int, Field(description="Of the products admitted to it together: A, B and C.")]
    allocation_bytes: Annotated[int, Field(description="Of one matrix; 0: the device does not say.")]


class Bounds(Answer):
    """The limits, and how much of them is taken now. What is over one is 413, 422, 429 or 503, with the numbers."""

    body_bytes: Annotated[int, Field(description="Of a request's body; a longer one is 413.")]
    json_bytes: Annotated[int, Field(description="Of a body in JSON; a longer one is 413.")]
    json_elements: Annotated[int, Field(description="Of an answer in JSON; a larger one is 422.")]
    slab_bytes: Annotated[int, Field(description="Of operands and results of all requests together, else 503.")]
    queue: Annotated[int, Field(description="Products that wait at once; more are 503.")]
    share: Annotated[float, Field(description="Of the queue and of the slab that one caller holds; more is 429.")]
    together: Annotated[int, Field(description="Small products that one launch makes.")]
    wait_seconds: Annotated[float, Field(description="That `Prefer: wait` waits at most.")]
    result_seconds: Annotated[float, Field(description="That an asynchronous product's result is kept.")]
    result_bytes: Annotated[int, Field(description="Of such results; beyond it the oldest go first.")]
    key_seconds: Annotated[float, Field(description="That the first answer to an Idempotency-Key is replayed.")]
    devices: list[DeviceBound]
    waiting: Annotated[int, Field(description="Products that wait now.")]
    lent_bytes: Annotated[int, Field(description="Of the slab that are lent now.")]
    retry_after: Annotated[int, Field(description="Seconds until those that wait now are made, as far as one knows.")]


@router.get("/limits", summary="What bounds a request", response_model=Bounds, responses=documented(errors.Invalid))
async def limits(request: Request) -> Response:
    """Every limit in numbers, and how much is taken now."""
    read_query(Nothing, request)
    service = service_of(request)
    matmul, results, admission = service.matmul, service.results, service.matmul.admission
    devices = [
        DeviceBound(
            id=unit.device.id,
            bytes=admission.limits.device_bytes[unit.device.id],
            allocation_bytes=unit.device.limits.allocation_bytes,
        )
        for unit in service.fleet.units
    ]
    bounds = Bounds(
        body_bytes=matmul.max_bytes,
        json_bytes=json_matrix.LIMIT,
        json_elements=json_matrix.MOST,
        slab_bytes=admission.limits.slab_bytes,
        queue=admission.limits.queue,
        share=admission.limits.share,
        together=matmul.together,
        wait_seconds=MAX_WAIT,
        result_seconds=results.store.ttl,
        result_bytes=results.store.most,
        key_seconds=service.idempotency.ttl,
        devices=devices,
        waiting=admission.waiting,
        lent_bytes=service.fleet.slab.lent_bytes,
        retry_after=admission.retry_after(),
    )
    return reply(bounds)
