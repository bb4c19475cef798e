"""Every kernel on the processor: every transposition, dtype and edge against a wider product."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from kernels import CATALOGUE
from kernels.launch import Build, Launch
from kernels.problem import Problem
from tests.support.kernels.devices import DTYPES, PROCESSOR, TRANSPOSITIONS, config, home, transposed
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands, queue, reference

SHAPES = ((1, 1, 1), (33, 17, 65), (1, 130, 7), (64, 64, 64), (65, 3, 4), (5, 66, 129))
TILES: dict[str, list[tuple[int, ...]]] = {
    "naive": [(8, 32), (1, 8), (32, 8), (4, 16), (1, 256), (2, 64), (16, 16), (4, 128)],
    "tiled": [(16, 16, 16), (4, 64, 8), (64, 4, 16), (8, 32, 64), (4, 4, 4), (32, 8, 4), (8, 8, 64), (64, 64, 32)],
    "register_tiled": [
        (64, 64, 8, 16, 64, 1, 0, 16, 1, 1, 1, 1),
        (32, 64, 4, 4, 16, 1, 0, 16, 2, 1, 1, 1),
        (64, 32, 8, 4, 16, 2, 0, 16, 1, 1, 1, 1),
        (32, 32, 4, 8, 32, 1, 0, 8, 2, 1, 1, 1),
        (128, 32, 8, 8, 32, 1, 0, 32, 1, 1, 1, 1),
        (32, 128, 4, 4, 16, 1, 0, 32, 2, 1, 1, 1),
        (64, 64, 4, 8, 32, 4, 0, 32, 1, 1, 1, 1),
        (128, 64, 16, 4, 16, 1, 0, 16, 2, 1, 1, 1),
    ],
    "skinny": [
        (1, 128, 1, 4, 8, 1024, 2, 1, 1),
        (16, 4, 4, 4, 16, 256, 2, 1, 1),
        (16, 64, 16, 8, 8, 256, 2, 1, 1),
        (64, 4, 8, 4, 32, 256, 2, 1, 1),
        (1, 128, 1, 8, 8, 1024, 2, 1, 1),
        (16, 4, 4, 4, 16, 1024, 2, 1, 1),
        (16, 32, 16, 8, 32, 512, 2, 1, 1),
        (32, 4, 4, 4, 16, 256, 2, 1, 1),
    ],
    "batched": [
        (16, 16, 4, 4, 16, 8, 1, 1),
        (64, 16, 4, 8, 16, 1, 1, 1),
        (16, 16, 8, 8, 8, 16, 1, 1),
        (32, 64, 4, 8, 32, 1, 1, 1),
        (64, 64, 4, 8, 32, 2, 1, 1),
        (16, 16, 4, 8, 8, 4, 1, 1),
        (64, 8, 4, 4, 32, 1, 1, 1),
        (16, 16, 2, 16, 16, 32, 1, 1),
    ],
    "tall": [
        (0, 64, 64, 4, 8, 1, 256, 64, 64, 1),
        (1, 64, 128, 8, 16, 1, 128, 64, 64, 1),
        (0, 512, 32, 4, 16, 1, 64, 64, 64, 1),
        (1, 8, 256, 4, 16, 1, 512, 64, 64, 1),
        (0, 256, 64, 8, 8, 1, 256, 64, 16, 1),
        (1, 64, 64, 8, 4, 1, 256, 64, 16, 1),
        (0, 1024, 8, 8, 4, 1, 128, 64, 32, 1),
        (1, 32, 512, 4, 16, 1, 128, 64, 16, 1),
    ],
}
# By default any two of the dtype and both transpositions meet; of what its own tests run on every shape too, one case:
# that with a config which is soon compiled.
FIRST = {"naive", "tiled"}
SOON = {"naive": 0, "tiled": 0, "register_tiled": 1, "skinny": 0, "batched": 0, "tall": 0}
CASES = [
    pytest.param(
        name,
        values,
        dtype,
        turned,
        id=f"{name}-{dtype}-{'nt'[turned[0]]}{'nt'[turned[1]]}",
        marks=[]
        if (turned[0] ^ turned[1] == d if name in FIRST else (d, t) == (0, SOON[name]))
        else [pytest.mark.slow],
    )
    for name in TILES
    for d, dtype in enumerate(DTYPES)
    for t, turned in enumerate(TRANSPOSITIONS)
    for values in [TILES[name][4 * d + t]]
]
PRECISION = {"float32": 1e-6, "float64": 2e-15}


def at_home(name: str, values: tuple[int, ...], like: Problem) -> Launch:
    """The launch of a config on a problem that its kernel is for."""
    tile = config(name, values)
    problem = home(name, tile, like, PROCESSOR)
    assert problem is not None
    return CATALOGUE[name].launch(tile, problem, PROCESSOR)


def test_every_kernel_that_opencl_can_have_is_tried() -> None:
    assert list(TILES) == [name for name, kernel in CATALOGUE.items() if "opencl" in kernel.platforms]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("name", "values", "dtype", "turned"), CASES)
def test_a_kernel_multiplies_every_shape_and_passes_nan_and_infinity_on(
    name: str, values: tuple[int, ...], dtype: str, turned: tuple[bool, bool]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    entry, base = CATALOGUE[name], transposed(dtype, *turned, 1, 1, 1)
    first = at_home(name, values, base)
    kernel = compiled(first.build)

    def product(problem: Problem, a: Array, b: Array) -> Array:
        return multiplied(kernel, entry.for_problem(first, problem), a, b)

    for m, n, k in SHAPES:
        for batch in (1, 3):
            problem = replace(base, m=m, n=n, k=k, batch=batch)
            a, b = operands(problem, rng)
            exact = reference(problem, a, b)
            error = np.linalg.norm((product(problem, a, b) - exact).ravel()) / np.linalg.norm(exact.ravel())
            assert error < PRECISION[dtype], (problem, error)
    problem = replace(base, m=33, n=17, k=65, batch=3)
    a, b = operands(problem, rng, integers=True)
    assert (product(problem, a, b) == reference(problem, a, b)).all(), "small integers are not exact"
    not_finite_goes_on(problem, product, rng)


def not_finite_goes_on(
    problem: Problem, product: Callable[[Problem, Array, Array], Array], rng: np.random.Generator
) -> None:
    a, b = operands(problem, rng)
    left = a.swapaxes(1, 2) if problem.trans_a else a
    left[1, 32, 64] = np.nan
    c = product(problem, a, b)
    assert np.isnan(c[1, 32]).all()
    assert np.isfinite(np.delete(c.reshape(-1, problem.n), problem.m + 32, axis=0)).all(), "NaN went astray"
    endless = product(problem, np.ones_like(a), np.full_like(b, np.inf))
    assert (endless == np.inf).all(), "the padding made NaN of infinity"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_any_legal_config_of_thread_tiles_is_right_around_its_own_edges(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng, draw = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - configs, not secrets
    queue()
    entry = CATALOGUE["register_tiled"]
    base = transposed(dtype, *draw.choice(TRANSPOSITIONS), 1, 1, 1)
    for tile in draw.sample(entry.space.legal(base, PROCESSOR), 1):
        first = entry.launch(tile, base, PROCESSOR)
        kernel = compiled(first.build)
        bm, bn, bk = tile["BM"], tile["BN"], tile["BK"]
        # Ragged past each edge and short of it; then with rows of whole 16 bytes, in tiles that are whole and not.
        for m, n, k in (
            (bm + 1, 2 * bn - 1, bk + 1),
            (bm - 1, bn + 3, 3 * bk - 1),
            (bm, bn, bk),
            (bm + 4, bn - 4, 2 * bk + 4),
        ):
            problem = replace(base, m=m, n=n, k=k, batch=draw.choice((1, 2)))
            a, b = operands(problem, rng, integers=True)
            c = multiplied(kernel, entry.for_problem(first, problem), a, b)
            assert (c == reference(problem, a, b)).all(), (tile, problem.key)


@pytest.mark.rotating
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_products_are_added_with_one_rounding(name: str, dtype: str) -> None:
    queue()
    # The build of a case above: PoCL has compiled it already.
    entry, values, turned = CATALOGUE[name], TILES[name][SOON[name]], TRANSPOSITIONS[SOON[name]]
    problem = transposed(dtype, *turned, 1, 1, 2)
    kind = np.dtype(dtype).type
    factor = kind(1) + np.finfo(kind).eps
    rounded = kind(factor * factor)
    residue = Fraction(float(factor)) ** 2 - Fraction(float(rounded))
    a, b = np.array([1, factor], kind), np.array([-rounded, factor], kind)
    launch = entry.for_problem(at_home(name, values, problem), problem)
    assert residue != 0
    assert multiplied(compiled(launch.build), launch, a, b)[0, 0, 0] == float(residue)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", TILES)
def test_opencl_refuses_a_text_with_a_parameter_missing(name: str) -> None:
    queue()
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    for missing, build in builds_with_one_missing(name):
        with pytest.raises(cl.RuntimeError, match=f"{missing}.* must be defined"):
            compiled(build)


def builds_with_one_missing(name: str) -> list[tuple[str, Build]]:
    build = at_home(name, TILES[name][0], Problem(1, 1, 1)).build
    return [
        (macro, replace(build, macros=tuple(pair for pair in build.macros if pair[0] != macro)))
        for macro, _ in build.macros
    ]
