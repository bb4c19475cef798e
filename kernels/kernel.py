"""Kernel: a source with its space, what it covers, and how a config of it is launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import sha256

from kernels.arithmetic import fma
from kernels.device import Device
from kernels.launch import Build, Launch, Plan, dtype_macros
from kernels.problem import CLASSES, Problem
from kernels.sources import code_digest, source
from kernels.space import Config, Space


def _all(_: Problem) -> bool:
    return True


def _everywhere(_: Problem, __: Device) -> bool:
    return True


def _ever(_: Problem) -> int:
    return 0


@dataclass(frozen=True)
class Kernel:
    """A rung of the ladder: its source file, its space, what it covers, and how a config of it is launched.

    `plan` is asked for legal configs; `default` gives the model's own choice, untuned. `suits` tells of which problems
    this kernel can be the best: for others it is not tried; `leads`, of which of these it is the one to take untuned,
    before the rungs below it. `pooled` is its builds'. `arguments` names the parameters that reach the function among a
    plan's numbers and not as macros: configs that differ in these alone share a binary. `also` are the files of the
    steps that its plans put before and after a launch. `architectures` are those that the kernel is for, where it is
    not for all of its platforms'. `shapes` says in words which problems it suits. `lacks` are the classes, dtype and
    precision, that its `dtypes` and `precisions` would make and that it has not. `since` gives the first CUDA
    architecture that has what a problem's class needs, such as 80; all later ones have it.
    `instructions` names the path by which its products reach an arithmetic unit (kernels.arithmetic).
    """

    name: str
    summary: str
    file: str
    space: Space
    dtypes: tuple[str, ...]
    precisions: tuple[str, ...]
    platforms: tuple[str, ...]
    plan: Callable[[Config, Problem], Plan]
    default: Callable[[Problem, Device], Config]
    pooled: bool = False
    arguments: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    suits: Callable[[Problem], bool] = _all
    leads: Callable[[Problem, Device], bool] = _everywhere
    architectures: tuple[str, ...] = ()
    shapes: str = "any shape"
    lacks: tuple[tuple[str, str], ...] = ()
    since: Callable[[Problem], int] = _ever
    instructions: Callable[[Problem, Device], str] = fma

    @property
    def text(self) -> str:
        """The whole source as the compiler sees it."""
        return source(self.file)

    @property
    def digest(self) -> str:
        """SHA-256 of the code and of what runs before and after it: a stored result is stale once it changes.

        Comments and blanks are no part of it.
        """
        return sha256("\0".join(map(code_digest, [self.text, *map(source, self.also)])).encode()).hexdigest()

    @property
    def classes(self) -> tuple[tuple[str, str], ...]:
        """Every dtype with each precision of it that this kernel computes."""
        pairs = ((dtype, precision) for dtype in self.dtypes for precision in CLASSES[dtype])
        return tuple(pair for pair in pairs if pair[1] in self.precisions and pair not in self.lacks)

    def covers(self, problem: Problem, device: Device) -> bool:
        """Whether this kernel is one for such problems on such a device."""
        return self.refusal(problem, device) is None

    def refusal(self, problem: Problem, device: Device) -> str | None:
        """Why this kernel is not one for such a problem on such a device, in a clause; None where it is."""
        sizes = f"{problem.m} x {problem.n} x {problem.k}"
        unsuited = None if self.suits(problem) else f"it is for {self.shapes}, not for {sizes}"
        return self.lacking(problem, device) or unsuited

    def lacking(self, problem: Problem, device: Device) -> str | None:
        """Why it computes nothing of a problem's class on such a device, whatever the sizes; None where it does."""
        if (problem.dtype, problem.precision) not in self.classes:
            own = ", ".join(f"{dtype} ({precision})" for dtype, precision in self.classes)
            return f"it computes {own}, not {problem.dtype} ({problem.precision})"
        if device.platform not in self.platforms:
            return f"it is for {' and '.join(self.platforms)}, not {device.platform}"
        if self.architectures and device.architecture not in self.architectures:
            return f"it is for {', '.join(self.architectures)}, not {device.architecture}"
        if device.platform == "cuda" and device.capability < (first := self.since(problem)):
            return f"it is for sm_{first} and later, not {device.architecture}"
        return None

    def launch(self, config: Config, problem: Problem, device: Device) -> Launch:
        """Plan one launch; raises ValueError with the rule's name where the space refuses the config."""
        refusal = self.space.refusal(config, problem, device)
        if refusal is not None:
            raise ValueError(refusal)
        macros = (
            *((name, str(value)) for name, value in config.items() if name not in self.arguments),
            *dtype_macros(problem),
        )
        build = Build(self.name, self.text, "matmul", macros, self.pooled)
        return _planned(self.plan(config, problem), Launch(self.name, config, problem, build, 0, (0, 0), 0))

    def resized(self, launch: Launch, problem: Problem) -> Launch:
        """The same binary on another problem of its class, without asking the space."""
        return _planned(self.plan(launch.config, problem), replace(launch, problem=problem))


def _planned(plan: Plan, launch: Launch) -> Launch:
    return replace(launch, **{each.name: getattr(plan, each.name) for each in fields(plan)})
