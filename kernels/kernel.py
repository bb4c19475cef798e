"""Kernel: a source with its space, and Launch: all that a device needs to run one config on one problem."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config, Space

COUNTERS: Final = 16_384
_INCLUDE: Final = re.compile(r'^#include "(\w+\.h)"$', re.MULTILINE)


@cache
def source(name: str) -> str:
    """The text of one of this package's sources, with this package's headers standing where they are included."""
    text = files("kernels").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: source(found.group(1)), text)


@dataclass(frozen=True, slots=True)
class Build:
    """What a compiler is given: a whole text, the function to find in it, and -D macros in order.

    `pooled` says that CUDA is told at the launch how much shared memory a block has: only so may that pass 48 KiB.
    """

    name: str
    text: str
    entry: str
    macros: tuple[tuple[str, str], ...]
    pooled: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 over text, entry and macros: two builds with one digest give one binary per compiler."""
        lines = [self.text, self.entry, *(f"{name}={value}" for name, value in self.macros)]
        return sha256("\0".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Step:
    """A launch before or after another, on the same arguments: its build, its blocks and threads."""

    build: Build
    grid: int
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a config meets a problem: blocks, threads (x fastest), shared bytes a block, and what else a launch needs.

    `numbers` are further arguments, 64 bits each; with ones for them, and a problem of a few elements, no kernel goes
    further than a mebibyte from its operands or scratch. `scratch_bytes` is device memory that a launch may use: its
    first `COUNTERS` 32-bit integers are zero before and after each launch, the rest is whatever was left there.
    """

    grid: int
    block: tuple[int, int]
    shared_bytes: int = 0
    scratch_bytes: int = 0
    numbers: tuple[int, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """One config on one problem: what to compile, how many blocks of how many threads (x fastest), shared bytes.

    The function takes (A, B, C, m, n, k): three device pointers and three 64-bit sizes; where there are `numbers` it
    takes a pointer to scratch (null where there is none) and these as well. Tiles and batches are decoded from the
    one-dimensional grid.
    """

    kernel: str
    config: Config
    problem: Problem
    build: Build
    grid: int
    block: tuple[int, int]
    shared_bytes: int
    scratch_bytes: int = 0
    numbers: tuple[int, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1]

    def as_step(self, step: Step) -> Launch:
        """A step before or after this launch, in the form of a launch; it has no steps and no pool of its own."""
        return replace(self, build=step.build, grid=step.grid, block=step.block, shared_bytes=0, before=(), after=())

    @property
    def pool_bytes(self) -> int:
        """Shared bytes that a CUDA launch asks for, since the binary does not declare them."""
        return self.shared_bytes if self.build.pooled else 0


def _all(_: Problem) -> bool:
    return True


@dataclass(frozen=True)
class Kernel:
    """A rung of the ladder: its source file, its space, what it covers, and how a config of it is launched.

    `plan` is asked for legal configs; `default` gives the model's own choice, untuned. `suits` tells of which problems
    this kernel can be the best: for others it is not tried. `pooled` is its builds'. `arguments` names the parameters
    that reach the function among a plan's numbers and not as macros: configs that differ in these alone share a binary.
    `also` are the files of the steps that its plans put before and after a launch. `architectures` are those that the
    kernel is for, where it is not for all of its platforms'. `shapes` says in words which problems it suits.
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
    architectures: tuple[str, ...] = ()
    shapes: str = "any shape"

    @property
    def text(self) -> str:
        """The whole source as the compiler sees it."""
        return source(self.file)

    @property
    def digest(self) -> str:
        """SHA-256 of the text and of what runs before and after it: a stored result is stale once it changes."""
        return sha256("\0".join([self.text, *map(source, self.also)]).encode()).hexdigest()

    def covers(self, problem: Problem, device: Device) -> bool:
        """Whether this kernel is one for such problems on such a device."""
        return self.refusal(problem, device) is None

    def refusal(self, problem: Problem, device: Device) -> str | None:
        """Why this kernel is not one for such a problem on such a device, in a clause; None where it is."""
        if problem.dtype not in self.dtypes or problem.precision not in self.precisions:
            own = f"{' and '.join(self.dtypes)} ({', '.join(self.precisions)})"
            return f"it computes {own}, not {problem.dtype} ({problem.precision})"
        if device.platform not in self.platforms:
            return f"it is for {' and '.join(self.platforms)}, not {device.platform}"
        if self.architectures and device.architecture not in self.architectures:
            return f"it is for {', '.join(self.architectures)}, not {device.architecture}"
        sizes = f"{problem.m} x {problem.n} x {problem.k}"
        return None if self.suits(problem) else f"it is for {self.shapes}, not for {sizes}"

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


def dtype_macros(problem: Problem) -> tuple[tuple[str, str], ...]:
    """The macros that every build has: the dtype, and how the operands are stored."""
    return (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )


def _planned(plan: Plan, launch: Launch) -> Launch:
    return replace(launch, **{each.name: getattr(plan, each.name) for each in fields(plan)})
