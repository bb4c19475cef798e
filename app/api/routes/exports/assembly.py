"""GET /kernels/{name}/assembly: PTX and SASS of a config, line by line beside the source."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Problem, reply
from app.api.routes.exports.take import COMPILING
from app.api.routes.kernels import KernelName, known_kernel
from app.api.schemas import ConfigText, ProblemQuery, config_of
from app.api.state import service_of, threads_of
from app.exports import assembly as lines
from app.services.exports.assembly import ProgramAssembly, assembly

router = DirectRouter("kernels")


class AssemblyQuery(ProblemQuery):
    """For which problem and GPU a kernel is compiled."""

    arch: Annotated[
        str, Field(pattern="^sm_[0-9]{2,3}$", description="The GPU's, which need not be here.", examples=["sm_90"])
    ]
    config: Annotated[
        ConfigText | None, Field(description="This config; by default the untuned one.", examples=["BM=16,BN=16,BK=16"])
    ] = None


class AssemblyLine(Answer):
    """A line of assembly."""

    text: str
    source_line: Annotated[
        int | None, Field(description="The line of `GET /kernels/{name}/source` that it was compiled from.")
    ]


class Program(Answer):
    """One function of a launch."""

    entry: Annotated[str, Field(description="The function's name.")]
    ptx: Annotated[list[AssemblyLine], Field(description="Without the directives of its line information.")]
    sass: Annotated[list[AssemblyLine], Field(description="The cubin's instructions; none where `reason` says why.")]
    registers: Annotated[int | None, Field(description="Of a thread, as the assembler says.")]
    reason: Annotated[str | None, Field(description="Why there is no SASS.")]


class Assembly(Answer):
    """A kernel's config, compiled."""

    kernel: str
    config: dict[str, int]
    architecture: str
    problem: Problem
    programs: Annotated[list[Program], Field(description="In the order of the launch.")]


_LINE: Final = {"text": "    st.global.f32   [%rd28], %f111;", "source_line": 59}
_SASS: Final = {"text": "  0a30  STG.E desc[UR10][R2.64], R7", "source_line": 59}
_PROGRAM: Final = {"entry": "matmul", "ptx": [_LINE], "sass": [_SASS], "registers": 30, "reason": None}
_PROBLEM: Final = {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
EXAMPLES: Final[dict[str, Any]] = {
    "AssemblyLine": _LINE,
    "Program": _PROGRAM,
    "Assembly": {
        "kernel": "tiled",
        "config": {"BM": 16, "BN": 16, "BK": 8},
        "architecture": "sm_90",
        "problem": _PROBLEM | {"trans_a": False, "trans_b": False},
        "programs": [_PROGRAM],
    },
}


@router.get(
    "/kernels/{name}/assembly",
    summary="A kernel's PTX and SASS",
    response_model=Assembly,
    responses=documented(errors.UnknownKernel, errors.Invalid, *COMPILING),
    query=AssemblyQuery,
)
async def get_assembly(request: Request, name: KernelName) -> Response:
    """What the compiler makes of a config: each line of PTX and SASS with the source's line that it is of.

    SASS needs `nvdisasm`: without it each program says so in `reason`.
    """
    asked, kernel, service = read_query(AssemblyQuery, request), known_kernel(name), service_of(request)
    given = None if asked.config is None else config_of(asked.config)
    problem = asked.problem()
    found = await threads_of(request).call(assembly, service.fleet, kernel, problem, asked.arch, given)
    programs = [_program(one) for one in found.programs]
    return reply(
        Assembly(
            kernel=kernel.name,
            config=dict(found.config),
            architecture=asked.arch,
            problem=Problem.of(problem),
            programs=programs,
        )
    )


def _program(one: ProgramAssembly) -> Program:
    ptx, sass = _lines(one.ptx), _lines(one.sass)
    return Program(entry=one.entry, ptx=ptx, sass=sass, registers=one.registers, reason=one.reason)


def _lines(found: tuple[lines.AssemblyLine, ...]) -> list[AssemblyLine]:
    return [AssemblyLine(text=each.text, source_line=each.source_line) for each in found]
