"""Emulated products are held to the error of sequential FMAs, and each element of hostile ones to its bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.dtypes import Array
from app.tuning.verify import adversarial
from app.tuning.verify.adversarial import Case
from app.tuning.verify.emulation import HOSTILE, excess, sequential
from app.tuning.verify.tolerance import applied, judge, operands
from kernels.problem import Problem

PROBLEM = Problem(40, 30, 600, precision="emulated", trans_b=True)


def sums(left: Array, right: Array) -> Array:
    """Float32 products and sums, one after the other, each rounded."""
    c = np.zeros((*left.shape[:2], right.shape[2]), np.float32)
    for p in range(left.shape[2]):
        c += left[:, :, p, None] * right[:, p, None]
    return c


def exact(left: Array, right: Array) -> Array:
    return np.asarray(left.astype(np.float64) @ right.astype(np.float64))


@pytest.mark.parametrize("k", [256, 1000, 4096])
def test_sequential_fmas_err_as_roundings_of_growing_sums_do(k: int) -> None:
    problem = Problem(70, 90, k, 2)
    left, right = applied(problem, *operands(problem, k))
    found = sequential(left, right)
    assert 0.28 <= found * 2**24 / np.sqrt(k) <= 0.33


def test_a_product_with_a_little_more_error_than_sequential_fmas_is_wrong() -> None:
    a, b = operands(PROBLEM, 3)
    left, right = applied(PROBLEM, a, b)
    reference = exact(left, right)
    right_sums = sums(left, right)
    assert judge(PROBLEM, a, b, reference, right_sums) is None
    assert judge(PROBLEM, a, b, reference, reference.astype(np.float32)) is None
    noise = np.random.default_rng(4).standard_normal(reference.shape) * 1.4 * (right_sums - reference).std()
    worse = (reference + noise).astype(np.float32)
    reason = judge(PROBLEM, a, b, reference, worse)
    assert reason is not None
    assert reason.startswith("relative L2 error")
    assert judge(replace(PROBLEM, precision="strict"), a, b, reference, worse) is None


def test_a_product_of_a_single_element_is_not_refused_for_bad_luck() -> None:
    problem = Problem(1, 1, 256, precision="emulated")
    for seed in range(50):
        a, b = operands(problem, seed)
        left, right = applied(problem, a, b)
        assert judge(problem, a, b, exact(left, right), sums(left, right)) is None


@pytest.mark.parametrize("kind", HOSTILE)
def test_strict_hostile_sums_are_right_and_truncated_ones_not(kind: str) -> None:
    case = Case(kind, PROBLEM)  # type: ignore[arg-type]
    a, b = adversarial.draw(case, 5)
    left, right = applied(PROBLEM, a, b)
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    reference = exact(left, right)
    assert np.isfinite(reference.astype(np.float32)).all()
    assert adversarial.judge(case, a, b, reference, sums(left, right)) is None
    off = reference.astype(np.float32)
    off[0, 3, 4] += 601 * 2.0**-23 * (np.abs(left[0, 3]).astype(np.float64) @ np.abs(right[0, :, 4]).astype(np.float64))
    assert str(adversarial.judge(case, a, b, reference, off)).startswith(
        "1 of 1200 elements are off by more than k 2^-23"
    )


def test_the_hostile_operands_are_what_they_are_called() -> None:
    drawn = {kind: applied(PROBLEM, *adversarial.draw(Case(kind, PROBLEM), 5)) for kind in HOSTILE}
    left, right = drawn["cancellation"]
    assert np.median(np.abs(exact(left, right))) < 1e-3
    assert (np.abs(drawn["denormals"][0]) < 2.0**-126).mean() > 0.9
    largest = [float(np.abs(each).max()) for each in drawn["near overflow"]]
    assert 2.0**118 < largest[0] * largest[1] * PROBLEM.k < 2.0**128
    exponents = np.frexp(drawn["wide exponents"][0])[1]
    assert exponents.max() - exponents.min() > 28


def test_nan_in_a_product_of_hostile_operands_is_off() -> None:
    left, right = applied(PROBLEM, *operands(PROBLEM, 1))
    c = exact(left, right)
    assert excess(left, right, c, c) is None
    c[0, 0, 0] = np.nan
    assert str(excess(left, right, exact(left, right), c)).startswith("1 of 1200")


def test_only_what_is_hostile_may_be_declined() -> None:
    may = {kind for kind in (*HOSTILE, "NaN and infinities") if adversarial.declined(Case(kind, PROBLEM), 4) is None}
    assert may == {*HOSTILE, "NaN and infinities"}
    for kind in ("numbers", "zeros", "integers"):
        assert "too small" in str(adversarial.declined(Case(kind, PROBLEM), 4))
