"""GET /kernels: spaces with named rules, legal configs for a problem and device, and sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app import errors
from app.api import responses
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, Instructions, Launch, reply
from app.api.schemas import KernelQuery, Nothing, config_of
from app.api.state import service_of, threads_of
from kernels import KERNELS, support
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config

router = DirectRouter("kernels")

KernelName = Annotated[str, Path(description="The kernel's name, such as tiled.")]
_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The source.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class Covered(Answer):
    """A class of problems that a kernel computes on architectures by the same instructions."""

    dtype: str
    precision: str
    platform: str
    architectures: Annotated[list[str], Field(description="By name where they have one; those alike have one name.")]
    instructions: Instructions

    @classmethod
    def of(cls, value: support.Covered) -> Covered:
        """Take the domain's value."""
        return cls.model_validate(asdict(value))


class Summary(Answer):
    """One kernel: what it covers, and the space it can be compiled in."""

    name: str
    summary: str
    file: str
    digest: Annotated[
        str, Field(description="SHA-256 of its code without comments: stored results are stale once it changes.")
    ]
    dtypes: list[str]
    precisions: list[str]
    platforms: list[str]
    architectures: Annotated[list[str], Field(description="Those it is for; empty where it is for all.")]
    shapes: Annotated[str, Field(description="Which problems it is for.")]
    role: Annotated[
        Literal["serving", "lesson"],
        Field(description="Lessons are compiled, verified and measured where they are asked for, and never serve."),
    ]
    covers: Annotated[list[Covered], Field(description="What it computes where, and by which instructions.")]
    parameters: Annotated[dict[str, list[int]], Field(description="Values of each parameter.")]
    rules: Annotated[list[str], Field(description="Names of the rules that refuse some configs.")]
    configs: Annotated[int, Field(description="Configs in all, legal or not.")]

    @classmethod
    def of(cls, kernel: Kernel) -> Summary:
        """Take the domain's value."""
        return cls(
            name=kernel.name,
            summary=kernel.summary,
            file=kernel.file,
            digest=kernel.digest,
            dtypes=list(kernel.dtypes),
            precisions=list(kernel.precisions),
            platforms=list(kernel.platforms),
            architectures=list(kernel.architectures),
            shapes=kernel.shapes,
            role=kernel.role,
            covers=[Covered.of(each) for each in support.coverage(kernel)],
            parameters={name: list(values) for name, values in kernel.space.parameters.items()},
            rules=list(kernel.space.rules),
            configs=len(kernel.space),
        )


class Kernels(Answer):
    """The ladder, from the simplest kernel up, and the lessons in their order."""

    kernels: list[Summary]


class Legality(Answer):
    """A kernel's space for one problem on one device."""

    device: str
    problem: responses.Problem
    covered: Annotated[bool, Field(description="Whether the kernel computes such problems on this device.")]
    instructions: Instructions
    default: Annotated[dict[str, int] | None, Field(description="The config used untuned; null where none is legal.")]
    legal: Annotated[list[dict[str, int]], Field(description="Every config that no rule refuses.")]
    refused: Annotated[dict[str, int], Field(description="How many configs each rule was first to refuse.")]
    launch: Annotated[Launch | None, Field(description="How `config` is launched, where one was asked about.")]


class Detail(Summary):
    """One kernel, and its space for a problem where one was given."""

    legality: Legality | None


@router.get("/kernels", summary="The kernels", response_model=Kernels, responses=documented(errors.Invalid))
async def list_kernels(request: Request) -> Response:
    """Every kernel in ladder order and the lessons, each with what it covers, its parameters and rules."""
    read_query(Nothing, request)
    return reply(Kernels(kernels=[Summary.of(kernel) for kernel in KERNELS.values()]))


@router.get(
    "/kernels/{name}",
    summary="One kernel",
    response_model=Detail,
    responses=documented(
        errors.UnknownKernel, errors.UnknownDevice, errors.Invalid, errors.RefusedConfig, errors.NoDevice
    ),
    query=KernelQuery,
)
async def get_kernel(request: Request, name: KernelName) -> Response:
    """A kernel, and with `m`, `n` and `k` which of its configs are legal on a device, and which rules refuse others.

    With `config` too: how that config is launched, or 422 with the name of the rule that refuses it.
    """
    asked = read_query(KernelQuery, request)
    kernel = known_kernel(name)
    legality = None
    if (asked.m, asked.n, asked.k) != (None, None, None):
        problem, device = _problem(asked), service_of(request).fleet.unit(asked.device).device
        legality = await threads_of(request).call(_legality, kernel, problem, device, asked.config)
    elif asked.config is not None:
        raise errors.Invalid("a config is legal or not for a problem: give m, n and k")
    return reply(Detail(**dict(Summary.of(kernel)), legality=legality))


@router.get(
    "/kernels/{name}/source",
    summary="A kernel's source",
    response_class=PlainTextResponse,
    responses=_TEXT | documented(errors.UnknownKernel, errors.Invalid),
)
async def get_kernel_source(request: Request, name: KernelName) -> Response:
    """The whole text as the compiler sees it, for CUDA C++ and OpenCL C alike."""
    read_query(Nothing, request)
    return PlainTextResponse(known_kernel(name).text)


def known_kernel(name: str) -> Kernel:
    """The kernel or lesson of a name; raises UnknownKernel."""
    if name not in KERNELS:
        raise errors.UnknownKernel(f"there is no kernel {name}; there are {', '.join(KERNELS)}")
    return KERNELS[name]


def _problem(asked: KernelQuery) -> Problem:
    if asked.m is None or asked.n is None or asked.k is None:
        raise errors.Invalid("a problem has m, n and k: give all three, or none")
    kind = (asked.dtype, asked.precision, asked.trans_a, asked.trans_b)
    return Problem(asked.m, asked.n, asked.k, asked.batch, *kind)


def _legality(kernel: Kernel, problem: Problem, device: Device, config: str | None) -> Legality:
    legal, refused = kernel.space.sifted(problem, device)
    default = kernel.default(problem, device)
    return Legality(
        device=device.id,
        problem=responses.Problem.of(problem),
        covered=kernel.covers(problem, device),
        instructions=kernel.instructions,
        default=dict(default) if kernel.space.refusal(default, problem, device) is None else None,
        legal=[dict(each) for each in legal],
        refused={rule: count for rule, count in refused.items() if count},
        launch=None
        if config is None
        else Launch.of(kernel.launch(_config(kernel, problem, device, config), problem, device)),
    )


def _config(kernel: Kernel, problem: Problem, device: Device, text: str) -> Config:
    """A config from text; raises Invalid where it is none of the space, RefusedConfig where a rule refuses it."""
    try:
        config = kernel.space.config(config_of(text))
    except ValueError as error:
        raise errors.Invalid(f"{text} is no config of {kernel.name}: {error}") from error
    rule = kernel.space.refusal(config, problem, device)
    if rule is not None:
        raise errors.RefusedConfig(f"{text} is refused for {problem} on {device.id}: {rule}", rule=rule)
    return config
