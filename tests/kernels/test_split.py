"""k shared out among blocks and teams, and operands copied before: right whatever the shape."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels import CATALOGUE
from kernels.launch import COUNTERS, Build, Launch, dtype_macros
from kernels.problem import Problem
from kernels.register_tiled.plan import plan
from kernels.space import Config
from kernels.split_k import accumulation, fan
from tests.support.kernels.devices import DTYPES, H200, TRANSPOSITIONS, config, transposed
from tests.support.kernels.pocl_runner import compiled, multiplied, operands, queue, reference

ENTRY = CATALOGUE["register_tiled"]
PRECISION = {"float32": 1e-6, "float64": 2e-15}
# BM, BN, TM, TN, WN, SLICE_K, PACK_MN, BK, STAGES, MIN_BLOCKS, SPLIT_K, GROUP_M
SPLIT = (32, 32, 4, 4, 16, 1, 0, 16, 1, 1, 11, 1)
TEAMS = (32, 64, 4, 8, 32, 4, 0, 32, 2, 1, 3, 1)
COPIED = (64, 32, 4, 4, 16, 2, 1, 32, 1, 1, 4, 8)
CASES = [
    pytest.param(
        values,
        dtype,
        turned,
        id=f"{name}-{dtype}-{'nt'[turned[0]]}{'nt'[turned[1]]}",
        marks=[] if number == place else [pytest.mark.slow],
    )
    for place, (name, values) in enumerate({"split": SPLIT, "teams": TEAMS, "copied": COPIED}.items())
    for number, turned in enumerate(TRANSPOSITIONS)
    for dtype in [DTYPES[(place + number) % 2]]
]


def planned(tile: Config, problem: Problem) -> Launch:
    """A launch of a config that the rules of speed may refuse: what the kernel has to do right in any case."""
    macros = [(name, str(value)) for name, value in tile.items() if name not in ENTRY.arguments]
    build = Build(ENTRY.name, ENTRY.text, "matmul", (*macros, *dtype_macros(problem)), dynamic_smem=True)
    return ENTRY.for_problem(Launch(ENTRY.name, tile, problem, build, 0, (0, 0), 0), problem)


@pytest.mark.rotating
@pytest.mark.parametrize(("values", "dtype", "turned"), CASES)
def test_sums_of_slices_teams_and_copies_are_the_product(
    values: tuple[int, ...], dtype: str, turned: tuple[bool, bool]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    tile, base = config("register_tiled", values), transposed(dtype, *turned, 1, 1, 1)
    kernel = compiled(planned(tile, base).build)
    for m, n, k, batch in ((1, 1, 1, 1), (33, 17, 65, 3), (64, 64, 512, 1), (70, 5, 301, 2), (130, 68, 129, 1)):
        problem = replace(base, m=m, n=n, k=k, batch=batch)
        launch = planned(tile, problem)
        a, b = operands(problem, rng)
        exact = reference(problem, a, b)
        error = np.linalg.norm((multiplied(kernel, launch, a, b) - exact).ravel()) / np.linalg.norm(exact.ravel())
        assert error < PRECISION[dtype], (problem, error)
        a, b = operands(problem, rng, integers=True)
        assert (multiplied(kernel, launch, a, b) == reference(problem, a, b)).all(), "small integers are not exact"
    problem = replace(base, m=33, n=17, k=200)
    launch = planned(tile, problem)
    a, b = operands(problem, rng)
    left = a.swapaxes(1, 2) if problem.trans_a else a
    left[0, 32, 150] = np.nan
    c = multiplied(kernel, launch, a, b)
    assert np.isnan(c[0, 32]).all()
    assert np.isfinite(c[0, :32]).all(), "NaN went astray"
    endless = multiplied(kernel, launch, np.ones_like(a), np.full_like(b, np.inf))
    assert (endless == np.inf).all(), "what fills a tile up made NaN of infinity"


def test_slices_are_added_up_in_the_same_order_every_time() -> None:
    queue()
    problem = Problem(64, 64, 2048)
    launch = planned(config("register_tiled", SPLIT), problem)
    kernel = compiled(launch.build)
    a, b = operands(problem, np.random.default_rng(1))
    first = multiplied(kernel, launch, a, b)
    assert all((multiplied(kernel, launch, a, b) == first).all() for _ in range(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_slice_has_a_phase_and_together_they_have_all(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - shapes, not secrets
    splits = ENTRY.space.parameters["SPLIT_K"]
    for _ in range(500):
        tile = config("register_tiled", (*SPLIT[:-2], rng.choice(splits), 1))
        problem = Problem(rng.randint(1, 3000), rng.randint(1, 300), rng.randint(1, 100_000), rng.randint(1, 9), dtype)
        chosen = plan(tile, problem)
        slices, fanned, k_tiles_per_split = chosen.scalars[:3]
        steps = -(-problem.k // tile["BK"])
        assert (slices - 1) * k_tiles_per_split < steps <= slices * k_tiles_per_split
        assert slices <= tile["SPLIT_K"]
        tiles = chosen.grid // slices
        groups = -(-slices // fanned)
        assert slices == 1 or tiles * (groups + 1) <= COUNTERS
        accumulator_packs = tiles * slices * tile["BM"] * tile["BN"] * problem.itemsize
        assert chosen.workspace_bytes == (4 * COUNTERS + accumulator_packs if slices > 1 else 0)


@pytest.mark.parametrize("slices", [1, 2, 3, 4, 11, 16, 33, 132, 264])
def test_groups_of_slices_and_slices_of_a_group_are_fewest_together(slices: int) -> None:
    fewest = min(one + -(-slices // one) for one in range(1, slices + 1))
    assert fan(slices) + -(-slices // fan(slices)) == fewest


def test_a_product_without_slices_or_copies_has_no_scratch() -> None:
    launch = planned(config("register_tiled", (*SPLIT[:-2], 1, 1)), Problem(100, 100, 1000))
    assert (launch.workspace_bytes, launch.before, launch.scalars[:2]) == (0, (), (1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_only_badly_laid_operands_are_copied_behind_the_sums(dtype: str, turned: tuple[bool, bool]) -> None:
    tile, line = config("register_tiled", COPIED), 128 // replace(Problem(1, 1, 1), dtype=dtype).itemsize
    for m, n in ((1024, 1024), (1024, 1023), (1023, 1024), (1023, 1023)):
        problem = replace(transposed(dtype, *turned, m, n, 500), batch=2)
        chosen = plan(tile, problem)
        at_a, lines_a, at_b, lines_b = chosen.scalars[4:8]
        assert (lines_a > 0) == (not problem.trans_a or m == 1023)
        assert (lines_b > 0) == (problem.trans_b or n == 1023)
        assert lines_a in {0, -(-m // line)}
        assert lines_b in {0, -(-n // line)}
        assert 128 * at_a >= 4 * COUNTERS + chosen.grid * tile["BM"] * tile["BN"] * problem.itemsize
        assert at_b == at_a + 2 * 500 * lines_a
        assert len(chosen.before) == (lines_a + lines_b > 0)
        if chosen.before:
            assert chosen.workspace_bytes == 128 * (at_b + 2 * 500 * lines_b)
            assert chosen.before[0].grid == 2 * 8 * ((lines_a > 0) * 16 + (lines_b > 0) * 16)


def test_configs_that_differ_in_slices_and_order_share_a_binary() -> None:
    problem = Problem(4096, 4096, 4096)
    tile = ENTRY.space.legal(problem, H200)[0]
    one, other = (ENTRY.launch(Config.of({**tile, "GROUP_M": group}), problem, H200) for group in (1, 16))
    assert one.build == other.build
    assert one.scalars != other.scalars
    assert planned(config("register_tiled", SPLIT), problem).build == (
        planned(config("register_tiled", (*SPLIT[:-2], 2, 8)), problem).build
    )


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_slices_teams_and_copies_compile_and_spill_nothing(architecture: str, tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    device = replace(H200, architecture=architecture)
    for values, dtype in (
        ((64, 64, 8, 8, 32, 4, 0, 64, 3, 1, 132, 1), "float32"),
        ((128, 128, 8, 8, 64, 2, 1, 32, 3, 1, 2, 1), "float32"),
        ((32, 64, 4, 4, 32, 4, 1, 64, 3, 1, 16, 1), "float64"),
    ):
        problem = Problem(64, 64, 131072, dtype=dtype, trans_b=True)
        launch = planned(config("register_tiled", values), problem)
        builds = (launch.build, *(k_step.build for k_step in launch.before))
        for each in builds:
            assert cuda.compile_cubin(each, architecture, tmp_path).spills == 0, (values, each.name)
        assert launch.threads <= device.limits.threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 13), (64, 67)])
def test_a_slices_product_is_added_to_c_as_interpreted(dtype: str, m: int, n: int) -> None:
    pytest.importorskip("app.devices.cuda")
    from tests.ptx_interpreter.launches import run  # noqa: PLC0415 - CuPy is loaded only where something is compiled

    launch, terms = accumulation(Problem(m, n, 9, dtype=dtype)), np.arange(2.0 * m * n, dtype=dtype).reshape(2, m, n)
    room = -(-terms[0].nbytes // 256) * 256
    memory = np.full(3 * room, 0xA5, np.uint8)
    partial, c = (memory[at : at + terms[0].nbytes].view(dtype).reshape(m, n) for at in (0, room))
    partial[...], c[...] = terms
    readable = np.zeros(len(memory), np.bool_)
    readable[: terms[0].nbytes] = readable[room : room + terms[0].nbytes] = True
    run(launch, [0, 0, room, 2 * room], memory, readable, H200)
    assert np.array_equal(c, terms[0] + terms[1])
    assert (memory[room + terms[0].nbytes :] == 0xA5).all(), "nothing past C is written"
