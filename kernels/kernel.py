"""Kernel: a source with its space, and Launch: all that a device needs to run one config on one problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config, Space


@cache
def source(name: str) -> str:
    """The text of one of this package's sources, with portable.h standing where it is included."""
    text = files("kernels").joinpath(name).read_text(encoding="utf-8")
    include = '#include "portable.h"'
    return text.replace(include, source("portable.h")) if include in text else text


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
class Launch:
    """One config on one problem: what to compile, how many blocks of how many threads (x fastest), shared bytes.

    The function takes (A, B, C, m, n, k): three device pointers and three 64-bit sizes. Tiles and batches are decoded
    from the one-dimensional grid.
    """

    kernel: str
    config: Config
    problem: Problem
    build: Build
    grid: int
    block: tuple[int, int]
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1]

    @property
    def pool_bytes(self) -> int:
        """Shared bytes that a CUDA launch asks for, since the binary does not declare them."""
        return self.shared_bytes if self.build.pooled else 0


@dataclass(frozen=True)
class Kernel:
    """A rung of the ladder: its source file, its space, what it covers, and how a config of it is launched.

    `plan` gives (grid, block, shared_bytes) for a legal config; `default` gives the model's own choice, untuned.
    `pooled` is its builds'.
    """

    name: str
    summary: str
    file: str
    space: Space
    dtypes: tuple[str, ...]
    precisions: tuple[str, ...]
    platforms: tuple[str, ...]
    plan: Callable[[Config, Problem], tuple[int, tuple[int, int], int]]
    default: Callable[[Problem, Device], Config]
    pooled: bool = False

    @property
    def text(self) -> str:
        """The whole source as the compiler sees it."""
        return source(self.file)

    @property
    def digest(self) -> str:
        """SHA-256 of the text: a stored result is stale once it changes."""
        return sha256(self.text.encode()).hexdigest()

    def covers(self, problem: Problem, device: Device) -> bool:
        """Whether this kernel computes such problems on such a device."""
        return (
            problem.dtype in self.dtypes and problem.precision in self.precisions and device.platform in self.platforms
        )

    def launch(self, config: Config, problem: Problem, device: Device) -> Launch:
        """Plan one launch; raises ValueError with the rule's name where the space refuses the config."""
        refusal = self.space.refusal(config, problem, device)
        if refusal is not None:
            raise ValueError(refusal)
        grid, block, shared_bytes = self.plan(config, problem)
        macros = (
            *((name, str(value)) for name, value in config.items()),
            ("DTYPE_" + problem.dtype.upper(), "1"),
            ("TRANS_A", str(int(problem.trans_a))),
            ("TRANS_B", str(int(problem.trans_b))),
        )
        build = Build(self.name, self.text, "matmul", macros, self.pooled)
        return Launch(self.name, config, problem, build, grid, block, shared_bytes)
