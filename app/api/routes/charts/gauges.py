"""GET /devices/gauges: what each device does now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, reply
from app.api.schemas import Nothing
from app.api.state import service_of, threads_of
from app.services.service import Service

router = DirectRouter("devices")


class Gauge(Answer):
    """One figure now, or the reason why there is none."""

    value: float | None
    reason: str | None


class DeviceGauges(Answer):
    """What one device does. A GPU's figures are its driver's, of everybody who uses it; a processor's its host's."""

    device: str
    busy: Annotated[Gauge, Field(description="Share of the time that it works, from 0 to 1.")]
    sm_mhz: Annotated[Gauge, Field(description="The clock of its multiprocessors, or the mean of its cores'.")]
    memory_mhz: Annotated[Gauge, Field(description="The clock of its memory.")]
    watts: Gauge
    celsius: Gauge
    memory_used_bytes: Annotated[Gauge, Field(description="In use by anybody.")]
    memory_bytes: Annotated[int, Field(description="In all.")]
    waiting: Annotated[int, Field(description="How many calls of this service wait for the device.")]
    throttled: Annotated[list[str], Field(description="Why its clocks are lower than they could be.")]


class Gauges(Answer):
    """Every device, and what they share: the products that wait, and the slab of operands and results."""

    devices: list[DeviceGauges]
    waiting: Annotated[int, Field(description="Products that wait, of `queue` at most.")]
    queue: int
    slab_lent_bytes: int
    slab_bytes: int


_ABSENT: Final = {"value": None, "reason": "it is read of GPUs alone"}
EXAMPLES: Final[dict[str, Any]] = {
    "Gauges": {
        "devices": [
            {
                "device": "opencl:0",
                "busy": {"value": 0.42, "reason": None},
                "sm_mhz": {"value": 2600.0, "reason": None},
                "memory_mhz": _ABSENT,
                "watts": _ABSENT,
                "celsius": _ABSENT,
                "memory_used_bytes": {"value": 3.2e9, "reason": None},
                "memory_bytes": 8_000_000_000,
                "waiting": 1,
                "throttled": [],
            }
        ],
        "waiting": 1,
        "queue": 512,
        "slab_lent_bytes": 1_048_576,
        "slab_bytes": 4_294_967_296,
    }
}


@router.get(
    "/devices/gauges", summary="What each device does now", response_model=Gauges, responses=documented(errors.Invalid)
)
async def device_gauges(request: Request) -> Response:
    """How busy each is, its clocks, power, heat and memory, and what waits for it; an absent figure says why."""
    read_query(Nothing, request)
    return reply(await threads_of(request).call(_now, service_of(request)))


def _now(service: Service) -> Gauges:
    admission = service.matmul.admission
    return Gauges(
        devices=[DeviceGauges.model_validate(asdict(one)) for one in service.health.gauges.read()],
        waiting=admission.waiting,
        queue=admission.limits.queue,
        slab_lent_bytes=service.fleet.slab.lent_bytes,
        slab_bytes=admission.limits.slab_bytes,
    )
