"""Aligned copies: operands whose rows are not whole 16 bytes, brought once into scratch in rows along k that are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.kernel import Build, Step, source
from kernels.problem import Problem

ALIGN: Final = "align.cu"
# Which operands are copied, as bits.
A: Final = 1
B: Final = 2
# Rows of a copy are multiples of so many bytes; the square that a block copies, and its threads, as in align.cu.
LINE_BYTES: Final = 128
SIDE: Final = 64
THREADS: Final = 256
VECTOR_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Copies:
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
        """The first numbers of a launch that has the step `align` before it."""
        return self.at_a, self.lines_a, self.at_b, self.lines_b


def ragged(problem: Problem) -> int:
    """The operands whose stored rows are not whole 16 bytes, as bits: A, B or both."""
    wide = VECTOR_BYTES // problem.itemsize
    return A * (problem.a_shape[1] % wide > 0) | B * (problem.b_shape[1] % wide > 0)


def copies(problem: Problem, which: int, first: int) -> Copies:
    """Copies of the operands in `which` (bits), one after the other from line `first` of scratch on."""
    row = -(-problem.k * problem.itemsize // LINE_BYTES)
    lines_a, lines_b = row * bool(which & A), row * bool(which & B)
    at_b = first + problem.batch * problem.m * lines_a
    return Copies(first, lines_a, at_b, lines_b, at_b + problem.batch * problem.n * lines_b)


def align(problem: Problem, which: int) -> Step:
    """The launch that makes the copies: a block for each square of 64 x 64 elements of each operand."""
    squares = -(-problem.m // SIDE) * bool(which & A) + -(-problem.n // SIDE) * bool(which & B)
    macros = (
        ("DTYPE_" + problem.dtype.upper(), "1"),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
    build = Build("align", source(ALIGN), "align", macros)
    return Step(build, problem.batch * squares * -(-problem.k // SIDE), (THREADS, 1))
