"""GET /analysis: the arithmetic of one launch, of any kernel and config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import StrictModel, read_query
from app.api.responses import Answer, Config, Problem
from app.api.routes.charts.tables import TABLE, told
from app.api.schemas import (
    Batch,
    Columns,
    ConfigText,
    Depth,
    DeviceId,
    DtypeField,
    Name,
    PrecisionField,
    Rows,
    Size,
    TransA,
    TransB,
    config_of,
)
from app.api.state import service_of
from kernels import KERNELS, cost_model, space
from kernels import problem as kernel_problem
from kernels.device import Device
from kernels.kernel import Kernel

router = DirectRouter("kernels")

_ANY_TILE: Final = {"naive", "tiled"}  # whose plans take any sizes


class AnalysisQuery(StrictModel):
    """Whose traffic and arithmetic to work out: a problem, and a square tile or a whole config."""

    m: Rows
    n: Columns
    k: Depth
    tile: Annotated[Size | None, Field(description="The tile's side; either it or `config`.", examples=[16])] = None
    config: Annotated[ConfigText | None, Field(description="In place of `tile`.", examples=["BM=32,BN=16,BK=8"])] = None
    batch: Batch = 1
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False
    kernel: Annotated[Name, Field(description="Whose launch; `tile` is for tiled and naive.", examples=["tiled"])] = (
        "tiled"
    )
    registers: Annotated[
        int, Field(ge=0, le=255, description="Registers a thread, which limit the occupancy too; 0: not known.")
    ] = 0
    device: DeviceId = None

    def problem(self) -> kernel_problem.Problem:
        """The domain's value."""
        return kernel_problem.Problem(
            self.m, self.n, self.k, self.batch, self.dtype, self.precision, self.trans_a, self.trans_b
        )


class Occupancy(Answer):
    """How many blocks share a multiprocessor, which fraction of its threads they are, and what sets that limit."""

    blocks_per_sm: int
    fraction: float
    limited_by: str


class Analysis(Answer):
    """What one launch does. Occupancy and waves are null where the device gives no figures for a multiprocessor."""

    device: str
    problem: Problem
    kernel: str
    config: Config
    bytes_read: Annotated[int, Field(description="Bytes loaded from global memory by all blocks.")]
    bytes_written: Annotated[int, Field(description="Bytes stored to global memory.")]
    flops_owned: Annotated[int, Field(description="Operations of the threads that own an element of C.")]
    flops_launched: Annotated[int, Field(description="Operations of all launched threads.")]
    intensity: Annotated[float, Field(description="Operations a byte.")]
    tiles_m: int
    tiles_n: int
    blocks: int
    edge_tiles: Annotated[int, Field(description="Tiles that C does not fill.")]
    shared_bytes: int
    threads: Annotated[int, Field(description="Threads a block.")]
    occupancy: Occupancy | None
    waves: float | None
    refusal: Annotated[str | None, Field(description="Why this config is not launched here; null where it is.")]
    predicted_ms: Annotated[
        float | None, Field(description="The model's bound on its time from above; null where it is not launched.")
    ]


@router.get(
    "/analysis",
    summary="What a config costs",
    response_model=Analysis,
    responses=TABLE
    | documented(errors.UnknownDevice, errors.UnknownKernel, errors.NotAcceptable, errors.Invalid, errors.NoDevice),
    query=AnalysisQuery,
)
async def analysis(request: Request) -> Response:
    """Bytes read and written, operations, intensity, grid, edge tiles and occupancy of a kernel's config.

    Of tiled and naive a `tile` stands for BM = BN = BK, of any size, launched or not: this is arithmetic. A `config`
    names every parameter; of the other kernels its values are those of their spaces.
    """
    asked = read_query(AnalysisQuery, request)
    device, problem = service_of(request).fleet.unit(asked.device).device, asked.problem()
    kernel, config, refusal = launched(asked, device)
    found = cost_model.analyse(kernel, config, problem, device, asked.registers)
    members = {"device": device.id, "problem": Problem.of(problem), "kernel": kernel.name, "config": dict(config)}
    predicted = None if refusal else 1e3 * cost_model.predict(kernel, config, problem, device)
    members |= {"refusal": refusal, "predicted_ms": predicted}
    return told(request, Analysis.model_validate(members | asdict(found)))


def launched(asked: AnalysisQuery, device: Device) -> tuple[Kernel, space.Config, str | None]:
    """The kernel and config that a query is about, and why a device refuses them; raises UnknownKernel and Invalid."""
    kernel, problem = KERNELS.get(asked.kernel), asked.problem()
    if kernel is None:
        raise errors.UnknownKernel(f"there is no kernel {asked.kernel}; there are {', '.join(KERNELS)}")
    config = _config(kernel, asked)
    refusal = kernel.refusal(problem, device) or kernel.space.refusal(config, problem, device)
    if refusal is not None and kernel.name not in _ANY_TILE:
        raise errors.Invalid(f"{kernel.name} {config} is not launched on {problem.key}: {refusal}", member="config")
    return kernel, config, refusal


def _config(kernel: Kernel, asked: AnalysisQuery) -> space.Config:
    """The config that a query says, raises Invalid where it is none of the kernel's; of some, any values will do."""
    names = kernel.space.parameters
    if asked.config is None and asked.tile is not None and kernel.name in _ANY_TILE:
        return space.Config.of(dict.fromkeys(names, asked.tile))
    if asked.config is None or asked.tile is not None:
        tile = "a tile or " if kernel.name in _ANY_TILE else ""
        raise errors.Invalid(f"give {tile}a config of {', '.join(names)}{', and not both' if tile else ''}")
    values = config_of(asked.config)
    if kernel.name not in _ANY_TILE:
        return _of_space(kernel, values)
    if set(values) != set(names):
        raise errors.Invalid(f"a config of {kernel.name} has {', '.join(names)}, got {asked.config}", member="config")
    if min(values.values()) < 1:
        raise errors.Invalid(f"every parameter of {asked.config} must be at least 1", member="config")
    return space.Config.of({name: values[name] for name in names})


def _of_space(kernel: Kernel, values: Mapping[str, int]) -> space.Config:
    try:
        return kernel.space.config(values)
    except ValueError as error:
        raise errors.Invalid(f"of {kernel.name} {error}", member="config") from error
