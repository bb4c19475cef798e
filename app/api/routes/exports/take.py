"""GET /take/{target}: a winner as files of another program, in a zip."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.schemas import ConfigText, DeviceId, Name, ProblemQuery, config_of
from app.api.state import service_of, threads_of
from app.exports.targets import TARGETS
from app.services.exports.service import Export, ExportService, ExportSpec

router = DirectRouter("best-config")

TargetName = Annotated[str, Path(description=f"What to take it as: {', '.join(TARGETS)}.", examples=["c"])]
COMPILING: Final = (  # what compiling a config may fail with
    errors.RefusedConfig,
    errors.Unsupported,
    errors.NoDevice,
    errors.CompileFailed,
    errors.ChildDied,
    errors.ChildTimedOut,
    errors.Closing,
)
_ZIP: Final = "application/zip"
_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A zip, the same bytes for the same winner: its headers say which kernel and cubins it has.",
        "content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class TakeQuery(ProblemQuery):
    """Which problem's winner is taken away, or which config."""

    device: DeviceId = None
    arch: Annotated[
        str | None,
        Field(
            pattern="^sm_[0-9]{2,3}$",
            description="For a GPU of this architecture, which need not be here: the untuned choice, or `config`.",
            examples=["sm_90"],
        ),
    ] = None
    kernel: Annotated[Name | None, Field(description="This kernel, in its untuned config or in `config`.")] = None
    config: Annotated[
        ConfigText | None, Field(description="This config of `kernel`.", examples=["BM=16,BN=16,BK=16"])
    ] = None


@router.get(
    "/take/{target}",
    summary="Take a winner away",
    response_class=Response,
    responses=_ANSWER | documented(errors.UnknownDevice, errors.UnknownKernel, errors.Invalid, *COMPILING),
    query=TakeQuery,
)
async def take(request: Request, target: TargetName) -> Response:
    """The winner of a problem as files that build and run elsewhere: source, cubin, PTX, launch recipe and a check.

    With `kernel` and `config` that config instead of the winner; with `arch` for a GPU that is not here. Products
    outside the class of an export are refused by it with a sentence: it never computes them another way.
    """
    asked, service = read_query(TakeQuery, request), service_of(request)
    given = None if asked.config is None else config_of(asked.config)
    spec = ExportSpec(target, asked.problem(), asked.device, asked.arch, asked.kernel, given)
    made, data = await threads_of(request).call(_taken, service.exports, spec)
    return Response(data, 200, _headers(made), _ZIP)


def _taken(exports: ExportService, spec: ExportSpec) -> tuple[Export, bytes]:
    made = exports.take(spec)
    return made, made.zip()


def _headers(made: Export) -> dict[str, str]:
    winner = made.winner
    cubins = ",".join(f"{name}={digest}" for name, digest in winner.cubin_digests.items())
    return {
        "Content-Disposition": f'attachment; filename="{made.name}.zip"',
        "X-Kernel": winner.kernel,
        "X-Config": str(winner.config),
        "X-Match": winner.match,
        **({"X-Cubin-Sha256": cubins} if cubins else {}),
    }
