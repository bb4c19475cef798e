"""Packing: steps that copy operands into the workspace, K-major or MN-major, in rows of multiples of 128 bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.launch import Build, Step, dtype_macros
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, VECTOR_BYTES
from kernels.sources import source

PACK_K_MAJOR: Final = "steps/pack_k_major.cu"
PACK_MN_MAJOR: Final = "steps/pack_mn_major.cu"
# The packed operands, as bits.
A: Final = 1
B: Final = 2
# The square that a block copies, and its threads, as in both steps.
SIDE: Final = 64
THREADS: Final = 256
HALF_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class PackedOperands:
    """Where in the workspace the packed A and B begin, and the length of their rows, in lines of 128 bytes.

    They are [batch][rows of op(A), or columns of op(B)][k], zeros past k; the rows of an operand that is not packed
    have length 0. `end` is the first line past both.
    """

    at_a: int
    lines_a: int
    at_b: int
    lines_b: int
    end: int

    @property
    def scalars(self) -> tuple[int, int, int, int]:
        """The first scalars of a launch with the step `pack_k_major` before it."""
        return self.at_a, self.lines_a, self.at_b, self.lines_b


def ragged(problem: Problem) -> int:
    """The operands whose stored rows are no multiples of 16 bytes, as bits."""
    wide = VECTOR_BYTES // problem.itemsize
    return A * (problem.a_shape[1] % wide > 0) | B * (problem.b_shape[1] % wide > 0)


def is_c_ragged(problem: Problem) -> bool:
    """Whether C's rows are no multiples of 16 bytes: neither TMA nor 16 bytes at once can store them."""
    return problem.n * problem.itemsize % VECTOR_BYTES > 0


def operands_to_realign(packed: int, problem: Problem) -> int:
    """Those whose rows are no multiples of 16 bytes and that are not packed, as bits."""
    return ragged(problem) & ~packed


def packed_k_major(problem: Problem, which: int, first: int) -> PackedOperands:
    """The layout of the packed operands in `which` (bits), from line `first` of the workspace on."""
    row = -(-problem.k * problem.itemsize // LINE_BYTES)
    lines_a, lines_b = row * bool(which & A), row * bool(which & B)
    at_b = first + problem.batch * problem.m * lines_a
    return PackedOperands(first, lines_a, at_b, lines_b, at_b + problem.batch * problem.n * lines_b)


def pack_k_major(problem: Problem, which: int) -> Step:
    """The step that packs the operands in `which`: a block for each 64 x 64 elements."""
    squares = -(-problem.m // SIDE) * bool(which & A) + -(-problem.n // SIDE) * bool(which & B)
    macros = (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
    build = Build("pack_k_major", source(PACK_K_MAJOR), "pack_k_major", macros)
    return Step(build, problem.batch * squares * -(-problem.k // SIDE), (THREADS, 1))


def packs_mn_major(problem: Problem) -> tuple[bool, bool]:
    """Whether A and B are packed MN-major: if stored K-major, or in rows that are no multiples of 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return not problem.trans_a or problem.m % wide > 0, problem.trans_b or problem.n % wide > 0


def packed_bytes(problem: Problem) -> int:
    """Bytes of the operands packed MN-major."""
    return problem.batch * problem.k * LINE_BYTES * sum(packed_lines(problem))


def packed_lines(problem: Problem) -> tuple[int, int]:
    """Lines of 128 bytes of each k in the packed A and B; 0 for one that is not packed."""
    line = LINE_BYTES // problem.itemsize
    packed_a, packed_b = packs_mn_major(problem)
    return -(-problem.m // line) * packed_a, -(-problem.n // line) * packed_b


def pack_mn_major(problem: Problem) -> Step:
    """The step that packs the operands: a block for each 64 x 64 elements."""
    packed_a, packed_b = packs_mn_major(problem)
    squares = -(-problem.m // SIDE) * packed_a + -(-problem.n // SIDE) * packed_b
    build = Build("pack_mn_major", source(PACK_MN_MAJOR), "pack_mn_major", dtype_macros(problem))
    return Step(build, problem.batch * -(-problem.k // SIDE) * squares, (THREADS, 1))
