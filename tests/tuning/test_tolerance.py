"""Both measures of error against direct computation; right products pass, wrong ones are told what is wrong."""

from __future__ import annotations

from functools import partial
from secrets import randbits

import numpy as np
import pytest

from app.dtypes import Array, numpy_dtype
from app.errors import WrongResult
from app.tuning.verify import tolerance
from kernels.problem import ITEMSIZE, Problem
from tests.support.pairwise import crossed

Shape = tuple[int, int, int, int]
LAYOUTS = ["nn", "nt", "tn", "tt"]
HALVES = ("float16", "bfloat16")
SHAPES: list[Shape] = [
    (1, 1, 1, 1),
    (64, 48, 80, 1),
    (7, 300, 5, 3),
    (1, 1000, 9, 2),
    (700, 1, 33, 1),
    (5, 5, 2000, 40),
]


def seed() -> int:
    number = randbits(31)
    print(f"seed {number}")
    return number


def case(problem: Problem) -> tuple[Array, Array, Array]:
    """Operands as stored and their product in float64."""
    a, b = tolerance.operands(problem, seed())
    left, right = tolerance.applied(problem, a, b)
    return a, b, np.matmul(left, right, dtype=np.float64)


def sequential(problem: Problem, a: Array, b: Array) -> Array:
    """One sum after the other in the accumulator's dtype, each product rounded before: no kernel here does worse."""
    kind = numpy_dtype("float64" if problem.dtype == "float64" else "float32")
    left, right = (operand.astype(kind) for operand in tolerance.applied(problem, a, b))
    c = np.zeros((problem.batch, problem.m, problem.n), kind)
    for term in range(problem.k):
        c += left[:, :, term, None] * right[:, None, term, :]
    return c.astype(numpy_dtype(problem.dtype))


def element(reference: Array, batch: int, i: int, j: int) -> float:
    return float(reference[batch, i, j])


def problem(m: int, n: int, k: int, batch: int = 1, *, dtype: str = "float32", layout: str = "nn") -> Problem:
    return Problem(m, n, k, batch, dtype, trans_a=layout[0] == "t", trans_b=layout[1] == "t")


@crossed(dtype=list(ITEMSIZE), shape=SHAPES, layout=LAYOUTS)
def test_accuracy_is_what_direct_computation_gives(dtype: str, shape: Shape, layout: str) -> None:
    what = problem(*shape, dtype=dtype, layout=layout)
    a, b, reference = case(what)
    noise = 1 + 1e-3 * np.random.default_rng(1).standard_normal(reference.shape)
    c = (reference * noise).astype(numpy_dtype(dtype))
    left, right = (operand.astype(np.float64) for operand in tolerance.applied(what, a, b))
    error = c - reference
    scale = np.linalg.norm(left, axis=2)[:, :, None] * np.linalg.norm(right, axis=1)[:, None, :]
    found = tolerance.accuracy(what, a, b, reference, c)
    assert found.relative_l2 == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference), rel=1e-9)
    assert found.max_scaled == pytest.approx((np.abs(error) / scale).max(), rel=1e-9)


@crossed(batch=[1, 2, 7, 100], rows=[1, 3, 50], cost=[1, 10, 1000], limit=[1, 25, 100, 10**6])
def test_pieces_cover_every_row_of_every_batch_once(batch: int, rows: int, cost: int, limit: int) -> None:
    seen = np.zeros((batch, rows), int)
    for where in tolerance.pieces(batch, rows, cost, limit):
        seen[where] += 1
        assert seen[where].size * cost <= limit or seen[where].size == 1
    assert (seen == 1).all()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("k", [1, 2, 3, 10, 100, 1000, 10_000])
def test_the_least_accurate_right_kernel_is_within_tolerance(dtype: str, k: int) -> None:
    what = problem(96, 80, k, dtype=dtype)
    a, b, reference = case(what)
    c = sequential(what, a, b)
    assert tolerance.judge(what, a, b, reference, c) is None
    found, allowed = tolerance.accuracy(what, a, b, reference, c), tolerance.tolerance(what)
    print(f"{found.relative_l2 / allowed.relative_l2:.3f} {found.max_scaled / allowed.max_scaled:.3f} of the tolerance")


@crossed(dtype=["float32", "float64"], shape=SHAPES, layout=LAYOUTS)
def test_numpys_product_is_right(dtype: str, shape: Shape, layout: str) -> None:
    what = problem(*shape, dtype=dtype, layout=layout)
    a, b, reference = case(what)
    assert tolerance.judge(what, a, b, reference, np.matmul(*tolerance.applied(what, a, b))) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_elements_whose_terms_cancel_are_right_all_the_same(dtype: str) -> None:
    generator = np.random.default_rng(seed())
    for _ in range(3000):
        m, n, k = int(generator.integers(1, 4)), int(generator.integers(1, 3)), int(generator.integers(1, 200))
        what = problem(m, n, k, dtype=dtype)
        a, b = (generator.standard_normal(shape).astype(dtype) for shape in (what.a_shape, what.b_shape))
        c = np.zeros((m, n), dtype)
        for q in range(k):
            c += np.outer(a[:, q], b[q])
        reference = np.matmul(a, b, dtype=np.longdouble).astype(np.float64)
        assert tolerance.judge(what, a, b, reference, c) is None


def test_the_bound_on_one_element_never_exceeds_the_rigorous_one() -> None:
    for k in (1, 2, 3, 4, 7, 64, 4096, 2**20, 2**26):
        for dtype, unit, factor in (("float32", 2.0**-24, 1), ("float64", 2.0**-53, 2)):
            bound = tolerance.tolerance(problem(4, 4, k, dtype=dtype)).max_scaled
            assert 0 < bound <= factor * (k * unit / (1 - min(0.9, k * unit)) + unit) * (1 + 1e-12)


def test_coarser_classes_have_wider_bounds() -> None:
    classes = [
        Problem(4, 4, 512, dtype="float64"),
        Problem(4, 4, 512),
        Problem(4, 4, 512, precision="tf32"),
        Problem(4, 4, 512, dtype="bfloat16"),
    ]
    bounds = [tolerance.tolerance(one) for one in classes]
    assert bounds == sorted(bounds, key=lambda bound: bound.relative_l2)
    assert bounds == sorted(bounds, key=lambda bound: bound.max_scaled)


def test_one_unwritten_element_of_millions_is_told() -> None:
    what = problem(2048, 2048, 32)
    a, b, reference = case(what)
    c = reference.astype(np.float32)
    c.view(np.uint32)[0, 1234, 567] = 0xFFFFFFFF
    assert tolerance.judge(what, a, b, reference, c) == "left 1 element unwritten"


def test_several_unwritten_elements_are_counted() -> None:
    what = problem(40, 30, 20, batch=2, dtype="float64")
    a, b, reference = case(what)
    c = np.full(reference.shape, 0.0)
    c.view(np.uint64)[...] = 0xFFFFFFFFFFFFFFFF
    assert tolerance.judge(what, a, b, reference, c) == "left 2400 elements unwritten"


def test_a_computed_nan_is_not_called_unwritten() -> None:
    what = problem(8, 8, 8)
    a, b, reference = case(what)
    c = reference.astype(np.float32)
    c[0, 3, 3] = np.nan
    assert tolerance.judge(what, a, b, reference, c) == "gave NaN for 1 element of a finite product"


def test_an_infinity_is_an_error_without_bound() -> None:
    what = problem(8, 8, 8)
    a, b, reference = case(what)
    c = reference.astype(np.float32)
    c[0, 3, 3] = np.inf
    reason = tolerance.judge(what, a, b, reference, c)
    assert reason is not None
    assert reason.startswith("relative L2 error inf exceeds")


@pytest.mark.rotating
def test_one_wrong_element_of_millions_is_told() -> None:
    what = problem(4096, 1024, 64)
    a, b, reference = case(what)
    c = reference.astype(np.float32)
    right, lost = c[0, 4000, 11], float(a[0, 4000, 63]) * float(b[0, 63, 11])
    for wrong in (0.0, c[0, 4000, 12], reference[0, 4000, 11] - lost):
        c[0, 4000, 11] = wrong
        assert tolerance.judge(what, a, b, reference, c) is not None
    c[0, 4000, 11] = right
    assert tolerance.judge(what, a, b, reference, c) is None


def test_an_element_of_a_deep_sum_that_lost_one_term_is_told() -> None:
    what = problem(64, 64, 4096)
    a, b, reference = case(what)
    c = sequential(what, a, b)
    c[0, 7, 9] -= 1.0  # about what one of 4096 terms adds
    reason = tolerance.judge(what, a, b, reference, c)
    assert reason is not None


@pytest.mark.rotating
def test_largest_error_tells_what_relative_l2_lets_pass() -> None:
    what = problem(2048, 2048, 64, dtype="float16")
    a, b, reference = case(what)
    c = reference.astype(np.float16)
    assert tolerance.judge(what, a, b, reference, c) is None
    c[0, 0, int(np.argmax(np.abs(np.abs(c[0, 0]) - 3) < 1))] = 0
    assert tolerance.accuracy(what, a, b, reference, c).relative_l2 < tolerance.tolerance(what).relative_l2
    reason = tolerance.judge(what, a, b, reference, c)
    assert reason is not None
    assert reason.startswith("largest error")
    assert "|a_i| |b_j| exceeds" in reason


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [64, 1000])
def test_truncated_or_twice_rounded_16_bit_products_are_told(dtype: str, k: int) -> None:
    what = problem(60, 70, k, dtype=dtype)
    a, b, reference = case(what)
    kind = numpy_dtype(dtype)
    nearest = reference.astype(np.float32).astype(kind)
    assert tolerance.judge(what, a, b, reference, nearest) is None
    cut = np.where(
        np.abs(nearest.astype(np.float64)) > np.abs(reference), nearest.view(np.uint16) - 1, nearest.view(np.uint16)
    )
    halved = (np.matmul(*(each.astype(np.float64) for each in pair)).astype(kind) for pair in halves(what, a, b))
    for wrong in (cut.astype(np.uint16).view(kind), np.add(*halved)):
        found, allowed = tolerance.accuracy(what, a, b, reference, wrong), tolerance.tolerance(what)
        assert found.relative_l2 < allowed.relative_l2, "the two measures would have told it"
        reason = tolerance.judge(what, a, b, reference, wrong)
        assert str(reason).startswith(f"rounded into {dtype} more than once or not to nearest: ")


def test_denormal_outer_product_is_right_as_rounded_alone() -> None:
    what = problem(264, 248, 1, dtype="float16")
    a, b, _ = case(what)
    a[:, ::8] *= np.float16(2**-10)
    reference = np.matmul(a, b, dtype=np.float64)
    nearest = reference.astype(np.float16)
    assert (np.abs(reference) < np.finfo(np.float16).smallest_normal).any()
    assert tolerance.judge(what, a, b, reference, nearest) is None
    cut = np.where(
        np.abs(nearest.astype(np.float64)) > np.abs(reference), nearest.view(np.uint16) - 1, nearest.view(np.uint16)
    )
    assert tolerance.judge(what, a, b, reference, cut.astype(np.uint16).view(np.float16)) is not None


def halves(what: Problem, a: Array, b: Array) -> list[tuple[Array, Array]]:
    """Operands of the first and of the second half of k."""
    left, right = tolerance.applied(what, a, b)
    middle = what.k // 2
    return [(left[:, :, :middle], right[:, :middle]), (left[:, :, middle:], right[:, middle:])]


@pytest.mark.parametrize("dtype", HALVES)
def test_unwritten_elements_of_16_bits_are_counted(dtype: str) -> None:
    what = problem(40, 30, 20, dtype=dtype)
    a, b, reference = case(what)
    c = reference.astype(numpy_dtype(dtype))
    c.view(np.uint16)[0, 7:9, 3] = 0xFFFF
    assert tolerance.judge(what, a, b, reference, c) == "left 2 elements unwritten"


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_operands_are_of_the_problems_dtype(dtype: str) -> None:
    a, b = tolerance.operands(problem(5, 6, 7, dtype=dtype), 3)
    assert a.dtype == b.dtype == numpy_dtype(dtype)
    assert len(np.unique(a.astype(np.float64))) == a.size


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_a_swapped_transposition_is_a_relative_error_above_one(layout: str) -> None:
    what, read_as = problem(50, 50, 50, layout=layout), problem(50, 50, 50)
    a, b, reference = case(what)
    c = np.matmul(*tolerance.applied(read_as, a, b))
    reason = tolerance.judge(what, a, b, reference, c)
    assert reason is not None
    assert reason.startswith("relative L2 error 1.")


def test_float32_accuracy_is_not_enough_for_float64() -> None:
    what = problem(50, 50, 50, dtype="float64")
    a, b, reference = case(what)
    c = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)
    reason = tolerance.judge(what, a, b, reference, c)
    assert reason is not None
    assert "relative L2 error" in reason


def test_a_product_of_zeros_is_right_only_as_zeros() -> None:
    what = problem(20, 20, 20)
    zeros = np.zeros((1, 20, 20), np.float32)
    reference = np.zeros((1, 20, 20))
    assert tolerance.judge(what, zeros, zeros, reference, zeros) is None
    c = zeros.copy()
    c[0, 2, 3] = 1e-30
    assert str(tolerance.judge(what, zeros, zeros, reference, c)).startswith("relative L2 error inf exceeds ")


def test_operands_are_fresh_by_seed_and_normal() -> None:
    what = problem(300, 200, 100, batch=2, dtype="float64", layout="tn")
    a, b = tolerance.operands(what, 1)
    assert a.shape == (2, 100, 300)
    assert b.shape == (2, 100, 200)
    assert a.flags.c_contiguous
    assert abs(a.mean()) < 0.02
    assert abs(a.std() - 1) < 0.02
    assert np.array_equal(a, tolerance.operands(what, 1)[0])
    assert not np.array_equal(a, tolerance.operands(what, 2)[0])


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 2, 100_000, 1)])
def test_a_right_reference_passes_the_spot_check(dtype: str, shape: Shape) -> None:
    what = problem(*shape, dtype=dtype, layout="tt")
    a, b, reference = case(what)
    tolerance.spot_check(partial(element, reference), a, b, what, seed())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reference_of_float32_accuracy_fails_the_spot_check(dtype: str) -> None:
    what = problem(30, 40, 500, dtype=dtype)
    a, b, reference = case(what)
    rounded = reference.astype(np.float32).astype(np.float64)
    with pytest.raises(WrongResult, match="the float64 reference of 30x40x500 float"):
        tolerance.spot_check(partial(element, rounded), a, b, what, seed())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_find_the_same_errors_as_one_does(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what = problem(40, 64, 24, 2, dtype=dtype)
    a, b, exact = case(what)
    c = exact.astype(numpy_dtype(dtype))
    c[1, 39, 63] += 3
    alone = tolerance.review(what, tolerance.expect(what, a, b, exact), c)
    monkeypatch.setattr(tolerance, "_CHUNK", 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(5))
    shared = tolerance.review(what, tolerance.expect(what, a, b, exact), c)
    assert shared.accuracy.max_scaled == alone.accuracy.max_scaled
    assert shared.accuracy.relative_l2 == pytest.approx(alone.accuracy.relative_l2, rel=1e-12)
    assert shared.reason is not None
