"""tensor_core: its space, its defaults and plans, and what NVRTC makes of them for every architecture."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.device import Device
from kernels.fp32_emulation import split_operands
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.rules import LINE_BYTES
from kernels.space import Config
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.plan import first_partials_tile, register_limit, registers, shared_bytes, threads
from kernels.tensor_core.space import SPACE
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.tensor_core_configs import DEVICES, planned, tile
from tests.support.shares import share_of

cuda = pytest.importorskip("app.devices.cuda")

CUBE = Problem(4096, 4096, 4096, dtype="bfloat16")
TF32 = replace(CUBE, dtype="float32", precision="tf32")
SPLIT = replace(TF32, precision="emulated")
# Bytes that a config with no register to spare may keep elsewhere while the loop over k goes on without them.
AROUND_THE_LOOP = 72
LARGE = {"BM": 128, "BN": 128, "WM": 64, "WN": 32, "BK": 64}


@pytest.mark.parametrize(("problem", "least"), [(CUBE, 1500), (TF32, 1000), (SPLIT, 300)])
def test_the_space_is_rich(problem: Problem, least: int) -> None:
    found = SPACE.legal(problem, H200)
    assert least <= len(found) <= 6000
    assert SPACE.legal(problem, DEVICES["sm_89"])


@pytest.mark.rotating
@pytest.mark.parametrize(
    "shape", [(1, 4096, 4096, 1), (16, 16, 16, 4096), (128, 128, 128, 128), (64, 64, 131072, 1), (777, 1333, 2111, 1)]
)
def test_skinny_deep_batched_and_ragged_problems_have_many_configs_too(shape: tuple[int, int, int, int]) -> None:
    found = SPACE.legal(Problem(*shape, dtype="float16"), H200)
    assert len(found) >= (2 if max(shape[:3]) <= 16 else 500)
    if shape[0] == 1:
        assert {each["BM"] for each in found} == {16}
    if shape[0] == 777:
        assert {each["PACK_K"] for each in found} == {0, 3}
    assert {1, 2, 4} == {each["SLICE_K"] for each in found} or shape[0] == 16


@pytest.mark.rotating
def test_building_configs_up_finds_what_asking_each_one_finds() -> None:
    draw, problem = random.Random(7), Problem(300, 200, 900, dtype="float16")  # noqa: S311 - configs, not secrets
    found = SPACE.legal(problem, H200)
    asked = [Config(tuple((name, draw.choice(kind)) for name, kind in SPACE.parameters.items())) for _ in range(4000)]
    assert {each for each in asked if SPACE.refusal(each, problem, H200) is None} <= set(found)
    assert all(SPACE.refusal(each, problem, H200) is None for each in found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    assert set(SPACE.reads) == set(SPACE.rules)
    chosen = tile(**LARGE)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in chosen.items() if name in names))
        assert SPACE.rules[reason](part, CUBE, H200), reason


@pytest.mark.parametrize(
    ("values", "problem", "device", "rule"),
    [
        ({"BM": 32}, replace(CUBE, m=16), H200, "a tile at least twice as large as C"),
        ({}, CUBE, H200, "small tiles"),
        ({"BM": 256, "BN": 32, "WM": 64, "WN": 32}, CUBE, H200, "a tile more than four times"),
        (
            LARGE | {"BM": 32, "WM": 64, "BN": 128},
            replace(CUBE, m=64),
            H200,
            "a tile that is no multiple of its warps' tiles",
        ),
        (LARGE | {"BM": 96, "WM": 48}, replace(CUBE, m=100), H200, "a side of 48, 96 or 192 that reaches further"),
        (LARGE | {"BM": 96, "WM": 32}, CUBE, H200, "warps of which there are three"),
        (
            LARGE | {"WM": 16, "WN": 16},
            CUBE,
            H200,
            "small warps' tiles of a large tile, which load more than they multiply",
        ),
        (LARGE | {"BK": 128}, replace(CUBE, k=40), H200, "a k tile at least twice as long as k"),
        (
            LARGE | {"BN": 64, "WM": 32, "SLICE_K": 2},
            CUBE,
            H200,
            "sliced k, where one slice keeps the SM busy or accumulators do not divide",
        ),
        (
            {"BK": 16, "SLICE_K": 2},
            replace(CUBE, m=32, n=32),
            H200,
            "mma steps of a k tile that its slices do not share evenly",
        ),
        (LARGE | {"WN": 64, "BM": 64}, CUBE, H200, "fewer threads"),
        (LARGE | {"BK": 16}, CUBE, H200, "AHEAD with an odd number of mma steps in a k tile"),
        (LARGE | {"MIN_BLOCKS": 2}, CUBE, H200, "more registers"),
        (LARGE | {"WM": 64, "WN": 64}, SPLIT, H200, "more registers"),
        (
            LARGE | {"BN": 64, "WN": 64, "MIN_BLOCKS": 2, "WM": 32, "AHEAD": 0},
            CUBE,
            H200,
            "MIN_BLOCKS that does not limit registers",
        ),
        (LARGE | {"BK": 32, "STAGES": 8}, replace(CUBE, k=100), H200, "more stages than k tiles"),
        (LARGE | {"STAGES": 6}, CUBE, H200, "stages of too little of k, or of more than hides latency"),
        (LARGE | {"STAGES": 4}, CUBE, DEVICES["sm_89"], "more shared memory"),
        (
            {"BM": 128, "BN": 64, "WM": 32, "WN": 32, "BK": 64, "MIN_BLOCKS": 2},
            CUBE,
            DEVICES["sm_89"],
            "more blocks on an SM than its threads and shared memory allow",
        ),
        (LARGE | {"GROUP_M": 8}, replace(CUBE, m=1024, n=1024), H200, "grouped tiles, where all run at once"),
        (LARGE | {"PACK_K": 1}, CUBE, H200, "packing of operands"),
        (LARGE | {"SPLIT_K": 8}, CUBE, H200, "more splits of k"),
        (
            LARGE | {"SPLIT_K": 11},
            replace(CUBE, m=128, n=128, k=40 * 64),
            H200,
            "splits of k that are empty, or shorter than four k tiles",
        ),
        (LARGE | {"CLUSTER_K": 2}, CUBE, H200, "k shared out in clusters before sm_90, or where blocks fill the SMs"),
        ({"CLUSTER_K": 4}, replace(CUBE, m=64, n=64), DEVICES["sm_89"], "k shared out in clusters before sm_90"),
        ({"CLUSTER_K": 4, "SPLIT_K": 2}, replace(CUBE, m=64, n=64), H200, "splits of k in clusters other"),
        (
            {"CLUSTER_K": 8, "SPLIT_K": 16},
            replace(CUBE, m=64, n=64, k=8192),
            H200,
            "k shared out in clusters before sm_90, or",
        ),
        ({"CLUSTER_K": 8}, replace(CUBE, m=64, n=64, k=9 * 32), H200, "k with too little for each block"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(
    values: dict[str, int], problem: Problem, device: Device, rule: str
) -> None:
    refusal = SPACE.refusal(tile(**values), problem, device)
    assert refusal is not None
    assert refusal.startswith(rule)


def test_a_realigned_lines_last_piece_has_a_bit_too() -> None:
    problem, most = Problem(1023, 1023, 1023, dtype="float16"), {"BM": 256, "BN": 64, "WM": 64, "WN": 64, "BK": 128}
    rule = next(rule for reason, rule in SPACE.rules.items() if reason.startswith("more copies"))
    assert rule(tile(**most, REALIGN=0), problem, H200)
    assert not rule(tile(**most, REALIGN=3), problem, H200)
    assert rule(tile(**most | {"BK": 64}, REALIGN=3), problem, H200)


def test_threads_that_have_no_copy_of_a_line_take_bits_too() -> None:
    chosen = tile(BM=96, BN=64, WM=48, WN=64, BK=128, SLICE_K=2, STAGES=2, REALIGN=3)
    rule = next(rule for reason, rule in SPACE.rules.items() if reason.startswith("more copies"))
    along_k = Problem(190, 190, 2999, dtype="float32", precision="tf32", trans_b=True)
    assert rule(chosen, along_k, H200)
    assert not rule(chosen, replace(along_k, trans_a=True), H200)


def test_figures_of_a_config_are_those_of_the_kernel() -> None:
    chosen = tile(**LARGE)
    assert threads(chosen) == 256
    assert registers(chosen, CUBE) == 64 * 32 // 32 + 2 * (64 + 32) // 4 + 40 + 12
    assert registers(tile(**LARGE | {"AHEAD": 0}), SPLIT) == 2 * 64 + 2 * 24 + 20 + 40 + 24
    assert shared_bytes(chosen, CUBE) == 3 * 256 * 64 * 2
    assert shared_bytes(chosen, TF32) == 3 * 256 * 64 * 4
    assert shared_bytes(chosen, SPLIT) == 3 * 256 * 64 * 2 * 2
    assert shared_bytes(tile(SLICE_K=4, BK=16, STAGES=2), CUBE) == 4 * 32 * 32 * 4
    assert (register_limit(chosen, H200), register_limit(tile(**LARGE | {"MIN_BLOCKS": 2}), H200)) == (255, 128)


def test_only_classes_and_architectures_with_the_instructions_are_covered() -> None:
    assert all(TENSOR_CORE.covers(each, device) for each in (CUBE, TF32, SPLIT) for device in DEVICES.values())
    assert not TENSOR_CORE.covers(CUBE, replace(H200, architecture="sm_75"))
    assert not TENSOR_CORE.covers(replace(CUBE, dtype="float32"), H200)
    assert not TENSOR_CORE.covers(CUBE, PROCESSOR)
    assert not TENSOR_CORE.covers(replace(SPLIT, k=64), H200)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [1, 64, 512, 1023, 2048, 4097])
@pytest.mark.parametrize("like", [CUBE, TF32, SPLIT], ids=["half", "tf32", "emulated"])
def test_defaults_are_legal_and_grow_with_the_shape(like: Problem, size: int) -> None:
    shapes = ((size, size, size, 1), (16, size, 8192, 1), (64, size, 65536, 1), (size, 64, 64, 1), (64, 64, 64, size))
    for m, n, k, batch in shapes:
        problem = replace(like, m=m, n=n, k=k, batch=batch)
        for device in DEVICES.values():
            assert SPACE.refusal(TENSOR_CORE.default(problem, device), problem, device) is None
    chosen = TENSOR_CORE.default(replace(like, m=size, n=size, k=size), H200)
    assert chosen["BM"] * chosen["BN"] >= 128 * 64 or size < 2048
    assert chosen["PACK_K"] == 3 or size != 4097 or like is SPLIT


def test_config_of_another_problem_is_still_right() -> None:
    deep = Problem(64, 64, 8192, dtype="float16")
    chosen = tile(BM=64, BN=64, WM=32, WN=32, BK=64, SPLIT_K=16)
    launch = planned(chosen, deep)
    assert (launch.grid, launch.scalars[-9:-5]) == (16, (1, 16, 4, 512))
    assert launch.workspace_bytes == 4 * COUNTERS + 16 * 64 * 64 * 4
    short = TENSOR_CORE.for_problem(launch, replace(deep, k=100))
    assert (short.grid, short.scalars[-9:-5]) == (2, (1, 2, 2, 64))
    many = TENSOR_CORE.for_problem(launch, replace(deep, m=8192, n=8192))
    assert (many.grid, many.scalars[-9:-5], many.workspace_bytes) == (128 * 128, (1, 1, 1, 8192), 0)


def test_copies_and_sums_and_halves_have_places_of_their_own_in_scratch() -> None:
    ragged = Problem(100, 99, 4099, 2, "float16")
    launch = planned(tile(BM=64, BN=64, WM=32, WN=32, BK=64, SPLIT_K=8, PACK_K=3), ragged)
    at_a, lines_a, at_b, lines_b = launch.scalars[:4]
    assert at_a * LINE_BYTES == 4 * COUNTERS + 2 * 4 * 8 * 64 * 64 * 4
    assert (lines_a, lines_b, at_b - at_a) == (65, 65, 2 * 100 * 65)
    assert launch.workspace_bytes == (at_b + 2 * 99 * 65) * LINE_BYTES
    assert [step.build.entry for step in launch.before] == ["pack_k_major"]
    split = replace(SPLIT, m=64, n=64, k=8192)
    chosen = tile(BM=64, BN=64, WM=32, WN=32, BK=64, SPLIT_K=16)
    emulated = planned(chosen, split)
    begin = 4 * COUNTERS + first_partials_tile(chosen, split, 16) * 16 * 64 * 64 * 4
    assert begin >= split_operands(split).end * LINE_BYTES
    assert emulated.workspace_bytes == begin + 16 * 64 * 64 * 4
    assert emulated.verdict_at == split_operands(split).verdict_at
    assert emulated.before == split_operands(split).before


COMPILED = [
    (architecture, problem, turned)
    for architecture in DEVICES
    for problem in (CUBE, replace(CUBE, dtype="float16"), TF32, SPLIT)
    for turned in range(4)
]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "like", "turned"), COMPILED)
def test_defaults_compile_and_spill_nothing(architecture: str, like: Problem, turned: int, tmp_path: Path) -> None:
    device, (trans_a, trans_b) = DEVICES[architecture], TRANSPOSITIONS[turned]
    for m, n, k in ((4096, 4096, 4096), (16, 4097, 4096)):
        problem = replace(like, m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b)
        check_compiled(TENSOR_CORE.default(problem, device), problem, device, tmp_path)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("architecture", "count"),
    [("sm_80", 1), ("sm_120", 1), *(pytest.param(each, 30, marks=pytest.mark.slow) for each in DEVICES)],
)
def test_whatever_the_rules_leave_compiles_and_spills_next_to_nothing(
    architecture: str, count: int, tmp_path: Path
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, device = random.Random(seed), DEVICES[architecture]  # noqa: S311 - configs, not secrets
    for _ in range(share_of(count)):
        trans_a, trans_b = draw.choice(TRANSPOSITIONS)
        like = replace(draw.choice((CUBE, TF32, SPLIT)), trans_a=trans_a, trans_b=trans_b)
        m, n, k = draw.choice(((4096, 4096, 4096), (64, 4096, 4096), (1023, 1023, 1023), (300, 300, 300)))
        problem = replace(like, m=m, n=n, k=k)
        check_compiled(draw.choice(SPACE.legal(problem, device)), problem, device, tmp_path, AROUND_THE_LOOP)


def check_compiled(chosen: Config, problem: Problem, device: Device, cache: Path, spills: int = 0) -> None:
    launch = TENSOR_CORE.launch(chosen, problem, device)
    cubin = cuda.compile_cubin(launch.build, device.architecture, cache)
    assert cubin.spills <= spills, (str(chosen), problem.key)
    assert cubin.registers <= register_limit(chosen, device), (str(chosen), problem.key)
