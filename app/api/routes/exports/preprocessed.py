"""GET /kernels/{name}/preprocessed: the source as a config's macros leave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Problem, reply
from app.api.routes.exports.assembly import AssemblyQuery
from app.api.routes.kernels import KernelName, known_kernel
from app.api.schemas import config_of
from app.api.state import threads_of
from app.exports.preprocessor import preprocessed
from app.services.exports.assembly import builds, launched
from kernels.kernel import Kernel
from kernels.launch import Build

router = DirectRouter("kernels")


class PreprocessedLine(Answer):
    """A line that stays."""

    number: Annotated[int, Field(description="Its number in the source as it is written.")]
    text: str


class PreprocessedProgram(Answer):
    """One function of a launch; the source of the kernel itself is that of `GET /kernels/{name}/source`."""

    entry: Annotated[str, Field(description="The function's name.")]
    macros: Annotated[dict[str, str], Field(description="The build's -D macros, in order.")]
    lines: list[PreprocessedLine]


class Preprocessed(Answer):
    """A kernel's source with a config's macros applied."""

    kernel: str
    config: dict[str, int]
    architecture: str
    problem: Problem
    programs: Annotated[list[PreprocessedProgram], Field(description="In the order of the launch.")]


_LINE: Final = {"number": 59, "text": "    for (int q = 0; q < 8; q++)"}
_PROGRAM: Final = {"entry": "matmul", "macros": {"BM": "16", "BN": "16", "BK": "8"}, "lines": [_LINE]}
EXAMPLES: Final[dict[str, Any]] = {
    "PreprocessedLine": _LINE,
    "PreprocessedProgram": _PROGRAM,
    "Preprocessed": {
        "kernel": "tiled",
        "config": {"BM": 16, "BN": 16, "BK": 8},
        "architecture": "sm_90",
        "problem": {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
        | {"trans_a": False, "trans_b": False},
        "programs": [_PROGRAM],
    },
}


@router.get(
    "/kernels/{name}/preprocessed",
    summary="A kernel's source as a config compiles",
    response_model=Preprocessed,
    responses=documented(errors.UnknownKernel, errors.Invalid, errors.RefusedConfig, errors.Unsupported),
    query=AssemblyQuery,
)
async def get_preprocessed(request: Request, name: KernelName) -> Response:
    """The lines that stay for a config: conditionals are decided, and the values of -D macros stand for their names.

    Macros that the source defines itself stay as they are written. Nothing is compiled.
    """
    asked, kernel = read_query(AssemblyQuery, request), known_kernel(name)
    given = None if asked.config is None else config_of(asked.config)
    return reply(await threads_of(request).call(_preprocessed, kernel, asked, given))


def _preprocessed(kernel: Kernel, asked: AssemblyQuery, given: Mapping[str, int] | None) -> Preprocessed:
    problem = asked.problem()
    config, launch = launched(kernel, problem, asked.arch, given)
    predefined = {"__CUDA_ARCH__": f"{asked.arch.removeprefix('sm_')}0"}
    return Preprocessed(
        kernel=kernel.name,
        config=dict(config),
        architecture=asked.arch,
        problem=Problem.of(problem),
        programs=[_program(build, predefined) for build in builds(launch)],
    )


def _program(build: Build, predefined: Mapping[str, str]) -> PreprocessedProgram:
    macros = dict(build.macros)
    stays = preprocessed(build.text, macros, predefined)
    lines = [PreprocessedLine(number=line.number, text=line.text) for line in stays]
    return PreprocessedProgram(entry=build.entry, macros=macros, lines=lines)
