"""double_hopper: its space and defaults, what NVRTC makes of it, and its products, interpreted and on a GPU."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.services.best.kernel_order import untuned
from kernels.device import Device
from kernels.double_hopper import DOUBLE_HOPPER, least_seconds, untuned_seconds
from kernels.double_hopper.plan import MOST_REGISTERS, register_limit, registers, shared_bytes, threads
from kernels.double_hopper.space import SPACE
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.double_tensor.cost_model import seconds as copied_seconds
from kernels.launch import Launch, TensorMap
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.double_products import Array, expect_exact_and_accurate, expect_nan_in_its_row_alone, opened
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.shares import share_of

pytest_plugins = ("tests.support.kernels.uncorrected",)

cuda = pytest.importorskip("app.devices.cuda")
interpreted = pytest.importorskip("tests.ptx_interpreter.launches").interpreted

CUBE = Problem(2048, 2048, 2048, dtype="float64")
NAMES = tuple(SPACE.parameters)
WARPS = ((16, 16), (16, 32), (16, 64), (32, 16), (32, 32), (32, 64), (64, 16), (64, 32))


FEW = replace(H200.limits, sms=131)


def tile(*values: int) -> Config:
    """A config by its values: without the last one k is whole."""
    every = values if len(values) == len(NAMES) else (*values, 1)
    return Config(tuple(zip(NAMES, every, strict=True)))


SMALL = tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0)


def launched(chosen: Config, problem: Problem) -> Launch:
    """A launch of a config, whether it is legal on the problem or not."""
    legal = DOUBLE_HOPPER.launch(SMALL, replace(CUBE, trans_a=problem.trans_a, trans_b=problem.trans_b), H200)
    own = tuple((name, str(value)) for name, value in chosen.items() if name not in DOUBLE_HOPPER.arguments)
    build = replace(legal.build, macros=(*own, *legal.build.macros[len(own) :]))
    return DOUBLE_HOPPER.for_problem(replace(legal, config=chosen, build=build), problem)


def test_the_space_is_rich() -> None:
    found = SPACE.legal(CUBE, H200)
    assert 500 <= len(found) <= 8000
    assert {each["MMA_K"] for each in found} == {8, 16}
    assert {(each["WM"], each["WN"]) for each in SPACE.legal(replace(CUBE, m=512), H200)} == set(WARPS)
    assert {each["BLOCKS"] for each in found} == {0, 132}


def test_building_configs_up_finds_what_asking_each_one_finds() -> None:
    draw, problem = random.Random(7), replace(CUBE, m=300, n=2000, k=900)  # noqa: S311 - configs, not secrets
    found = SPACE.legal(problem, H200)
    asked = [tile(*(draw.choice(kind) for kind in SPACE.parameters.values())) for _ in range(4000)]
    assert {each for each in asked if SPACE.refusal(each, problem, H200) is None} <= set(found)
    assert all(SPACE.refusal(each, problem, H200) is None for each in found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    assert set(SPACE.reads) == set(SPACE.rules)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in SMALL.items() if name in names))
        assert SPACE.rules[reason](part, CUBE, H200)


@pytest.mark.parametrize(
    ("values", "device", "rule"),
    [
        ((64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0), replace(H200, architecture="sm_80"), "no TMA unit"),
        ((64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0), PROCESSOR, "no TMA unit"),
        ((32, 64, 64, 32, 16, 16, 1, 4, 1, 1, 1, 0), H200, "a tile that is no multiple of its warps' tiles"),
        ((64, 32, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0), H200, "warps that are no whole warpgroups"),
        ((128, 64, 32, 16, 16, 16, 1, 4, 1, 1, 1, 0), H200, "small warps' tiles for more than four warps"),
        ((256, 128, 32, 32, 16, 16, 0, 4, 1, 1, 1, 0), H200, "fewer threads than keep an SM busy, or more"),
        ((128, 128, 64, 64, 16, 8, 0, 4, 1, 1, 1, 0), H200, "more registers a thread"),
        ((128, 128, 64, 32, 16, 8, 1, 4, 1, 1, 1, 0), H200, "more registers a thread"),
        ((128, 96, 32, 32, 16, 8, 1, 4, 1, 1, 1, 0), H200, "more registers a thread"),
        ((64, 64, 32, 32, 16, 16, 1, 2, 1, 1, 1, 0), H200, "stages of fewer than 64 of k, or more than 160"),
        ((128, 128, 64, 32, 32, 8, 0, 4, 1, 1, 1, 0), H200, "more shared memory a block"),
        ((64, 64, 32, 32, 32, 8, 0, 5, 1, 2, 1, 0), H200, "more blocks on an SM than its threads and shared memory"),
        ((128, 64, 64, 32, 32, 16, 0, 2, 1, 2, 1, 0), H200, "more registers a thread"),
        ((128, 128, 64, 32, 16, 8, 0, 4, 1, 1, 8, 0), H200, "grouped tiles, where all run at once"),
        ((128, 128, 64, 32, 16, 8, 0, 4, 1, 1, 1, 114), H200, "persistent blocks other than one for each SM"),
        ((128, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 132), replace(H200, limits=FEW), "persistent blocks other than one"),
        ((32, 64, 16, 32, 16, 16, 1, 4, 1, 2, 1, 0), H200, "small tiles, where large ones fill the SMs"),
        ((64, 64, 32, 32, 16, 16, 1, 4, 2, 2, 1, 0), H200, "clusters beside other blocks of an SM"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(values: tuple[int, ...], device: Device, rule: str) -> None:
    refusal = SPACE.refusal(tile(*values), CUBE, device)
    assert refusal is not None
    assert refusal.startswith(rule)


def test_blocks_stay_where_they_have_a_second_tile() -> None:
    staying = tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 2, 1, 132)
    assert SPACE.refusal(staying, CUBE, H200) is None
    assert DOUBLE_HOPPER.launch(staying, CUBE, H200).grid == 264
    few = replace(CUBE, m=512)
    assert str(SPACE.refusal(staying, few, H200)).startswith("persistent blocks")


@pytest.mark.parametrize(
    ("turned", "refused"),
    [
        ((False, False), {"n", "k"}),
        ((False, True), {"k"}),
        ((True, False), {"m", "n"}),
        ((True, True), {"m", "k"}),
    ],
)
def test_rows_that_tma_cannot_load_are_refused(turned: tuple[bool, bool], refused: set[str]) -> None:
    for name in ("m", "n", "k"):
        sizes = {"m": 2048, "n": 2048, "k": 2048} | {name: 2047}
        problem = transposed("float64", *turned, *sizes.values())
        reason = SPACE.refusal(SMALL, problem, H200)
        assert (reason is not None and reason.startswith("operands whose rows")) is (name in refused)
        assert DOUBLE_HOPPER.covers(problem, H200) is (name not in refused)


def test_registers_are_those_of_sums_operands_and_addresses() -> None:
    chosen = tile(128, 64, 32, 32, 16, 16, 1, 6, 1, 1, 1, 0)
    assert threads(chosen) == 256 + 128
    assert registers(chosen) == 2 * (32 * 32 + 2 * 16 * (32 + 32)) // 32 + 31
    assert registers(tile(128, 128, 64, 32, 16, 16, 0, 5, 1, 1, 1, 0)) == 2 * (64 * 32 + 16 * (32 + 16)) // 32 + 41
    # What a block's producer gives up is its consumers'; two blocks of four warps have 232 each, one as many as it can.
    assert register_limit(chosen, H200) == 240
    assert register_limit(tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 2, 1, 0), H200) == 232
    assert register_limit(SMALL, H200) == 255
    assert register_limit(tile(128, 96, 32, 32, 16, 16, 0, 4, 1, 1, 1, 0), H200) == 160
    assert shared_bytes(chosen, CUBE) == 6 * (192 * 16 * 8 + 16)


def test_boxes_are_of_128_bytes_along_memorys_lines() -> None:
    chosen = tile(128, 96, 32, 32, 32, 16, 0, 3, 1, 1, 1, 0)
    plain = launched(chosen, Problem(300, 200, 100, 3, "float64"))
    assert plain.maps == (
        TensorMap("a", "float64", (100, 300, 3), (800, 240_000), (16, 128, 1)),
        TensorMap("b", "float64", (200, 100, 3), (1600, 160_000), (16, 32, 1)),
    )
    turned = launched(chosen, Problem(300, 200, 100, 3, "float64", trans_a=True, trans_b=True))
    assert turned.maps == (
        TensorMap("a", "float64", (300, 100, 3), (2400, 240_000), (16, 32, 1)),
        TensorMap("b", "float64", (100, 200, 3), (800, 160_000), (16, 96, 1)),
    )
    shared = launched(tile(128, 96, 32, 32, 32, 16, 0, 3, 2, 1, 1, 0), turned.problem)
    assert [each.box for each in shared.maps] == [(16, 32, 1), (16, 48, 1)]


def test_only_hopper_is_covered() -> None:
    assert DOUBLE_HOPPER.covers(CUBE, H200)
    assert not DOUBLE_HOPPER.covers(CUBE, replace(H200, architecture="sm_80"))
    assert not DOUBLE_HOPPER.covers(CUBE, replace(PROCESSOR, architecture="sm_90"))
    assert not DOUBLE_HOPPER.covers(replace(CUBE, dtype="float32"), H200)
    assert not DOUBLE_HOPPER.covers(Problem(16, 512, 512, dtype="float64"), H200)


@pytest.mark.parametrize("size", [34, 64, 512, 1022, 1024, 2048, 4096, 8192])
def test_defaults_are_legal_and_grow_with_the_shape(size: int) -> None:
    for turned in TRANSPOSITIONS:
        for shape in ((size, size, size), (64, size, 65536)):
            problem = transposed("float64", *turned, *shape)
            chosen = DOUBLE_HOPPER.default(problem, H200)
            assert SPACE.refusal(chosen, problem, H200) is None
            assert chosen == DOUBLE_HOPPER.seeds(problem, H200)[0]  # type: ignore[misc]
    chosen = DOUBLE_HOPPER.default(Problem(size, size, size, dtype="float64"), H200)
    assert -(-size // chosen["BM"]) * -(-size // chosen["BN"]) >= min(100, (size // 64) ** 2)
    assert chosen["BM"] * chosen["BN"] >= 64 * 128 or size < 2048


def test_config_of_another_problem_is_still_right() -> None:
    launch = DOUBLE_HOPPER.launch(tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 2, 8, 132), CUBE, H200)
    assert (launch.grid, launch.scalars[:6]) == (264, (8, 1024, 128, 1, 1, 128))
    small = DOUBLE_HOPPER.for_problem(launch, Problem(100, 200, 40, dtype="float64"))
    assert (small.grid, small.scalars[:6]) == (8, (2, 8, 3, 1, 1, 3))
    paired = DOUBLE_HOPPER.launch(tile(64, 128, 32, 32, 16, 16, 1, 6, 2, 1, 8, 132), CUBE, H200)
    assert (paired.grid, paired.cluster, paired.scalars[:6]) == (132, 2, (8, 256, 128, 1, 1, 128))
    small = DOUBLE_HOPPER.for_problem(paired, Problem(130, 200, 40, dtype="float64"))
    assert (small.grid, small.scalars[:6]) == (8, (2, 4, 3, 1, 1, 3))


def test_splits_share_a_tiles_k() -> None:
    chosen = tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0, 6)
    deep = Problem(128, 256, 4000, dtype="float64")
    launch = DOUBLE_HOPPER.launch(chosen, deep, H200)
    assert (launch.grid, launch.scalars[:6]) == (48, (1, 48, 250, 6, 3, 42))
    assert launch.workspace_bytes == 65_536 + 48 * 64 * 64 * 8
    for other, rule in (
        ({"BLOCKS": 132}, "splits of k for clusters"),
        ({"CLUSTER": 2}, "splits of k for clusters"),
        ({"BM": 128, "WM": 64, "AHEAD": 0, "SPLIT_K": 8}, "splits of k for clusters"),
        ({"SPLIT_K": 264}, "more splits of k"),
    ):
        assert str(SPACE.refusal(Config.of(dict(chosen) | other), deep, H200)).startswith(rule)


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((4096, 4096, 4096), "double_hopper"),
        ((16384, 16384, 2048), "double_hopper"),
        ((5000, 3000, 4000), "double_hopper"),
        ((4095, 4095, 4095), "double_tensor"),
        ((64, 64, 131_072), "double_hopper"),
        ((16, 4096, 4096), "direct_double"),
    ],
)
@pytest.mark.usefixtures("uncorrected")
def test_untuned_it_is_taken_for_whole_rows(shape: tuple[int, int, int], first: str) -> None:
    for turned in TRANSPOSITIONS:
        problem = transposed("float64", *turned, *shape)
        assert next(untuned(problem, H200)).name == first
        if DOUBLE_HOPPER.covers(problem, H200):
            assert DOUBLE_HOPPER.preferred_untuned(problem, H200) is (first == "double_hopper")


def test_what_is_above_it_gives_way_to_the_lesser_of_two_estimates() -> None:
    def copied(problem: Problem, device: Device) -> float:
        return copied_seconds(DOUBLE_TENSOR.default(problem, device), problem, device)

    for shape in ((2048, 2048, 128), (64, 64, 4096)):
        problem = Problem(*shape, dtype="float64")
        least = min(untuned_seconds(problem, H200), copied(problem, H200))
        assert least_seconds(problem, H200) == least
        for other, device in ((problem, replace(H200, architecture="sm_80")), (replace(problem, k=127), H200)):
            assert least_seconds(other, device) == copied(other, device)


@pytest.mark.slow
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
@pytest.mark.parametrize("size", [64, 512, 1024, 4096])
def test_defaults_compile_and_spill_nothing(size: int, turned: tuple[bool, bool], tmp_path: Path) -> None:
    problem = transposed("float64", *turned, size, size, 1024)
    check_compiled(DOUBLE_HOPPER.default(problem, H200), problem, tmp_path)


@pytest.mark.rotating
@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_whatever_the_rules_leave_compiles_and_spills_nothing(count: int, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    for chosen in draw.sample(SPACE.legal(CUBE, H200), share_of(count)):
        check_compiled(chosen, transposed("float64", *draw.choice(TRANSPOSITIONS), 2048, 2048, 2048), tmp_path)


def check_compiled(chosen: Config, problem: Problem, cache: Path) -> None:
    launch = DOUBLE_HOPPER.launch(chosen, problem, H200)
    cubin = cuda.compile_cubin(launch.build, "sm_90", cache)
    assert cubin.spills == 0, (chosen, problem.key)
    start = H200.limits.registers_per_sm // (threads(chosen) * chosen["MIN_BLOCKS"]) // 8 * 8
    # With fewer than it may start with, a block would wait for what its producer does not give up.
    assert start >= MOST_REGISTERS or cubin.registers == start, (chosen, problem.key)


# Tiles that are whole and not, alone and in clusters, k tiles in one box and two, fewer k tiles than stages and more,
# blocks that have one tile and several, rows of C that are whole 16 bytes and not.
CASES = [
    pytest.param(SMALL, 0, (70, 66, 50), 1, id="nn"),
    pytest.param(SMALL, 1, (65, 67, 50), 2, id="nt-batch"),
    pytest.param(SMALL, 2, (70, 66, 51), 1, id="tn"),
    pytest.param(SMALL, 3, (66, 65, 50), 1, id="tt"),
    pytest.param(tile(128, 64, 32, 32, 16, 16, 0, 3, 1, 1, 1, 0), 0, (127, 62, 70), 1, id="nn-eight-warps"),
    pytest.param(tile(64, 128, 32, 32, 32, 8, 1, 2, 1, 1, 1, 2), 1, (150, 131, 98), 1, id="nt-two-boxes-persistent"),
    pytest.param(tile(128, 128, 64, 32, 16, 16, 0, 4, 1, 1, 1, 0), 2, (130, 20, 33), 1, id="tn-64x32"),
    pytest.param(tile(128, 128, 32, 64, 32, 16, 0, 2, 1, 1, 1, 1), 3, (130, 140, 40), 2, id="tt-32x64-one-block"),
    pytest.param(tile(128, 128, 32, 64, 16, 8, 0, 4, 1, 1, 1, 0), 0, (1, 130, 2), 1, id="nn-32x64-one-row"),
    pytest.param(tile(96, 128, 32, 32, 16, 16, 0, 3, 1, 1, 2, 3), 2, (290, 132, 47), 1, id="tn-twelve-warps-grouped"),
    pytest.param(tile(32, 32, 16, 16, 32, 16, 1, 3, 1, 2, 1, 0), 0, (33, 34, 100), 1, id="nn-16x16"),
    pytest.param(tile(64, 64, 64, 16, 16, 8, 1, 5, 1, 1, 1, 1), 1, (65, 65, 66), 1, id="nt-64x16"),
    pytest.param(tile(64, 64, 16, 64, 16, 16, 1, 3, 1, 1, 1, 1), 3, (66, 129, 82), 1, id="tt-16x64"),
    pytest.param(tile(64, 64, 32, 32, 16, 16, 1, 3, 2, 1, 1, 0), 0, (170, 66, 90), 1, id="nn-cluster"),
    pytest.param(tile(128, 96, 32, 32, 32, 16, 0, 2, 2, 1, 2, 4), 1, (300, 191, 130), 1, id="nt-cluster-persistent"),
    pytest.param(tile(128, 32, 32, 32, 16, 8, 0, 4, 2, 1, 1, 2), 2, (270, 34, 75), 2, id="tn-cluster-batch"),
    pytest.param(tile(64, 128, 32, 32, 16, 16, 1, 3, 2, 1, 1, 0), 3, (60, 100, 70), 1, id="tt-cluster-half-outside"),
    pytest.param(tile(64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1, 0, 3), 0, (70, 66, 250), 1, id="nn-splits"),
    pytest.param(tile(32, 32, 16, 16, 32, 16, 1, 3, 1, 2, 2, 0, 6), 1, (65, 35, 302), 1, id="nt-splits-grouped"),
    pytest.param(tile(64, 32, 32, 16, 16, 8, 0, 4, 1, 1, 1, 0, 2), 2, (66, 20, 90), 2, id="tn-splits-batch"),
]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("chosen", "turned", "shape", "batch"), CASES)
def test_integer_products_are_exact_without_bank_conflicts(
    chosen: Config, turned: int, shape: tuple[int, int, int], batch: int
) -> None:
    expect_exact(chosen, replace(transposed("float64", *TRANSPOSITIONS[turned], *shape), batch=batch))


@pytest.mark.rotating
@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_random_products_are_exact_without_bank_conflicts(count: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    for chosen in draw.sample(SPACE.legal(CUBE, H200), share_of(count)):
        turned = draw.choice(TRANSPOSITIONS)
        m, n, k = (draw.randint(1, 2 ** draw.randint(1, 8)) for _ in range(3))
        m, n, k = m + m % 2 * turned[0], n + n % 2 * (not turned[1]), k + k % 2 * (not turned[0] or turned[1])
        problem = transposed("float64", *turned, m, n, k)
        dealt = {"BLOCKS": draw.choice((0, 1, 2)), "GROUP_M": draw.choice((1, 2))}
        if chosen["CLUSTER"] == 1 and chosen["WM"] * chosen["WN"] <= 1024 and draw.random() < 0.5:
            dealt |= {"BLOCKS": 0, "SPLIT_K": draw.choice((2, 3, 6))}
        expect_exact(Config.of(dict(chosen) | dealt), replace(problem, batch=draw.choice((1, 1, 2))))


def expect_exact(chosen: Config, problem: Problem) -> None:
    """Small integers, whose sums are exact, with blocks and warps in an order at random."""
    launch, seed = launched(chosen, problem), secrets.randbits(32)
    print(f"seed {seed}")
    a, b = operands(problem, np.random.default_rng(seed), integers=True)
    c, conflicts = interpreted(launch, a, b, H200, draw=random.Random(seed))  # noqa: S311 - an order, not a secret
    assert np.array_equal(c, reference(problem, a, b)), (problem.key, chosen)
    assert conflicts == 0, (problem.key, chosen)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_stage_is_given_back_behind_a_fence(ahead: int) -> None:
    problem = transposed("float64", False, False, 32, 32, 128)  # more k tiles than stages
    launch = launched(tile(32, 32, 16, 16, 16, 8, ahead, 3, 1, 1, 1, 0), problem)
    text, fence = launch.build.text, "fence_proxy_async();"
    assert text.count(fence) == 1
    bare = replace(launch, build=replace(launch.build, text=text.replace(fence, "")))
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, _ = interpreted(launch, a, b, H200)
    assert np.array_equal(c, reference(problem, a, b))
    with pytest.raises(AssertionError, match="asynchronous write to what threads load"):
        interpreted(bare, a, b, H200)


@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_the_order_of_k_is_what_keeps_threads_on_banks_of_their_own(turned: tuple[bool, bool]) -> None:
    problem = transposed("float64", *turned, 32, 32, 32)
    launch = launched(tile(32, 32, 16, 16, 16, 8, 0, 3, 1, 1, 1, 0), problem)
    orders = ("(t >> 1) * 8 + slot * 2 + (t & 1)", "t * 4 + ((t ^ t >> 1) & 1) * 2 ^ slot")
    plain = launch.build.text
    for order in orders:
        assert order in plain
        plain = plain.replace(order, "t * 4 + slot")
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, conflicts = interpreted(replace(launch, build=replace(launch.build, text=plain)), a, b, H200)
    assert np.array_equal(c, reference(problem, a, b)), "sums are the same in any order of k"
    assert conflicts > 0


def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity() -> None:
    expect_nan_in_its_row_alone(launched(SMALL, Problem(33, 18, 20, dtype="float64")))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from opened(tmp_path_factory.mktemp("cache"), ("sm_90",))


@pytest.mark.cuda
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_random_configs_are_exact_and_accurate_on_a_gpu(gpu: Any, turned: tuple[bool, bool]) -> None:
    shapes = ((2, 2, 2), (66, 130, 8), (130, 126, 1000), (64, 66, 5000), (300, 200, 64), (1500, 1300, 200))
    expect_exact_and_accurate(gpu, DOUBLE_HOPPER, turned, shapes, small_share)


def small_share(_: Problem, __: Array, ___: Array, wide: Array) -> float:
    """The norm of the error that is a relative one of 1e-13."""
    return 1e-13 * float(np.linalg.norm(wide.ravel()))
