"""Launch: all that a device needs to run one config on one problem, and the parts that it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from kernels.problem import Problem
from kernels.sources import code_digest
from kernels.space import Config

# 32-bit counters at the start of the workspace that are zero before and after each launch.
COUNTERS: Final = 16_384
OPERANDS: Final = ("a", "b", "c", "workspace")


@dataclass(frozen=True, slots=True)
class Build:
    """A compiler's input: the source text, its entry function, and -D macros in order.

    With `dynamic_smem` a CUDA launch sets the shared memory of a block, which only so may be more than 48 KiB.
    """

    name: str
    text: str
    entry: str
    macros: tuple[tuple[str, str], ...]
    dynamic_smem: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 over code, entry and macros: two builds with one digest give one binary per compiler."""
        lines = [code_digest(self.text), self.entry, *(f"{name}={value}" for name, value in self.macros)]
        return sha256("\0".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Step:
    """A launch before or after another, on the same arguments: its build, its grid and block."""

    build: Build
    grid: int
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in device memory and the box of it that TMA copies: the arguments of cuTensorMapEncodeTiled.

    It starts `offset` bytes into `operand`: "a", "b", "c" or "workspace". `element` is the type of an element:
    tfloat32 is float32 that is rounded on its way into shared memory. `sizes` and `box` are in elements, innermost
    first, `strides` in bytes, one for each dimension but the innermost. `swizzle` is 32, 64 or 128 bytes, or 0.
    Elements of a box outside the tensor are read as zero and never written. Raises ValueError if the driver would
    refuse it (CUDA Driver API, Tensor Map Object Management).
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
        """The same of one element: loads of its boxes are out of bounds, and access next to no memory."""
        ones = (1,) * len(self.sizes)
        return replace(self, sizes=ones, strides=(16,) * len(self.strides), offset=0)

    def _rules(self) -> dict[str, bool]:
        inner = self.box[0] * _ELEMENT_BYTES.get(self.element, 0)
        steps = zip(self.strides[1:], self.strides, strict=False)
        return {
            "lies in a, b, c or the workspace": self.operand in OPERANDS,
            "has elements of a known type": self.element in _ELEMENT_BYTES,
            "has one to five dimensions": 1 <= len(self.sizes) <= 5,  # noqa: PLR2004 - the driver's
            "has a box of as many": len(self.box) == len(self.sizes),
            "has a stride for each but the innermost": len(self.strides) == len(self.sizes) - 1,
            "has sizes of 1 to 2^32": all(1 <= size <= 2**32 for size in self.sizes),
            "has boxes of 1 to 256 a side": all(1 <= side <= 256 for side in self.box),  # noqa: PLR2004 - the driver's
            "has boxes whose rows are whole 16 bytes": inner % 16 == 0,
            "has boxes whose rows are no longer than the swizzle": not self.swizzle or inner <= self.swizzle,
            "swizzles within 32, 64, 128 bytes or not at all": self.swizzle in {0, 32, 64, 128},
            "starts at a multiple of 16 bytes": self.offset % 16 == 0 and self.offset >= 0,
            "has strides of whole 16 bytes below 2^40": all(s % 16 == 0 and 0 < s < 2**40 for s in self.strides),
            "has strides that divide the next": all(outer % stride == 0 for outer, stride in steps),
        }


_ELEMENT_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Plan:
    """The launch of a config on a problem: grid, block (x fastest), shared bytes of a block, workspace and steps.

    `scalars` are further 64-bit arguments; if they are ones and the problem has a few elements, no kernel accesses
    memory more than a mebibyte from its operands or workspace. Of the `workspace_bytes` of device memory the first
    `COUNTERS` 32-bit integers are zero before and after each launch; the rest is uninitialised. `maps` are its tensor
    maps. `cluster` is the blocks of a cluster, of which `grid` is a multiple. `verdict_at` is the byte of the workspace
    at which a launch leaves a 32-bit word: zero, or the reasons (kernels.fp32_emulation) for which C is undefined.
    """

    grid: int
    block: tuple[int, int]
    shared_bytes: int = 0
    workspace_bytes: int = 0
    scalars: tuple[int, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1
    verdict_at: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch of one config on one problem: its build, and its plan.

    The function takes (A, B, C, m, n, k): three device pointers and three 64-bit sizes; if there are `scalars`, also a
    pointer to the workspace (null if there is none) and these, then the `maps`, by value. Tiles and batches are decoded
    from the one-dimensional grid.
    """

    kernel: str
    config: Config
    problem: Problem
    build: Build
    grid: int
    block: tuple[int, int]
    shared_bytes: int
    workspace_bytes: int = 0
    scalars: tuple[int, ...] = ()
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
        """A step before or after this launch, as a launch without steps and dynamic shared memory."""
        alone = replace(self, shared_bytes=0, before=(), after=(), maps=(), cluster=1, verdict_at=None)
        return replace(alone, build=step.build, grid=step.grid, block=step.block)

    @property
    def dynamic_smem_bytes(self) -> int:
        """Dynamic shared memory of a CUDA launch."""
        return self.shared_bytes if self.build.dynamic_smem else 0


def dtype_macros(problem: Problem) -> tuple[tuple[str, str], ...]:
    """The macros of every build: dtype, precision if not strict, and transpositions."""
    return (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        *((("PRECISION_" + problem.precision.upper(), "1"),) if problem.precision != "strict" else ()),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
