"""Kernels: a source, its space, its coverage and its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Final, Literal

from kernels.arithmetic import fma
from kernels.device import Device
from kernels.launch import Build, Launch, Plan, dtype_macros
from kernels.problem import CLASSES, Problem
from kernels.sources import code_digest, source
from kernels.space import Config, Space

# What kernels are for: products, or the lessons that are measured by the same service and never make one.
Role = Literal["serving", "lesson"]
SERVING: Final = "serving"
LESSON: Final = "lesson"


def _all(_: Problem) -> bool:
    return True


def _everywhere(_: Problem, __: Device) -> bool:
    return True


def _ever(_: Problem) -> int:
    return 0


def _itself(config: Config) -> Config:
    return config


@dataclass(frozen=True)
class Kernel:
    """A kernel of the ladder: source file, space, coverage and plan.

    `plan` takes legal configs; `default` is the cost model's choice, untuned. `supports` are the problems on which the
    kernel is tuned, which `shapes` says in words; `preferred_untuned`, those of them for which it is the untuned
    default, before the rungs below it. `arguments` are the parameters that are scalars of a launch and no macros:
    configs that differ in these alone share a binary. `auxiliary_sources` are the files of its steps. `architectures`
    limits it to some of its platforms'. `excluded_classes` are pairs of its `dtypes` and `precisions` that it does not
    compute. `min_capability` is the first CUDA architecture that has a problem's instructions, such as 80.
    `instructions` names those (kernels.arithmetic). `role` is `serving` or `lesson`. `modelled` is a config in the
    parameters that the cost model reads: BM, BN and, with tiles in shared memory, BK.
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
    dynamic_smem: bool = False
    arguments: tuple[str, ...] = ()
    auxiliary_sources: tuple[str, ...] = ()
    supports: Callable[[Problem], bool] = _all
    preferred_untuned: Callable[[Problem, Device], bool] = _everywhere
    architectures: tuple[str, ...] = ()
    shapes: str = "any shape"
    excluded_classes: tuple[tuple[str, str], ...] = ()
    min_capability: Callable[[Problem], int] = _ever
    instructions: Callable[[Problem, Device], str] = fma
    role: Role = SERVING
    modelled: Callable[[Config], Config] = _itself

    @property
    def text(self) -> str:
        """The source with its headers, as the compiler reads it."""
        return source(self.file)

    @property
    def digest(self) -> str:
        """SHA-256 of the code and its steps': a stored result is stale once it changes.

        Comments and blanks do not count.
        """
        return sha256(
            "\0".join(map(code_digest, [self.text, *map(source, self.auxiliary_sources)])).encode()
        ).hexdigest()

    @property
    def classes(self) -> tuple[tuple[str, str], ...]:
        """The pairs of dtype and precision that this kernel computes."""
        pairs = ((dtype, precision) for dtype in self.dtypes for precision in CLASSES[dtype])
        return tuple(pair for pair in pairs if pair[1] in self.precisions and pair not in self.excluded_classes)

    def covers(self, problem: Problem, device: Device) -> bool:
        """Whether the kernel supports the problem on the device."""
        return self.refusal(problem, device) is None

    def refusal(self, problem: Problem, device: Device) -> str | None:
        """Why the kernel does not support the problem on the device, as a clause; None if it does."""
        sizes = f"{problem.m} x {problem.n} x {problem.k}"
        unsupported = None if self.supports(problem) else f"it is for {self.shapes}, not for {sizes}"
        return self.class_refusal(problem, device) or unsupported

    def class_refusal(self, problem: Problem, device: Device) -> str | None:
        """Why it computes no problem of this class on the device, of whatever sizes; None if it does."""
        if (problem.dtype, problem.precision) not in self.classes:
            own = ", ".join(f"{dtype} ({precision})" for dtype, precision in self.classes)
            return f"it computes {own}, not {problem.dtype} ({problem.precision})"
        if device.platform not in self.platforms:
            return f"it is for {' and '.join(self.platforms)}, not {device.platform}"
        if self.architectures and device.architecture not in self.architectures:
            return f"it is for {', '.join(self.architectures)}, not {device.architecture}"
        if device.platform == "cuda" and device.capability < (first := self.min_capability(problem)):
            return f"it is for sm_{first} and later, not {device.architecture}"
        return None

    def launch(self, config: Config, problem: Problem, device: Device) -> Launch:
        """Plan a launch; raises ValueError with the rule's name if the space refuses the config."""
        refusal = self.space.refusal(config, problem, device)
        if refusal is not None:
            raise ValueError(refusal)
        macros = (
            *((name, str(value)) for name, value in config.items() if name not in self.arguments),
            *dtype_macros(problem),
        )
        build = Build(self.name, self.text, "matmul", macros, self.dynamic_smem)
        return _planned(self.plan(config, problem), Launch(self.name, config, problem, build, 0, (0, 0), 0))

    def for_problem(self, launch: Launch, problem: Problem) -> Launch:
        """The same binary on another problem of its class, which the space is not asked for."""
        return _planned(self.plan(launch.config, problem), replace(launch, problem=problem))


def _planned(plan: Plan, launch: Launch) -> Launch:
    return replace(launch, **{each.name: getattr(plan, each.name) for each in fields(plan)})
