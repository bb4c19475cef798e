"""batched: its space and defaults, the banks of its tiles, and what the compilers make of it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.batched import BATCHED
from kernels.batched.plan import product_threads, register_limit, registers, shared_bytes, threads
from kernels.batched.space import SPACE
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import DTYPES, H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands, queue, reference
from tests.support.pairwise import crossed

TURING = replace(H200, architecture="sm_75")
SIXTEEN, CUBE = Problem(16, 16, 16, 4096), Problem(64, 64, 64, 512)
PRECISION = {"float32": 1e-6, "float64": 2e-15}
CLASSES = (SIXTEEN, Problem(32, 32, 32, 1024), CUBE, Problem(128, 128, 128, 128))


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


def turned(problem: Problem, dtype: str, trans: tuple[bool, bool]) -> Problem:
    return replace(problem, dtype=dtype, trans_a=trans[0], trans_b=trans[1])


def seeded() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)  # noqa: S311 - configs, not secrets


def test_it_suits_what_is_small_and_nothing_else() -> None:
    assert all(BATCHED.covers(problem, device) for problem in CLASSES for device in (H200, PROCESSOR))
    assert BATCHED.covers(Problem(128, 1, 77), H200)
    assert not BATCHED.covers(Problem(64, 64, 129, 512), H200)
    assert not BATCHED.covers(Problem(64, 64, 64, precision="tf32"), H200)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", CLASSES, ids=lambda problem: problem.key)
def test_the_space_is_rich(problem: Problem, dtype: str) -> None:
    found = SPACE.legal(replace(problem, dtype=dtype), H200)
    assert 100 <= len(found) <= 4000
    assert len(SPACE.legal(replace(problem, dtype=dtype), PROCESSOR)) >= 50


@pytest.mark.rotating
@pytest.mark.parametrize("device", [H200, TURING, PROCESSOR], ids=["sm_90", "sm_75", "opencl"])
def test_building_configs_up_finds_what_asking_each_one_finds(device: Device) -> None:
    problem = Problem(40, 30, 50, 20, "float64", trans_a=True)
    part = (each for place, each in enumerate(SPACE) if place % 31 == 0)
    asked = [each for each in part if SPACE.refusal(each, problem, device) is None]
    found = SPACE.legal(problem, device)
    assert asked
    assert set(asked) <= set(found)
    assert all(SPACE.refusal(each, problem, device) is None for each in found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    whole = tile(16, 16, 4, 4, 16, 8, 1, 4)
    assert set(SPACE.reads) == set(SPACE.rules)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in whole.items() if name in names))
        assert SPACE.rules[reason](part, SIXTEEN, H200)


@pytest.mark.parametrize(
    ("values", "problem", "device", "rule"),
    [
        ((32, 16, 4, 4, 16, 8, 1, 1), SIXTEEN, H200, "a tile or a k tile at least twice as large as the problem"),
        ((16, 16, 4, 4, 32, 8, 1, 1), SIXTEEN, H200, "a tile or a k tile at least twice as large as the problem"),
        ((16, 16, 4, 2, 16, 8, 1, 1), SIXTEEN, H200, "a thread tile narrower than 16 bytes"),
        ((16, 16, 2, 4, 16, 8, 1, 1), replace(SIXTEEN, trans_a=True), H200, "a thread tile narrower than 16 bytes"),
        ((8, 16, 8, 4, 16, 8, 1, 1), SIXTEEN, H200, "fewer than two threads down a tile, or none across"),
        ((16, 8, 4, 16, 16, 8, 1, 1), SIXTEEN, H200, "fewer than two threads down a tile, or none across"),
        ((32, 32, 4, 4, 32, 2, 1, 1), CUBE, H200, "more products a block"),
        ((16, 16, 4, 4, 16, 8, 1, 1), replace(SIXTEEN, batch=4), H200, "more products a block"),
        ((16, 16, 4, 4, 16, 1, 1, 1), SIXTEEN, H200, "fewer threads a block"),
        ((16, 16, 4, 4, 16, 32, 1, 1), SIXTEEN, PROCESSOR, "fewer threads a block"),
        ((64, 64, 4, 4, 8, 1, 1, 1), CUBE, H200, "copies of 16 bytes"),
        ((64, 64, 8, 8, 32, 1, 3, 1), CUBE, H200, "more stages than k tiles, or where copies are not asynchronous"),
        ((64, 64, 8, 8, 32, 1, 2, 1), CUBE, TURING, "more stages than k tiles, or where copies are not asynchronous"),
        (
            (64, 64, 8, 8, 32, 1, 2, 1),
            CUBE,
            PROCESSOR,
            "more stages than k tiles, or where copies are not asynchronous",
        ),
        ((128, 128, 8, 8, 128, 1, 1, 1), replace(CLASSES[3], dtype="float64"), H200, "more shared memory"),
        ((16, 16, 4, 4, 16, 8, 1, 1), replace(SIXTEEN, batch=2**35), H200, "more than 2^31"),
        ((64, 64, 8, 16, 16, 1, 1, 1), turned(CUBE, "float64", (False, False)), H200, "more registers"),
        ((64, 64, 8, 8, 16, 4, 1, 4), CUBE, H200, "more registers"),
        ((32, 32, 4, 4, 32, 1, 1, 4), CLASSES[1], H200, "MIN_BLOCKS that does not limit registers"),
        (
            (64, 32, 8, 4, 128, 1, 1, 8),
            replace(CUBE, k=128),
            H200,
            "more blocks on an SM than its threads and shared memory allow",
        ),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(
    values: tuple[int, ...], problem: Problem, device: Device, rule: str
) -> None:
    refusal = SPACE.refusal(tile(*values), problem, device)
    assert refusal is not None
    assert refusal.startswith(rule)


def test_a_launch_is_counted_as_by_hand() -> None:
    launch = BATCHED.launch(tile(16, 16, 4, 4, 16, 8, 1, 4), replace(SIXTEEN, batch=4001), H200)
    assert (launch.grid, launch.block, launch.scalars[:1]) == (501, (128, 1), (4001,))
    assert launch.dynamic_smem_bytes == 8 * 2 * 1024
    tiled = BATCHED.launch(tile(64, 32, 8, 4, 16, 1, 2, 1), Problem(100, 33, 50, 7), H200)
    assert (tiled.grid, tiled.threads, tiled.dynamic_smem_bytes) == (7 * 2 * 2, 64, 2 * 16 * 96 * 4)
    assert registers(tiled.config, tiled.problem) == 32 + 4 * 8 + 4 + 40
    assert registers(tiled.config, replace(tiled.problem, dtype="float64")) == 2 * (32 + 2 * 8 + 4) + 72


@pytest.mark.rotating
@pytest.mark.parametrize("device", [H200, TURING, PROCESSOR], ids=["sm_90", "sm_75", "opencl"])
def test_a_default_is_legal_for_whatever_it_suits(device: Device) -> None:
    rng = seeded()
    for _ in range(200):
        m, n, k = (rng.choice((1, 2, 5, 8, 16, 17, 31, 32, 50, 64, 100, 127, 128)) for _ in range(3))
        problem = turned(
            Problem(m, n, k, rng.choice((1, 2, 7, 100, 5000))), rng.choice(DTYPES), rng.choice(TRANSPOSITIONS)
        )
        assert SPACE.refusal(BATCHED.default(problem, device), problem, device) is None, problem.key


def test_defaults_load_a_small_product_in_one_wave() -> None:
    for problem in CLASSES[:3]:
        chosen = BATCHED.default(problem, H200)
        launch = BATCHED.launch(chosen, problem, H200)
        assert chosen["STAGES"] * chosen["BK"] >= problem.k
        shared = launch.shared_bytes + H200.limits.shared_bytes_reserved
        assert launch.grid <= H200.limits.sms * (H200.limits.shared_bytes_per_sm // shared)
    assert BATCHED.default(SIXTEEN, H200) == tile(16, 16, 4, 4, 16, 8, 1, 4)
    assert BATCHED.default(CLASSES[3], H200) == tile(128, 128, 8, 8, 32, 1, 4, 1)
    assert BATCHED.launch(BATCHED.default(Problem(64, 64, 64), H200), Problem(64, 64, 64), H200).grid >= 16


def banks(config: Config, problem: Problem) -> tuple[int, int, int, int, int, int]:
    """LANES_M, LANES_N and SWIZZLE_DIV_A, _MOD_A, _DIV_B and _MOD_B of batched/smem_layout.h."""
    wide = 16 // problem.itemsize
    lanes_n = min(8, config["BN"] // config["TN"])
    lanes_m = min(32 // lanes_n, config["BM"] // config["TM"])
    div = max(config["BK"], 8 * wide)
    mod = 1 if problem.trans_a else max(1, min(8, lanes_m * config["BK"] // div))
    return lanes_m, lanes_n, div, mod, config["BK"] * wide, lanes_n if problem.trans_b else 1


def dealt(place: int, div: int, mod: int, wide: int) -> int:
    return place ^ place // div % mod * wide


def reads(config: Config, problem: Problem, lanes: range) -> Iterator[set[int]]:
    """For each read of a thread's packs along k, the packs of 16 bytes that these lanes of a warp ask for."""
    wide, bk = 16 // problem.itemsize, config["BK"]
    lanes_m, lanes_n, div_a, mod_a, div_b, mod_b = banks(config, problem)
    for q in range(0, bk, wide):
        for i in range(config["TM"]):
            rows = [lane % 2 + lane // (2 * lanes_n) * 2 + i * lanes_m for lane in lanes]
            yield {dealt(row * bk + q, div_a, mod_a, wide) // wide for row in rows}
        for j in range(config["TN"]):
            start = j // wide * lanes_n * wide + j % wide
            columns = [start + lane // 2 % lanes_n * wide for lane in lanes]
            yield {dealt(column * bk + q, div_b, mod_b, wide) // wide for column in columns}


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_threads_that_are_served_together_meet_on_a_bank(dtype: str) -> None:
    problem = turned(CUBE, dtype, (False, True))
    seen = {(each["BM"], each["BN"], each["TM"], each["TN"], each["BK"]): each for each in SPACE.legal(problem, H200)}
    for each in seen.values():
        lanes_m, lanes_n, *_ = banks(each, problem)
        lanes, together = lanes_m * lanes_n, 16 if lanes_n > 1 else 8
        for start in range(0, lanes, together):
            for packs in reads(each, problem, range(start, min(start + together, lanes))):
                assert len({pack % 8 for pack in packs}) == len(packs), each


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tile_is_dealt_out_one_to_one_and_within_128_bytes(dtype: str) -> None:
    problem = turned(CUBE, dtype, (False, True))
    wide = 16 // problem.itemsize
    for each in SPACE.legal(problem, H200)[::7]:
        *_, div_a, mod_a, div_b, mod_b = banks(each, problem)
        for side, div, mod in ((each["BM"], div_a, mod_a), (each["BN"], div_b, mod_b)):
            places = [dealt(place, div, mod, wide) for place in range(0, side * each["BK"], wide)]
            assert sorted(places) == list(range(0, side * each["BK"], wide))
            assert all(old // 8 == new // wide // 8 for old, new in enumerate(places))


# One warp and more, one product a block and many, one phase and several; each is legal where both operands are turned.
TILES = [
    (16, 16, 4, 4, 16, 8, 1, 1),
    (8, 16, 4, 8, 8, 16, 1, 1),
    (64, 64, 8, 8, 16, 1, 1, 1),
    (32, 32, 4, 4, 32, 2, 1, 1),
    (32, 64, 8, 4, 64, 1, 1, 1),
    (64, 8, 4, 4, 32, 1, 1, 1),
    (16, 128, 4, 8, 32, 1, 1, 1),
    (64, 64, 4, 16, 32, 1, 1, 1),
]
SHAPES = ((1, 1, 1, 1), (16, 16, 16, 9), (33, 17, 65, 2), (64, 64, 64, 1), (20, 28, 36, 3))


@pytest.mark.rotating
@crossed(dtype=DTYPES, trans_a=(False, True), trans_b=(False, True))
def test_products_are_right_on_the_processor_for_any_shape(dtype: str, *, trans_a: bool, trans_b: bool) -> None:
    trans = trans_a, trans_b
    rng = np.random.default_rng(seeded().getrandbits(32))
    queue()
    first = 4 * DTYPES.index(dtype) + TRANSPOSITIONS.index(trans)
    base = turned(CUBE, dtype, trans)
    bm, bn, _, _, bk, per, *_ = values = TILES[first]
    launch = BATCHED.launch(tile(*values), replace(base, m=bm, n=bn, k=bk, batch=per), PROCESSOR)
    kernel = compiled(launch.build)

    def product(problem: Problem, a: Array, b: Array) -> Array:
        return multiplied(kernel, BATCHED.for_problem(launch, problem), a, b)

    for m, n, k, batch in SHAPES:
        problem = replace(base, m=m, n=n, k=k, batch=batch)
        a, b = operands(problem, rng)
        exact = reference(problem, a, b)
        error = np.linalg.norm((product(problem, a, b) - exact).ravel()) / np.linalg.norm(exact.ravel())
        assert error < PRECISION[dtype], (values, problem, error)
    a, b = operands(problem, rng, integers=True)
    assert (product(problem, a, b) == reference(problem, a, b)).all(), "small integers are not exact"
    left = a.swapaxes(1, 2) if problem.trans_a else a
    left[1, -1, -1] = np.nan
    c = product(problem, a, b)
    assert np.isnan(c[1, -1]).all()
    assert np.isnan(c).sum() == problem.n, "NaN went astray"
    endless = product(problem, np.ones_like(a), np.full_like(b, np.inf))
    assert (endless == np.inf).all(), "the padding made NaN of infinity"


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("stages", "trans"),
    [(2, (False, True)), pytest.param(3, (True, False), marks=pytest.mark.slow)],
    ids=["2-nt", "3-tn"],
)
def test_phases_take_turns_in_shared_memory(stages: int, trans: tuple[bool, bool]) -> None:
    # No rule lets a processor have several: nothing is copied there meanwhile. The text has them all the same.
    rng = np.random.default_rng(seeded().getrandbits(32))
    queue()
    base = turned(Problem(16, 16, 8, 5), "float32", trans)
    launch = BATCHED.launch(tile(16, 16, 4, 4, 8, 4, stages, 1), replace(base, k=64), H200)
    kernel = compiled(launch.build)
    for k in (8, 24, 61):
        problem = replace(base, k=k)
        a, b = operands(problem, rng, integers=True)
        c = multiplied(kernel, BATCHED.for_problem(launch, problem), a, b)
        assert (c == reference(problem, a, b)).all(), k


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_and_configs_at_random_compile_and_spill_nothing(
    architecture: str, dtype: str, tmp_path: Path
) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    rng, device = seeded(), replace(H200, architecture=architecture)
    ones = [turned(one, dtype, each) for one, each in zip(CLASSES, rng.sample(TRANSPOSITIONS, 4), strict=True)]
    configs = [(BATCHED.default(one, device), one) for one in ones[:2] if architecture == "sm_80"]
    configs += [(BATCHED.default(one, device), one) for one in ones[2:] if architecture == "sm_90"]
    configs += [(rng.choice(SPACE.legal(one, device)), one) for one in rng.sample(ones, 1)]
    for config, one in configs:
        cubin = cuda.compile_cubin(BATCHED.launch(config, one, device).build, architecture, tmp_path)
        assert cubin.spills == 0, (config, one.key)
        assert cubin.registers <= register_limit(config, device), (config, one.key)


def test_turing_compiles_what_copies_nothing_while_it_goes_on(tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    chosen = BATCHED.default(SIXTEEN, TURING)
    assert cuda.compile_cubin(BATCHED.launch(chosen, SIXTEEN, TURING).build, "sm_75", tmp_path).spills == 0


def test_shared_bytes_and_threads_are_those_of_all_products_of_a_block() -> None:
    each = tile(32, 16, 4, 4, 8, 4, 2, 1)
    assert (product_threads(each), threads(each)) == (32, 128)
    assert shared_bytes(each, Problem(32, 16, 16, 8)) == 2 * 4 * 8 * 48 * 4
