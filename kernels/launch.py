"""Launch: all that a device needs to run one config on one problem, and the parts that it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from kernels.problem import Problem
from kernels.sources import code_digest
from kernels.space import Config

# 32-bit integers at the start of scratch that are zero before and after each launch.
COUNTERS: Final = 16_384
OPERANDS: Final = ("a", "b", "c", "scratch")


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
        lines = [code_digest(self.text), self.entry, *(f"{name}={value}" for name, value in self.macros)]
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
    product is whole; else C is not to be used, and the bits say why (kernels.fp32_emulation).
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


def dtype_macros(problem: Problem) -> tuple[tuple[str, str], ...]:
    """The macros that every build has: the dtype, the precision where it is not strict, how the operands are stored."""
    return (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        *((("PRECISION_" + problem.precision.upper(), "1"),) if problem.precision != "strict" else ()),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
