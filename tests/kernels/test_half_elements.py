"""16-bit elements in the portable kernels: read exactly, summed as floats, rounded once and to nearest even."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from app.dtypes import numpy_dtype
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200, PROCESSOR, config, transposed
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands, queue, reference
from tests.support.pairwise import crossed

HALVES = ("float16", "bfloat16")
TILES = {"naive": (4, 16), "tiled": (8, 16, 4)}
SHAPES = ((1, 1, 1), (33, 17, 65), (1, 130, 7), (64, 64, 64), (65, 3, 4))
KINDS = pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in TILES for dtype in HALVES])
Multiply = Callable[[Problem, Array, Array], Array]


def planned(name: str, problem: Problem) -> Launch:
    return CATALOGUE[name].launch(config(name, TILES[name]), problem, PROCESSOR)


def on_pocl(name: str, like: Problem) -> Multiply:
    queue()
    first = planned(name, like)
    kernel = compiled(first.build)
    return lambda problem, a, b: multiplied(kernel, CATALOGUE[name].for_problem(first, problem), a, b)


def by_ptx(name: str, _: Problem) -> Multiply:
    pytest.importorskip("cupy")
    from tests.ptx_interpreter.launches import interpreted  # noqa: PLC0415 - it takes CuPy, which is not everywhere

    return lambda problem, a, b: interpreted(planned(name, problem), a, b, H200)[0]


RUNNERS = pytest.mark.parametrize("runner", [on_pocl, by_ptx], ids=["pocl", "ptx"])


def patterns(dtype: str, step: int) -> Array:
    """Every so manieth of all there are: numbers, denormals, zeros, infinities and NaN of both signs."""
    return np.arange(0, 2**16, step, dtype=np.uint32).astype(np.uint16).view(numpy_dtype(dtype))


def alike(c: Array, expected: Array) -> bool:
    """Whether all numbers are the same, and NaN where NaN should be."""
    with np.errstate(invalid="ignore"):  # there are signalling NaN among them
        return bool((np.isnan(c) & np.isnan(expected) | (c == expected)).all())


@pytest.mark.rotating
@crossed(name=tuple(TILES), dtype=HALVES, trans_a=(False, True), trans_b=(False, True))
def test_integers_are_exact_before_they_are_rounded_in_every_shape(
    name: str, dtype: str, *, trans_a: bool, trans_b: bool
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng, like = np.random.default_rng(seed), transposed(dtype, trans_a, trans_b, 1, 1, 1)
    multiply = on_pocl(name, like)
    for m, n, k in SHAPES:
        for batch in (1, 3):
            problem = replace(like, m=m, n=n, k=k, batch=batch)
            a, b = operands(problem, rng, integers=True)
            exact = reference(problem, a, b)
            assert np.array_equal(multiply(problem, a, b), exact.astype(numpy_dtype(dtype))), problem.key
            assert np.abs(exact).max() < 2**24


@KINDS
def test_a_transposed_ragged_batch_is_right_as_interpreted(name: str, dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    problem = Problem(9, 19, 6, 2, dtype, "strict", draw.random() < 0.5, draw.random() < 0.5)
    a, b = operands(problem, np.random.default_rng(seed), integers=True)
    exact = reference(problem, a, b).astype(numpy_dtype(dtype))
    assert np.array_equal(by_ptx(name, problem)(problem, a, b), exact)


@pytest.mark.rotating
@KINDS
def test_every_element_there_is_times_one_is_itself(name: str, dtype: str) -> None:
    everything = patterns(dtype, 1)
    problem = Problem(everything.size, 1, 1, dtype=dtype)
    c = on_pocl(name, problem)(problem, everything, np.ones(1, numpy_dtype(dtype)))
    assert alike(c.reshape(-1), everything)


@RUNNERS
@KINDS
def test_a_product_of_any_two_elements_is_rounded_once_to_nearest_even(
    name: str, dtype: str, runner: Callable[[str, Problem], Multiply]
) -> None:
    """A product of two such elements is exact as a float, but where it is out of a float's range itself."""
    step = 251 if runner is on_pocl else 2039
    a, b = patterns(dtype, step), patterns(dtype, step + 2)
    problem = Problem(a.size, b.size, 1, dtype=dtype)
    c = runner(name, problem)(problem, a, b)
    with np.errstate(all="ignore"):
        wide = np.outer(a.astype(np.float64), b.astype(np.float64))
        expected = (wide.astype(np.float32) + np.float32(0)).astype(numpy_dtype(dtype))
        assert alike(c.reshape(expected.shape), expected)
        denormals = (expected != 0) & (np.abs(expected) < (2.0**-14 if dtype == "float16" else 2.0**-126))
        assert denormals.any()
        assert (np.isinf(expected) & np.isfinite(wide)).any(), "nothing overflows into infinity"


@RUNNERS
@KINDS
def test_a_tie_goes_to_the_even_neighbour(name: str, dtype: str, runner: Callable[[str, Problem], Multiply]) -> None:
    kind = numpy_dtype(dtype)
    last = 2.0**-10 if dtype == "float16" else 2.0**-7
    halfway = [(1 + place * last, last / 2) for place in range(4)]
    a = np.array([[*pair, extra] for pair in halfway for extra in (0, last / 64, -last / 64)], np.float64)
    a = np.concatenate([a, -a])
    problem = Problem(len(a), 1, 3, dtype=dtype)
    c = runner(name, problem)(problem, a.astype(kind), np.ones(3, kind))
    tied = {0: (0, 1, 0), 1: (2, 2, 1), 2: (2, 3, 2), 3: (4, 4, 3)}
    expected = np.array([1 + up * last for place in range(4) for up in tied[place]])
    assert np.array_equal(c.reshape(-1).astype(np.float64), np.concatenate([expected, -expected]))


@KINDS
def test_what_is_added_up_is_a_float(name: str, dtype: str) -> None:
    """4096 and then ones: 16 bits would lose each of them."""
    k = 257
    a = np.ones((1, k))
    a[0, 0] = 4096
    problem = Problem(1, 1, k, dtype=dtype)
    kind = numpy_dtype(dtype)
    c = on_pocl(name, problem)(problem, a.astype(kind), np.ones(k, kind))
    assert c.reshape(-1)[0] == np.array(4096 + 256).astype(kind) > kind.type(4096)


@pytest.mark.rotating
def test_a_tf32_product_is_computed_strictly_by_what_has_no_tensor_cores() -> None:
    queue()
    rng = np.random.default_rng(1)
    for name in TILES:
        strict = Problem(33, 17, 65)
        asked = replace(strict, precision="tf32")
        a, b = operands(strict, rng)
        launches = [planned(name, one) for one in (strict, asked)]
        one, other = (multiplied(compiled(launch.build), launch, a, b) for launch in launches)
        assert np.array_equal(one, other)
        macros = [dict(launch.build.macros) for launch in launches]
        assert macros[1] == {**macros[0], "PRECISION_TF32": "1"}


def test_a_class_that_means_nothing_is_covered_by_no_kernel() -> None:
    for name, entry in CATALOGUE.items():
        for dtype, precision in (("float16", "tf32"), ("bfloat16", "emulated"), ("float64", "tf32")):
            assert not entry.covers(Problem(64, 64, 64, dtype=dtype, precision=precision), H200), name


def test_every_class_but_the_emulated_has_a_kernel_on_every_device() -> None:
    classes = [
        ("float32", "strict"),
        ("float32", "tf32"),
        ("float64", "strict"),
        *((half, "strict") for half in HALVES),
    ]
    for dtype, precision in classes:
        for device in (H200, PROCESSOR):
            found = [
                entry for entry in CATALOGUE.values() if entry.covers(Problem(7, 5, 3, 1, dtype, precision), device)
            ]
            assert {"naive", "tiled"} <= {entry.name for entry in found}
