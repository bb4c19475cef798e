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
from kernels.instructions import fma
from kernels.problem import CLASSES, Problem
from kernels.space import Config, Space

COUNTERS: Final = 16_384
OPERANDS: Final = ("a", "b", "c", "scratch")
_INCLUDE: Final = re.compile(r'^#include "(\w+\.h)"$', re.MULTILINE)
# A literal, in which nothing is a comment or a blank too many; else blanks and comments, which together are one blank.
_LITERAL: Final = r"""(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_UNREAD: Final = re.compile(_LITERAL + r"|(?:[^\S\n]|//(?:\\\n|[^\n])*|/\*.*?\*/)+", re.DOTALL)


@cache
def source(name: str) -> str:
    """The text of one of this package's sources, with this package's headers standing where they are included."""
    text = files("kernels").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: source(found.group(1)), text)


def code(text: str) -> str:
    """What a compiler reads of a text: no comments, no blank lines, and one blank where there are several."""
    lines = (line.strip() for line in _UNREAD.sub(lambda found: found["literal"] or " ", text).split("\n"))
    return "\n".join(line for line in lines if line)


@cache
def _code_digest(text: str) -> str:
    return sha256(code(text).encode()).hexdigest()


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
        """SHA-256 over code, entry and macros: two builds with one digest give one binary per compiler."""
        lines = [_code_digest(self.text), self.entry, *(f"{name}={value}" for name, value in self.macros)]
        return sha256("\0".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Step:
    """A launch before or after another, on the same arguments: its build, its blocks and threads."""

    build: Build
    grid: int
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in device memory, as the TMA unit moves boxes of it: what cuTensorMapEncodeTiled is given.

    It starts `offset` bytes into `operand`: "a", "b", "c" or "scratch". `element` is what an element is read as:
    tfloat32 is float32 that is rounded on its way into shared memory. `sizes` and `box` are in elements, innermost
    first, `strides` in bytes, one for each dimension but the innermost. `swizzle` is the span in bytes within which
    16-byte pieces of shared rows change places, or 0. What a box has outside the tensor is read as zero and never
    written. Raises ValueError where the driver would refuse it (CUDA Driver API, Tensor Map Object Management).
    """

    operand: str
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    offset: int = 0

    def __post_init__(self) -> None:
        for rule, holds in self._rules().items():
            if not holds:
                raise ValueError(f"a tensor map {rule}, which this does not: {self}")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _ELEMENT_BYTES[self.element]

    def tiny(self) -> TensorMap:
        """The same of one element: whoever moves its boxes asks for what is outside, and touches next to nothing."""
        ones = (1,) * len(self.sizes)
        return replace(self, sizes=ones, strides=(16,) * len(self.strides), offset=0)

    def _rules(self) -> dict[str, bool]:
        inner = self.box[0] * _ELEMENT_BYTES.get(self.element, 0)
        steps = zip(self.strides[1:], self.strides, strict=False)
        return {
            "lies in a, b, c or scratch": self.operand in OPERANDS,
            "has elements of a known type": self.element in _ELEMENT_BYTES,
            "has one to five dimensions": 1 <= len(self.sizes) <= 5,  # noqa: PLR2004 - the driver's
            "has a box of as many": len(self.box) == len(self.sizes),
            "has a stride for each but the innermost": len(self.strides) == len(self.sizes) - 1,
            "has sizes of 1 to 2^32": all(1 <= size <= 2**32 for size in self.sizes),
            "has boxes of 1 to 256 a side": all(1 <= side <= 256 for side in self.box),  # noqa: PLR2004 - the driver's
            "has boxes whose rows are whole 16 bytes": inner % 16 == 0,
            "has boxes whose rows are no longer than the swizzle's span": not self.swizzle or inner <= self.swizzle,
            "swizzles within 32, 64, 128 bytes or not at all": self.swizzle in {0, 32, 64, 128},
            "starts at a multiple of 16 bytes": self.offset % 16 == 0 and self.offset >= 0,
            "has strides of whole 16 bytes below 2^40": all(s % 16 == 0 and 0 < s < 2**40 for s in self.strides),
            "has strides that divide the next": all(outer % stride == 0 for outer, stride in steps),
        }


_ELEMENT_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a config meets a problem: blocks, threads (x fastest), shared bytes a block, and what else a launch needs.

    `numbers` are further arguments, 64 bits each; with ones for them, and a problem of a few elements, no kernel goes
    further than a mebibyte from its operands or scratch. `scratch_bytes` is device memory that a launch may use: its
    first `COUNTERS` 32-bit integers are zero before and after each launch, the rest is whatever was left there.
    `maps` are the tensors that it moves boxes of. `cluster` blocks stand together: `grid` is a multiple of that.
    `verdict_at` is where in scratch, in bytes, a launch leaves a 32-bit word by which it may decline: zero, and the
    product is whole; else C is not to be used, and the bits say why (kernels.halves).
    """

    grid: int
    block: tuple[int, int]
    shared_bytes: int = 0
    scratch_bytes: int = 0
    numbers: tuple[int, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1
    verdict_at: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One config on one problem: what to compile, how many blocks of how many threads (x fastest), shared bytes.

    The function takes (A, B, C, m, n, k): three device pointers and three 64-bit sizes; where there are `numbers` it
    takes a pointer to scratch (null where there is none) and these as well, and after them the `maps`, by value. Tiles
    and batches are decoded from the one-dimensional grid.
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
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1
    verdict_at: int | None = None

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1]

    def as_step(self, step: Step) -> Launch:
        """A step before or after this launch, in the form of a launch; it has no steps and no pool of its own."""
        alone = replace(self, shared_bytes=0, before=(), after=(), maps=(), cluster=1, verdict_at=None)
        return replace(alone, build=step.build, grid=step.grid, block=step.block)

    @property
    def pool_bytes(self) -> int:
        """Shared bytes that a CUDA launch asks for, since the binary does not declare them."""
        return self.shared_bytes if self.build.pooled else 0


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
    `instructions` names the path by which its products reach an arithmetic unit (kernels.instructions).
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
        return sha256("\0".join(map(_code_digest, [self.text, *map(source, self.also)])).encode()).hexdigest()

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


def dtype_macros(problem: Problem) -> tuple[tuple[str, str], ...]:
    """The macros that every build has: the dtype, the precision where it is not strict, how the operands are stored."""
    return (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        *((("PRECISION_" + problem.precision.upper(), "1"),) if problem.precision != "strict" else ()),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )


def _planned(plan: Plan, launch: Launch) -> Launch:
    return replace(launch, **{each.name: getattr(plan, each.name) for each in fields(plan)})
