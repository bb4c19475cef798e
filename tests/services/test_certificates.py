"""Freivalds' check: right products of every class pass, what is wrong by more than the class errs is found."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from app.dtypes import Array, numpy_dtype
from app.errors import Cancelled, CertificateFailed
from app.services.matmul.certificates import certificate as comparison
from app.services.matmul.certificates.certificate import Certificate, Certifier, ClassBound
from app.services.matmul.certificates.freivalds import ROUNDS, StreamedSketch
from app.tuning.verify.tolerance import applied, operands
from kernels.problem import CLASSES, Problem

CLASS = [(dtype, precision) for dtype, precisions in CLASSES.items() for precision in precisions]
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
BITS = 250  # above the bound, of each of four classes
T = 10.5  # standard deviations that a certificate allows, roughly


def made(problem: Problem, a: Array, b: Array) -> Array:
    """C as the class computes it: summed in the accumulator's type, of operands that TF32 cuts, rounded once."""
    left, right = applied(problem, a, b)
    kind = np.float64 if problem.dtype == "float64" else np.float32
    left, right = left.astype(kind), right.astype(kind)
    if problem.precision == "tf32":
        left, right = (
            (each.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for each in (left.copy(), right.copy())
        )
    with np.errstate(all="ignore"):
        return np.ascontiguousarray((left @ right).astype(numpy_dtype(problem.dtype)))


def certificate(problem: Problem, a: Array, b: Array, c: Array, rounds: int = ROUNDS) -> Certificate:
    with closing(Certifier(problem, a, b, c, rounds=rounds)) as certifier:
        return certifier.certificate(problem.precision)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("dtype", "precision"), CLASS)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [(70, 530, 41, 1), (1, 3, 1030, 1), (33, 20, 17, 40), (600, 1, 9, 2), (3000, 90, 7, 1), (1100, 5, 300, 3)],
)
def test_right_products_of_every_class_pass(dtype: str, precision: str, m: int, n: int, k: int, batch: int) -> None:
    for trans_a, trans_b in product([False, True], repeat=2):
        problem = Problem(m, n, k, batch, dtype, precision, trans_a, trans_b)
        a, b = operands(problem, seed=m)
        found = certificate(problem, a, b, made(problem, a, b))
        assert found.residual <= found.bound
        assert (found.rounds, found.missed, found.unchecked) == (ROUNDS, 2.0**-ROUNDS, 0)


HARD: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
    "integers": lambda rng, shape: rng.integers(-8, 9, shape),
    "positive": lambda rng, shape: rng.uniform(1, 2, shape),
    "exponents apart": lambda rng, shape: np.ldexp(rng.standard_normal(shape), rng.integers(-12, 13, shape)),
    "rows apart": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, (shape[0], 1)),
    "small": lambda rng, shape: rng.standard_normal(shape) * 2.0**-75,
    "one row alone": lambda rng, shape: rng.standard_normal(shape) * (np.arange(shape[0]) == 3)[:, None],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kind", HARD)
def test_operands_that_are_hard_to_sum_pass(kind: str, dtype: str) -> None:
    rng, problem = np.random.default_rng(5), Problem(40, 60, 700, dtype=dtype)
    a, b = (HARD[kind](rng, shape).astype(numpy_dtype(dtype)) for shape in (problem.a_shape, problem.b_shape))
    assert certificate(problem, a, b, made(problem, a, b)).unchecked == 0


def flipped(rng: np.random.Generator, c: Array) -> Iterator[tuple[Array, int, int, float]]:
    """C with one bit of one element flipped, where that is, and by how much it is off."""
    while True:
        wrong, bits = c.copy(), 8 * c.itemsize
        at = int(rng.integers(c.size))
        bit = int(rng.integers(bits))
        whole = wrong.reshape(-1).view(UNSIGNED[c.itemsize])
        whole[at] ^= whole.dtype.type(1 << bit)
        with np.errstate(all="ignore"):
            effect = float(np.abs(wrong.reshape(-1)[at].astype(np.float64) - c.reshape(-1)[at].astype(np.float64)))
        yield wrong, *divmod(at, c.shape[-1]), effect


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("dtype", "precision"), [("float32", "strict"), ("float32", "tf32"), ("float64", "strict"), ("bfloat16", "strict")]
)
def test_every_single_bit_that_is_off_by_more_than_the_class_errs_is_found(dtype: str, precision: str) -> None:
    problem = Problem(48, 52, 300, dtype=dtype, precision=precision)
    a, b = operands(problem, seed=3)
    c = made(problem, a, b).reshape(problem.m, problem.n)
    allowed, (left, right) = ClassBound.of(problem, precision), applied(problem, a, b)
    rows, columns = (np.linalg.norm(x[0].astype(np.float64), axis=axis) for x, axis in ((left, 1), (right, 0)))
    above, below, whole = 0, 0, c.astype(np.float64)
    for wrong, i, j, effect in flipped(np.random.default_rng(7), c):
        bound = of_element = allowed.gamma * rows[i] * columns[j] + allowed.least
        if allowed.rounding:  # no column stands out whose error is one of rounding: its bound is that of all of it
            bound = T * (
                allowed.gamma * np.linalg.norm(rows) * columns[j] + allowed.rounding * np.linalg.norm(whole[:, j])
            )
        if not effect <= 2 * bound:  # C itself may be off by one bound
            above += 1
            with pytest.raises(CertificateFailed):
                certificate(problem, a, b, wrong)
        elif effect < of_element / 2:
            below += 1
            found = certificate(problem, a, b, wrong)
            assert found.residual < found.bound, "an error that its class may make is no fault"
            assert effect < found.bound
        if above == BITS:
            break
    assert below


def test_a_lost_block_two_swapped_rows_and_two_errors_that_cancel_are_found() -> None:
    problem = Problem(64, 96, 80, batch=3)
    a, b = operands(problem, seed=1)
    c = made(problem, a, b)
    lost, swapped, cancelling = c.copy(), c.copy(), c.copy()
    lost[1, 16:32, 16:32] = 0
    swapped[2, [4, 5]] = swapped[2, [5, 4]]
    cancelling[0, [1, 2], 7] += np.array([50, -50], np.float32)  # as many vectors show it as do not
    for wrong in (lost, swapped, cancelling):
        with pytest.raises(CertificateFailed):
            certificate(problem, a, b, wrong)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nan_infinities_and_overflow_are_told_and_have_to_be_where_they_belong(dtype: str) -> None:
    problem = Problem(30, 40, 50, dtype=dtype)
    a, b = (each[0] for each in operands(problem, seed=2))
    a[3, 4], b[5, 6], b[5, 9] = np.nan, np.inf, np.nan
    a[7], b[:, 8] = 1, 0
    a[9], b[:, 11] = np.finfo(np.float16).max if dtype == "float16" else 3e38, 8
    c = made(problem, a, b).reshape(30, 40)
    assert certificate(problem, a, b, c).unchecked >= 2 * 40 + 28 * 2
    for at, value in (((3, 0), 1.0), ((0, 6), 2.0), ((10, 10), np.nan), ((12, 0), np.inf), ((20, 20), 1e3)):
        wrong = c.copy()
        wrong[at] = value
        with pytest.raises(CertificateFailed):
            certificate(problem, a, b, wrong)


@pytest.mark.parametrize("trans_a", [False, True])
def test_an_error_in_a_row_of_little_is_found_beside_rows_of_much(trans_a: bool) -> None:
    problem = Problem(600, 50, 300, trans_a=trans_a)
    a, b = (each[0] for each in operands(problem, seed=6))
    rows = a.T if trans_a else a
    rows[5], rows[400:500] = rows[5] * 1e30, rows[400:500] * 1e-12
    c = made(problem, a, b).reshape(600, 50)
    assert certificate(problem, a, b, c).unchecked == 0
    for row, error in ((450, 1e-13), (450, -3e-13), (550, 0.1), (5, 1e29)):
        wrong = c.copy()
        wrong[row, 7] += np.float32(error * 300)
        with pytest.raises(CertificateFailed) as failure:
            certificate(problem, a, b, wrong)
        assert (failure.value.facts["row"], failure.value.facts["column"]) == (row, 7)


@pytest.mark.parametrize("overflowing", ["row", "column"])
def test_a_row_or_column_that_overflows_leaves_the_others_spoken_of(overflowing: str) -> None:
    problem = Problem(60, 70, 80)
    a, b = (each[0] for each in operands(problem, seed=9))
    (a[9] if overflowing == "row" else b[:, 9])[...] = 3e38
    c = made(problem, a, b).reshape(60, 70)
    assert certificate(problem, a, b, c).unchecked == (70 if overflowing == "row" else 60)
    c[20, 20] += 1
    with pytest.raises(CertificateFailed):
        certificate(problem, a, b, c)


def test_no_second_copy_of_an_operand_is_made() -> None:
    problem = Problem(3000, 3000, 3000, dtype="float32")
    a, b, c = (np.zeros((3000, 3000), np.float32) for _ in range(3))
    tracemalloc.start()
    try:
        certificate(problem, a, b, c)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < problem.c_bytes, f"{peak} bytes beside operands of {problem.c_bytes}"


def test_operands_are_not_read_any_more_once_it_is_closed() -> None:
    problem, a = Problem(3000, 3000, 3000), np.ones((3000, 3000), np.float32)
    running = Certifier(problem, a, a, a)
    running.operands_are_there()
    running.close()
    with pytest.raises(Cancelled):
        running.certificate("strict")


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_are_read_as_they_arrive_in_whatever_order_they_lie(dtype: str) -> None:
    rng = np.random.default_rng(4)
    for trans_a, trans_b in product([False, True], repeat=2):
        problem = Problem(700, 900, 800, batch=2, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
        whole = operands(problem, seed=1)
        there = [*whole, made(problem, *whole).reshape(2, 700, 900)]
        arriving = [np.full_like(each, np.nan) for each in there]  # what is read too early spoils it
        with closing(Certifier(problem, *arriving)) as certifier:
            for name, source, place in zip("abc", there, arriving, strict=True):
                bytes_from, bytes_to = (x.reshape(-1).view(np.uint8) for x in (source, place))
                at = 0
                while at < source.nbytes:
                    end = min(source.nbytes, at + int(rng.integers(1, 2**20)))
                    bytes_to[at:end] = bytes_from[at:end]
                    certifier.advance(name, at := end)
            found = certifier.certificate("strict")
        assert found.unchecked == 0
        assert 0 < found.residual < found.bound


def test_each_matrix_is_read_once_and_before_the_next_is_there() -> None:
    problem = Problem(700, 600, 1100)
    a, b = (each[0] for each in operands(problem, seed=8))
    c = made(problem, a, b).reshape(700, 600)
    streamed = StreamedSketch(problem, a, b, c, norms=False)
    whole = streamed.vectors @ (a.astype(np.float64) @ b), streamed.vectors @ c.astype(np.float64)
    for name, matrix in (("a", a), ("b", b), ("c", c)):
        streamed.read(name)
        matrix[...] = np.nan
    found = streamed.result()
    product, result = whole
    assert np.allclose(found.largest[0], np.abs(result - product).max(0), rtol=0, atol=1e-8)
    assert found.largest.max() > 1e-5


def test_the_chance_of_a_miss_is_that_of_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two errors that cancel in half of all vectors are missed by one vector as often as not: the chance is no less."""
    problem = Problem(2, 8, 4)
    a, b = np.zeros((2, 4), np.float32), np.ones((4, 8), np.float32)
    c = np.zeros((2, 8), np.float32)
    c[[0, 1], 5] = 1, -1
    monkeypatch.setattr(comparison, "_OUTLIER", float("inf"))  # a column that stands out would be made again
    missed = 0
    for _ in range(400):
        try:
            certificate(problem, a, b, c, rounds=1)
            missed += 1
        except CertificateFailed:
            pass
    assert 140 < missed < 260


def test_a_class_allows_what_its_arithmetic_loses() -> None:
    problem = Problem(8, 8, 1024)
    strict, double = ClassBound.of(problem, "strict"), ClassBound.of(replace(problem, dtype="float64"), "strict")
    half, tf32 = ClassBound.of(replace(problem, dtype="float16"), "strict"), ClassBound.of(problem, "tf32")
    assert strict.gamma == pytest.approx(1024 * 2**-24, rel=1e-3)
    assert double.gamma == pytest.approx(1024 * 2**-53, rel=1e-3)
    assert half.gamma == pytest.approx(1024 * 2**-23, rel=1e-3)
    assert half.rounding == 2**-11
    assert tf32.gamma > 2**-9
