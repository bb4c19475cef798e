"""What NVRTC makes of the kernels that compare, on the interpreter: no race, no bank conflict, what NumPy finds."""

from __future__ import annotations

import numpy as np
import pytest

from app.dtypes import Array, numpy_dtype
from app.tuning.verify.tolerance import POISON, Expected, Norms, applied, errors, operands
from kernels.comparison import FINDINGS, compare, expected_bytes, norms, widen
from kernels.problem import ITEMSIZE, Problem
from tests.kernels.test_freivalds import ran
from tests.support.pairwise import crossed

LAYOUTS = ["nn", "nt", "tn", "tt"]


def problem(dtype: str, layout: str, m: int = 70, n: int = 261, k: int = 41) -> Problem:
    return Problem(m, n, k, 2, dtype, trans_a=layout[0] == "t", trans_b=layout[1] == "t")


@pytest.mark.rotating
@crossed(dtype=list(ITEMSIZE), layout=LAYOUTS)
def test_operands_are_widened_exactly(dtype: str, layout: str) -> None:
    what = problem(dtype, layout, m=19, n=23)
    a, b = operands(what, seed=1)
    left, _ = applied(what, a, b)
    for side, stored, wide in (("a", a, left), ("b", b, b)):
        found, _ = ran(widen(what, side), stored, np.zeros(1), np.zeros(wide.shape))
        assert np.array_equal(found, wide.astype(np.float64))


@pytest.mark.rotating
@crossed(dtype=list(ITEMSIZE), layout=LAYOUTS)
def test_norms_are_numpys_and_lie_behind_the_reference(dtype: str, layout: str) -> None:
    what = problem(dtype, layout, m=35, n=9)
    rng = np.random.default_rng(2)
    shapes = (what.batch, *what.a_shape), (what.batch, *what.b_shape)
    a, b = (rng.integers(-8, 9, shape).astype(numpy_dtype(dtype)) for shape in shapes)
    left, right = (each.astype(np.float64) for each in applied(what, a, b))
    size = what.batch * what.m * what.n
    start = {"a": size, "b": size + what.batch * what.m}
    for side, stored, known in (("a", a, np.linalg.norm(left, axis=2)), ("b", b, np.linalg.norm(right, axis=1))):
        found, conflicts = ran(norms(what, side), stored, np.zeros(1), np.zeros(expected_bytes(what) // 8))
        where = slice(start[side], start[side] + known.size)
        assert found[where] == pytest.approx(known.reshape(-1), rel=1e-15)
        others = np.delete(found, np.arange(where.start, where.stop))
        assert (others.view(np.uint64) == 2**64 - 1).all(), "something else was written"
        assert conflicts == 0


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_errors_are_those_that_numpy_finds(dtype: str) -> None:
    """Of integers, whose squares are exact: the interpreter rounds no product of float64."""
    what, rng = problem(dtype, "nn"), np.random.default_rng(3)
    reference = rng.integers(-4000, 4000, (2, 70, 261)).astype(np.float64)
    rows, columns = (rng.integers(0, 9, (2, size)).astype(np.float64) for size in (70, 261))
    expected = Expected(reference, rows, columns, Norms(1.0, 1.0))
    c = (reference + rng.integers(-3, 4, reference.shape)).astype(numpy_dtype(dtype))
    known, found = errors(what, expected, c), compared(what, expected, c)
    scales = np.square(rows[:, :, None] * columns[:, None, :]).sum()
    assert found[:5].tolist() == [known.squares, np.square(reference).sum(), scales, 0, 0]
    assert found[5:].tolist() == [known.worst, known.early]
    assert np.isinf(known.worst)
    rows, columns = rows + 1, columns + 1
    expected = Expected(reference, rows, columns, Norms(1.0, 1.0))
    known, found = errors(what, expected, c), compared(what, expected, c)
    assert found[5:] == pytest.approx([known.worst, known.early], rel=1e-15)
    c[1, 69, 260] = np.nan
    c[0, 3, 4:6].view(np.uint8)[...] = POISON
    found = compared(what, expected, c)
    assert np.isnan(found[0])
    assert found[3:5].tolist() == [3, 2]


def compared(what: Problem, expected: Expected, c: Array) -> Array:
    """What all blocks find: sums, and the largest of both ratios."""
    launch = compare(what)
    given = np.concatenate([each.reshape(-1) for each in (expected.reference, expected.rows, expected.columns)])
    found, conflicts = ran(launch, c, given, np.zeros((launch.grid, FINDINGS)))
    assert conflicts == 0
    return np.concatenate([found[:, :5].sum(0), found[:, 5:].max(0)])
