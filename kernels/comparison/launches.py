"""The launches of a comparison: operands in float64 for the reference, the norms of their lines, and what C is off by.

Each takes its arguments as a product does. A is the matrix that is read, of a comparison C, and B the expected product:
the float64 reference, then the norms of op(A)'s rows, then those of op(B)'s columns. C is what is found.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config

# Doubles that a block finds, in order: sums of the squares of errors, of the reference and of the scales, counts of NaN
# and of unwritten elements, the largest error over its scale, and the largest beyond the rounding into a 16-bit C.
FINDINGS: Final = 7
_THREADS: Final = 256
_LANES: Final = 32
_ROWS: Final = 64  # of a block that compares
_WIDENED: Final = 8  # elements of a thread
_DOUBLE: Final = 8
_KNOWN: Final = 64  # launches that are remembered
_BLOCK: Final = (_THREADS, 1)


def expected_bytes(problem: Problem) -> int:
    """Bytes of the expected product: the reference and both kinds of norms."""
    m, n = problem.m, problem.n
    return _DOUBLE * problem.batch * (m * n + m + n)


@lru_cache(_KNOWN)
def widen(problem: Problem, side: str) -> Launch:
    """The launch that stores op(A) [batch, m, k], or B as it is stored, in float64; side is "a" or "b"."""
    rows, columns, is_turned = (problem.m, problem.k, problem.trans_a) if side == "a" else (*problem.b_shape, False)
    size = problem.batch * rows * columns
    build = _build("widen", problem, ELEMENTS=_WIDENED, TURNED=int(is_turned))
    return _launch(build, problem, rows, columns, -(-size // (_THREADS * _WIDENED)), size)


@lru_cache(_KNOWN)
def norms(problem: Problem, side: str) -> Launch:
    """The launch that finds the norms of op(A)'s rows or of op(B)'s columns; side is "a" or "b".

    They are stored where the expected product has them, which is what C is.
    """
    start = problem.batch * problem.m * problem.n
    if side == "a":
        lines, is_turned = problem.m, problem.trans_a
    else:
        lines, is_turned, start = problem.n, not problem.trans_b, start + problem.batch * problem.m
    rows = _LANES if is_turned else _THREADS // _LANES
    build = _build("norms", problem, TURNED=int(is_turned))
    return _launch(build, problem, lines, problem.k, problem.batch * -(-lines // rows), start)


@lru_cache(_KNOWN)
def compare(problem: Problem) -> Launch:
    """The launch that compares C with the expected product: FINDINGS doubles of each block."""
    across, down = -(-problem.n // _THREADS), -(-problem.m // _ROWS)
    build = _build("compare", problem, ROWS=_ROWS)
    return _launch(build, problem, problem.m, problem.n, problem.batch * across * down, problem.batch)


def _build(name: str, problem: Problem, **macros: int) -> Build:
    given = (("DTYPE_" + problem.dtype.upper(), "1"), ("THREADS", str(_THREADS)))
    return Build(name, source(f"comparison/{name}.cu"), name, (*given, *((one, str(of)) for one, of in macros.items())))


def _launch(build: Build, problem: Problem, rows: int, columns: int, grid: int, scalar: int) -> Launch:
    matrix = Problem(rows, columns, 1, problem.batch, problem.dtype)
    return Launch("comparison", Config.of({}), matrix, build, grid, _BLOCK, 0, scalars=(scalar,))
