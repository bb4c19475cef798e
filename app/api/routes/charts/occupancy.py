"""GET /occupancy: the occupancy of a config over threads, registers and shared memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Config, reply
from app.api.routes.analysis import AnalysisQuery, Occupancy, launched
from app.api.state import service_of
from app.services.charts.occupancy import occupancy_curves
from kernels import cost_model
from kernels.device import Device

router = DirectRouter("kernels")


class OccupancyPoint(Answer):
    """What a multiprocessor holds at a value of one resource; at 0 blocks it cannot be launched."""

    value: int
    occupancy: Occupancy


class OccupancyCurve(Answer):
    """Occupancy over one resource, the other two as the config has them."""

    resource: Literal["threads", "registers", "shared_bytes"]
    own: Annotated[int | None, Field(description="The config's own value; null: not known.")]
    points: list[OccupancyPoint]


class OccupancyCurves(Answer):
    """Occupancy over threads a block, registers a thread and shared bytes a block.

    Without curves the device gives no figures of a multiprocessor.
    """

    device: str
    kernel: str
    config: Config
    occupancy: Occupancy | None
    curves: list[OccupancyCurve]


_HELD: Final = {"blocks_per_sm": 8, "fraction": 1.0, "limited_by": "threads"}
_POINT: Final = {"value": 256, "occupancy": _HELD}
_CURVE: Final = {"resource": "threads", "own": 256, "points": [_POINT]}
EXAMPLES: Final[dict[str, Any]] = {
    "OccupancyPoint": _POINT,
    "OccupancyCurve": _CURVE,
    "OccupancyCurves": {
        "device": "cuda:0",
        "kernel": "tiled",
        "config": {"BM": 16, "BN": 16, "BK": 16},
        "occupancy": _HELD,
        "curves": [_CURVE],
    },
}


@router.get(
    "/occupancy",
    summary="Occupancy over threads, registers and shared memory",
    response_model=OccupancyCurves,
    responses=documented(errors.UnknownDevice, errors.UnknownKernel, errors.Invalid, errors.NoDevice),
    query=AnalysisQuery,
)
async def occupancy(request: Request) -> Response:
    """How many blocks a multiprocessor holds over each resource that a config takes, by the model.

    It is asked for as `GET /analysis` is: `registers` a thread, where they are known, limit it too.
    """
    asked = read_query(AnalysisQuery, request)
    return reply(curves_of(asked, service_of(request).fleet.unit(asked.device).device))


def curves_of(asked: AnalysisQuery, device: Device) -> OccupancyCurves:
    """The answer; raises UnknownKernel and Invalid."""
    kernel, config, _ = launched(asked, device)
    known = cost_model.analyse(kernel, config, asked.problem(), device, asked.registers)
    curves = occupancy_curves(device.limits, known.threads, known.shared_bytes, asked.registers)
    return OccupancyCurves.model_validate(
        {
            "device": device.id,
            "kernel": kernel.name,
            "config": dict(config),
            "occupancy": None if known.occupancy is None else asdict(known.occupancy),
            "curves": [asdict(curve) for curve in curves],
        }
    )
