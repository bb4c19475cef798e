"""Packing: steps that copy operands into scratch in rows of whole 128 bytes, K-major or MN-major."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.launch import Build, Step, dtype_macros
from kernels.problem import Problem
from kernels.sources import source

PACK_K_MAJOR: Final = "steps/pack_k_major.cu"
PACK_MN_MAJOR: Final = "steps/pack_mn_major.cu"
# Which operands are copied, as bits.
A: Final = 1
B: Final = 2
# Rows of a copy are multiples of so many bytes; the square that a block copies, and its threads, as in both.
LINE_BYTES: Final = 128
SIDE: Final = 64
THREADS: Final = 256
VECTOR_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """Where in scratch the copies of A and of B begin, and how long each of their rows is, in lines of 128 bytes.

    A copy is [batch][rows of op(A), or columns of op(B)][k], zeros past k; of an operand that is not copied the lines
    are 0. `end` is the first line past all copies.
    """

    at_a: int
    lines_a: int
    at_b: int
    lines_b: int
    end: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The first numbers of a launch that has the step `pack_k_major` before it."""
        return self.at_a, self.lines_a, self.at_b, self.lines_b


def ragged(problem: Problem) -> int:
    """The operands whose stored rows are not whole 16 bytes, as bits: A, B or both."""
    wide = VECTOR_BYTES // problem.itemsize
    return A * (problem.a_shape[1] % wide > 0) | B * (problem.b_shape[1] % wide > 0)


def packed_k_major(problem: Problem, which: int, first: int) -> Packed:
    """Copies of the operands in `which` (bits), one after the other from line `first` of scratch on."""
    row = -(-problem.k * problem.itemsize // LINE_BYTES)
    lines_a, lines_b = row * bool(which & A), row * bool(which & B)
    at_b = first + problem.batch * problem.m * lines_a
    return Packed(first, lines_a, at_b, lines_b, at_b + problem.batch * problem.n * lines_b)


def pack_k_major(problem: Problem, which: int) -> Step:
    """The launch that makes the copies: a block for each square of 64 x 64 elements of each operand."""
    squares = -(-problem.m // SIDE) * bool(which & A) + -(-problem.n // SIDE) * bool(which & B)
    macros = (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
    build = Build("pack_k_major", source(PACK_K_MAJOR), "pack_k_major", macros)
    return Step(build, problem.batch * squares * -(-problem.k // SIDE), (THREADS, 1))


def packs_mn_major(problem: Problem) -> tuple[bool, bool]:
    """Whether an MN-major copy is made of A, and B: where it is stored along k, or its rows are not whole 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return not problem.trans_a or problem.m % wide > 0, problem.trans_b or problem.n % wide > 0


def packed_bytes(problem: Problem) -> int:
    """Bytes of all MN-major copies."""
    return problem.batch * problem.k * LINE_BYTES * sum(packed_lines(problem))


def packed_lines(problem: Problem) -> tuple[int, int]:
    """Lines of 128 bytes that each k takes in the copy of A, and of B; 0 where there is none."""
    line = LINE_BYTES // problem.itemsize
    packed_a, packed_b = packs_mn_major(problem)
    return -(-problem.m // line) * packed_a, -(-problem.n // line) * packed_b


def pack_mn_major(problem: Problem) -> Step:
    """The launch that makes the copies: a block for each square of each operand."""
    packed_a, packed_b = packs_mn_major(problem)
    squares = -(-problem.m // SIDE) * packed_a + -(-problem.n // SIDE) * packed_b
    build = Build("pack_mn_major", source(PACK_MN_MAJOR), "pack_mn_major", dtype_macros(problem))
    return Step(build, problem.batch * -(-problem.k // SIDE) * squares, (THREADS, 1))
