"""A kernel's config as the compiler's assembly, line by line beside the source; lessons, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.devices.fleet import Fleet
from app.errors import Invalid, RefusedConfig, Unsupported
from app.exports.assembly import AssemblyLine, ptx_lines, sass_lines
from app.services.exports.architectures import device_of
from app.services.exports.disassembler import disassembled
from kernels.kernel import Kernel
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class ProgramAssembly:
    """A function's PTX and SASS; `sass` is empty where `reason` says why there is none."""

    entry: str
    ptx: tuple[AssemblyLine, ...]
    sass: tuple[AssemblyLine, ...]
    registers: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class KernelAssembly:
    """The functions of a launch in its order; `config` is the one given, or the untuned one."""

    config: Config
    programs: tuple[ProgramAssembly, ...]


def assembly(
    fleet: Fleet, kernel: Kernel, problem: Problem, architecture: str, given: Mapping[str, int] | None
) -> KernelAssembly:
    """The assembly of a config for a GPU that need not be here.

    Raises Invalid, RefusedConfig, Unsupported where the kernel is not for the problem, and what a compiler raises.
    """
    device = device_of(architecture)
    config, launch = launched(kernel, problem, architecture, given)
    return KernelAssembly(config, tuple(_program(fleet, build, device.architecture) for build in builds(launch)))


def launched(
    kernel: Kernel, problem: Problem, architecture: str, given: Mapping[str, int] | None
) -> tuple[Config, Launch]:
    """A config, by default the untuned one, and its launch on a GPU; raises Invalid, RefusedConfig, Unsupported."""
    device = device_of(architecture)
    clause = kernel.refusal(problem, device)
    if clause is not None:
        raise Unsupported(f"{kernel.name} does not compute {problem} on {architecture}: {clause}")
    config = kernel.default(problem, device) if given is None else _config(kernel, given)
    rule = kernel.space.refusal(config, problem, device)
    if rule is not None:
        raise RefusedConfig(f"{config} is refused for {problem} on {architecture}: {rule}", rule=rule)
    return config, kernel.launch(config, problem, device)


def builds(launch: Launch) -> list[Build]:
    """The builds of a launch in its order, each once."""
    steps = (*(step.build for step in launch.before), launch.build, *(step.build for step in launch.after))
    return list(dict.fromkeys(steps))


def _program(fleet: Fleet, build: Build, architecture: str) -> ProgramAssembly:
    made, file = fleet.compile_both(build, architecture, line_info=True), f"{build.name}.cu"
    ptx = ptx_lines(made.ptx, file)
    try:
        sass = sass_lines(disassembled(made.cubin, line_info=True), file)
    except Unsupported as error:
        return ProgramAssembly(build.entry, ptx, (), made.registers, error.message)
    return ProgramAssembly(build.entry, ptx, sass, made.registers, None)


def _config(kernel: Kernel, values: Mapping[str, int]) -> Config:
    try:
        return kernel.space.config(values)
    except ValueError as error:
        raise Invalid(f"{dict(values)} is no config of {kernel.name}: {error}", member="config") from error
