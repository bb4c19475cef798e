"""GET /analysis: the arithmetic of tiling for any square tile."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Config, Problem, reply
from app.api.schemas import AnalysisQuery, config_of
from app.api.state import service_of
from kernels import CATALOGUE, cost_model, space
from kernels.kernel import Kernel

router = DirectRouter("kernels")


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


@router.get(
    "/analysis",
    summary="What a tile size costs",
    response_model=Analysis,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.NoDevice),
    query=AnalysisQuery,
)
async def analysis(request: Request) -> Response:
    """Bytes read and written, operations, intensity, grid, edge tiles and occupancy of the tile BM = BN = BK = tile.

    A `config` names every parameter of the kernel in the tile's place. This is arithmetic: a tile that no kernel may
    use is analysed too.
    """
    asked = read_query(AnalysisQuery, request)
    kernel, problem = CATALOGUE[asked.kernel], asked.problem()
    device = service_of(request).fleet.unit(asked.device).device
    config = _config(kernel, asked)
    found = cost_model.analyse(kernel, config, problem, device)
    members = {"device": device.id, "problem": Problem.of(problem), "kernel": kernel.name, "config": dict(config)}
    return reply(Analysis.model_validate(members | asdict(found)))


def _config(kernel: Kernel, asked: AnalysisQuery) -> space.Config:
    """The config that a query says, of any values; raises Invalid where it has other parameters than the kernel."""
    names = kernel.space.parameters
    if asked.config is None and asked.tile is not None:
        return space.Config.of(dict.fromkeys(names, asked.tile))
    if asked.config is None or asked.tile is not None:
        raise errors.Invalid(f"give a tile or a config of {', '.join(names)}, and not both")
    values = config_of(asked.config)
    if set(values) != set(names):
        raise errors.Invalid(f"a config of {kernel.name} has {', '.join(names)}, got {asked.config}", member="config")
    if min(values.values()) < 1:
        raise errors.Invalid(f"every parameter of {asked.config} must be at least 1", member="config")
    return space.Config.of({name: values[name] for name in names})
