"""Hostile operands: what they must come to is computed apart, and every way to be wrong on them is told."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from app.dtypes import Array, numpy_dtype
from app.services.exports.architectures import device_of
from app.tuning.verify import adversarial
from app.tuning.verify.adversarial import Case, Kind
from app.tuning.verify.tolerance import applied
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config
from tests.support.tuning.host_device import DEVICE

SMALL = Config.of({"BM": 16, "BN": 8, "BK": 4})
LARGE = Config.of({"BM": 128, "BN": 192, "BK": 16, "SPLIT_K": 4, "STAGES": 3})
SHAPES = [
    Problem(33, 17, 9, trans_a=True),
    Problem(5, 6, 7, batch=3, trans_b=True),
    Problem(1, 1, 1),
    Problem(40, 1, 3),
    Problem(64, 64, 64, dtype="float64"),
    Problem(33, 17, 200, dtype="float16", trans_b=True),
    Problem(5, 6, 70, batch=3, dtype="bfloat16", trans_a=True),
]


def plain(problem: Problem, a: Array, b: Array) -> Array:
    """NumPy's loop-free product in the accumulator's dtype, term by term: IEEE arithmetic for every element."""
    kind = numpy_dtype("float64" if problem.dtype == "float64" else "float32")
    left, right = (operand.astype(kind) for operand in applied(problem, a, b))
    c = np.zeros((problem.batch, problem.m, problem.n), kind)
    with np.errstate(invalid="ignore"):
        for term in range(problem.k):
            c += left[:, :, term, None] * right[:, None, term, :]
        return c.astype(numpy_dtype(problem.dtype))


def reference(problem: Problem, a: Array, b: Array) -> Array:
    left, right = applied(problem, adversarial.finite(a), adversarial.finite(b))
    return np.asarray(np.matmul(left, right, dtype=np.float64))


def judged(case: Case, c: Array | None = None, seed: int = 5) -> str | None:
    a, b = adversarial.draw(case, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plain(case.problem, a, b) if c is None else c
        return adversarial.judge(case, a, b, reference(case.problem, a, b), found)


@pytest.mark.parametrize("problem", SHAPES)
@pytest.mark.parametrize("kind", ["numbers", "zeros", "integers", "NaN and infinities"])
def test_a_right_product_passes_every_case(problem: Problem, kind: Kind) -> None:
    for seed in range(4):
        assert judged(Case(kind, problem), seed=seed) is None


def test_the_shape_and_its_neighbours_are_all_there_and_ragged() -> None:
    problem = Problem(64, 48, 80, batch=2, trans_b=True)
    found = list(adversarial.cases(SMALL, problem, DEVICE))
    plains = [(one.problem.m, one.problem.n, one.problem.k) for one in found if one.kind == "numbers"]
    around = [(63, 48, 80), (65, 48, 80), (64, 47, 80), (64, 49, 80), (64, 48, 79), (64, 48, 81), (65, 47, 83)]
    assert plains == around
    for kind in ("zeros", "integers", "NaN and infinities"):
        shapes = [one.problem for one in found if one.kind == kind]
        assert shapes == [problem, replace(problem, m=65, n=47, k=83)]
    assert all(one.problem.family == problem.family and one.problem.batch == 2 for one in found)


def test_neighbours_of_illegal_configs_are_as_whole_as_the_shape() -> None:
    def around(problem: Problem) -> list[tuple[int, int, int]]:
        found = adversarial.cases(SMALL, problem, DEVICE, lambda one: one == problem)
        return [(one.problem.m, one.problem.n, one.problem.k) for one in found if one.kind == "numbers"]

    whole = [(60, 48, 80), (68, 48, 80), (64, 44, 80), (64, 52, 80), (64, 48, 76), (64, 48, 84), (68, 44, 84)]
    assert around(Problem(64, 48, 80)) == whole
    assert around(Problem(8, 5, 6, dtype="float64"))[2:4] == [(8, 3, 6), (8, 7, 6)]
    assert around(Problem(9, 5, 6))[2:6] == [(9, 3, 6), (9, 6, 6), (9, 5, 5), (9, 5, 7)]
    large = Problem(8192, 8192, 8192)
    for case in adversarial.cases(LARGE, large, DEVICE, lambda one: one == large):
        assert all(size % 4 == 0 for size in (case.problem.m, case.problem.n, case.problem.k))
        assert case.problem.flops < large.flops


def is_legal(kernel: Kernel, config: Config, problem: Problem) -> bool:
    return kernel.space.refusal(config, problem, device_of("sm_90")) is None


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("name", "dtype", "precision"),
    [
        ("direct_tensor", "float16", "strict"),
        ("rank_k", "float32", "tf32"),
        ("rank_k", "bfloat16", "strict"),
        ("outer", "float16", "strict"),
    ],
)
@pytest.mark.parametrize("sizes", [(4096, 4096), (699, 1657), (300, 400), (6, 10)])
def test_what_has_all_of_k_in_a_tile_is_never_asked_for_more(
    name: str, dtype: str, precision: str, sizes: tuple[int, int]
) -> None:
    """33 of k would be 40 with rows of whole 16 bytes, of which a tile of 32 leaves a part out."""
    kernel, gpu = CATALOGUE[name], device_of("sm_90")
    for k in range(1, 129):
        problem = Problem(*sizes, k, dtype=dtype, precision=precision)
        config = kernel.default(problem, gpu)
        if not kernel.covers(problem, gpu) or kernel.space.refusal(config, problem, gpu):
            continue
        legal, computes = partial(is_legal, kernel, config), partial(kernel.computes, config)
        found = [case.problem for case in adversarial.cases(config, problem, gpu, legal, computes)]
        asked = {one.k for one in found}
        assert kernel.most_k is not None
        assert max(asked) <= kernel.most_k(config, problem)
        assert k in asked
        assert k == 1 or len(asked) > 1


@pytest.mark.parametrize("problem", [Problem(1, 1, 1), Problem(1, 4096, 4096), Problem(7, 1, 2)])
def test_no_size_falls_below_one(problem: Problem) -> None:
    assert all(
        min(one.problem.m, one.problem.n, one.problem.k) >= 1 for one in adversarial.cases(SMALL, problem, DEVICE)
    )


@pytest.mark.parametrize("config", [SMALL, LARGE])
@pytest.mark.parametrize(
    "problem", [Problem(8192, 8192, 8192), Problem(1, 2**20, 2**14), Problem(64, 64, 2**20), Problem(2**21, 8, 8, 64)]
)
def test_neighbours_of_large_shapes_are_cheap_and_as_ragged(
    config: Config, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = config["BK"] * config.get("SPLIT_K", 1)
    tiles = {"m": (config["BM"], 3), "n": (config["BN"], 3), "k": (depth, max(3, config.get("STAGES", 1) + 2))}
    cut = [case.problem for case in adversarial.cases(config, problem, DEVICE)]
    monkeypatch.setattr(adversarial, "_is_cheap", lambda *_: True)
    whole = [case.problem for case in adversarial.cases(config, problem, DEVICE)]
    assert cut != whole
    for small, large in zip(cut, whole, strict=True):
        assert small.bytes // small.itemsize <= 2**20
        assert small.flops < 1e9
        for name, (tile, count) in tiles.items():
            size, own = getattr(small, name), getattr(large, name)
            assert min(own, count * tile) <= size <= own
            assert (own - size) % math.lcm(tile, 128 if name == "k" else 16) == 0


def test_integers_are_whole_and_every_sum_of_them_is_exact() -> None:
    for problem in (
        Problem(9, 9, 50),
        Problem(3, 3, 2**20),
        Problem(4, 4, 64, dtype="float16"),
        Problem(8, 8, 999, dtype="bfloat16"),
    ):
        a, b = adversarial.draw(Case("integers", problem), 1)
        assert (a == np.rint(a)).all()
        largest = float(np.abs(a).max()) * float(np.abs(b).max()) * problem.k
        assert largest <= 2**24
        assert a.any()


def test_an_inexact_integer_is_told() -> None:
    case = Case("integers", Problem(20, 30, 40))
    c = plain(case.problem, *adversarial.draw(case, 5))
    c[0, 3, 4] = np.nextafter(c[0, 3, 4], np.float32(1e9))
    assert judged(case, c) == "1 of 600 elements are not exact"
    c.view(np.uint32)[0, 3, 4] = 0xFFFFFFFF
    assert judged(case, c) == "left 1 element unwritten"


def test_an_integer_of_16_bits_that_went_to_the_wrong_neighbour_is_told() -> None:
    case = Case("integers", Problem(20, 30, 4000, dtype="bfloat16"))
    c = plain(case.problem, *adversarial.draw(case, 5))
    assert (np.abs(c) > 256).any(), "every sum is a bfloat16 itself"
    assert judged(case, c) is None
    c.view(np.uint16)[0, 3, 4] += 1
    assert judged(case, c) == "1 of 600 elements are not exact"


def test_a_product_of_zeros_that_is_not_zero_is_told() -> None:
    case = Case("zeros", Problem(20, 30, 40))
    c = np.zeros((1, 20, 30), np.float32)
    c[0, 0, 0] = -0.0
    assert judged(case, c) is None
    c[0, 19, 29] = 1e-40
    assert judged(case, c) == "1 of 600 elements are not exact"


@pytest.mark.parametrize("seed", range(3))
def test_a_nan_or_infinity_lost_gained_or_changed_is_told(seed: int) -> None:
    case = Case("NaN and infinities", Problem(20, 30, 40))
    right = plain(case.problem, *adversarial.draw(case, seed))
    assert judged(case, right, seed) is None
    places = [(np.isnan(right), 1.0), (np.isposinf(right), -np.inf), (np.isinf(right), np.nan)]
    places.append((np.cumsum(np.isfinite(right)).reshape(right.shape) == 1, np.inf))
    for place, value in places:
        wrong = right.copy()
        wrong[place] = value
        reason = judged(case, wrong, seed)
        assert reason is not None
        assert "elements that should be finite are not" in reason
    wrong = right.copy()
    wrong[np.isfinite(wrong)] *= np.float32(1.001)
    reason = judged(case, wrong, seed)
    assert reason is not None
    assert reason.startswith("relative L2 error")


def test_a_zero_beside_an_infinity_is_a_nan() -> None:
    problem = Problem(2, 2, 2)
    a = np.array([[[1.0, 0.0], [2.0, 3.0]]], np.float32)
    b = np.array([[[1.0, 1.0], [np.inf, 4.0]]], np.float32)
    expected = adversarial.nonfinite_product(problem, a, b, reference(problem, a, b))
    assert np.isnan(expected[0, 0, 0])
    assert np.isposinf(expected[0, 1, 0])
    assert np.array_equal(expected[0, :, 1], [1.0, 14.0])


def test_only_the_last_batch_is_spoiled() -> None:
    problem = Problem(5, 6, 7, batch=4)
    a, b = adversarial.draw(Case("NaN and infinities", problem), 3)
    assert np.isfinite(a[:-1]).all()
    assert np.isfinite(b[:-1]).all()
    assert {np.isnan(a).sum(), np.isinf(a).sum(), np.isnan(b).sum(), np.isinf(b).sum()} == {1}
