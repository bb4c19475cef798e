"""double_tensor: its space and defaults, what NVRTC makes of it, and its products, interpreted and on a GPU."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.device import Device
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.double_tensor.plan import register_limit, registers, shared_bytes, threads
from kernels.double_tensor.space import SPACE
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.double_products import Array, expect_exact_and_accurate, expect_nan_in_its_row_alone, opened
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.shares import share_of

pytest_plugins = ("tests.support.kernels.uncorrected",)

cuda = pytest.importorskip("app.devices.cuda")
interpreted = pytest.importorskip("tests.ptx_interpreter.launches").interpreted

CUBE = Problem(1024, 1024, 1024, dtype="float64")
A100 = replace(
    H200,
    architecture="sm_80",
    limits=replace(H200.limits, sms=108, shared_bytes=163 * 1024, shared_bytes_per_sm=164 * 1024),
)
DEVICES = {"sm_80": A100, "sm_90": H200}


def tile(*values: int, sms: int = 0, parts: int = 1) -> Config:
    names = [name for name in SPACE.parameters if name not in {"STREAM_K_SMS", "CLUSTER_K"}]
    chosen = dict(zip(names, values, strict=True)) | {"STREAM_K_SMS": sms, "CLUSTER_K": parts}
    return Config(tuple((name, chosen[name]) for name in SPACE.parameters))


SMALL = tile(32, 32, 16, 16, 16, 8, 1, 3, 1, 1, 1)
WIDE = tile(64, 32, 32, 16, 16, 4, 1, 3, 1, 1, 1)


def test_the_space_is_rich() -> None:
    found = SPACE.legal(CUBE, H200)
    assert 500 <= len(found) <= 4000
    assert {each["MMA_K"] for each in found} == {4, 8, 16}
    assert {each["MMA_K"] for each in SPACE.legal(CUBE, A100)} == {4}


def test_building_configs_up_finds_what_asking_each_one_finds() -> None:
    draw, problem = random.Random(7), replace(CUBE, m=300, n=200, k=900)  # noqa: S311 - configs, not secrets
    found = SPACE.legal(problem, H200)
    names, values = tuple(SPACE.parameters), tuple(SPACE.parameters.values())
    asked = [
        Config(tuple((name, draw.choice(kind)) for name, kind in zip(names, values, strict=True))) for _ in range(4000)
    ]
    assert {each for each in asked if SPACE.refusal(each, problem, H200) is None} <= set(found)
    assert all(SPACE.refusal(each, problem, H200) is None for each in found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    assert set(SPACE.reads) == set(SPACE.rules)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in WIDE.items() if name in names))
        assert SPACE.rules[reason](part, CUBE, H200)


@pytest.mark.parametrize(
    ("values", "device", "rule"),
    [
        ((64, 64, 32, 32, 16, 4, 1, 4, 1, 1, 1), replace(H200, architecture="sm_89"), "no tensor cores"),
        ((64, 64, 32, 32, 16, 4, 1, 4, 1, 1, 1), PROCESSOR, "no tensor cores"),
        ((32, 64, 64, 32, 16, 4, 1, 4, 1, 1, 1), H200, "a tile that is no multiple of its warps' tiles"),
        (
            (128, 128, 16, 32, 16, 4, 1, 4, 1, 1, 1),
            H200,
            "small warps' tiles for more than four warps, which load more than they multiply",
        ),
        (
            (32, 256, 16, 64, 16, 4, 1, 4, 1, 1, 1),
            H200,
            "small warps' tiles for more than four warps, which load more than they multiply",
        ),
        ((64, 64, 32, 32, 16, 8, 1, 4, 1, 1, 1), A100, "an instruction with more than 4 of k before sm_90"),
        ((64, 64, 32, 32, 16, 16, 1, 4, 1, 1, 1), H200, "AHEAD with an odd number of mma steps in a k tile"),
        ((32, 32, 32, 32, 16, 4, 1, 4, 1, 1, 1), H200, "fewer threads than keep an SM busy"),
        ((128, 128, 64, 64, 16, 4, 1, 4, 1, 1, 1), H200, "more registers a thread"),
        ((128, 128, 64, 32, 16, 8, 1, 4, 1, 1, 1), H200, "more registers a thread"),
        ((64, 64, 32, 32, 16, 4, 1, 4, 2, 1, 1), H200, "MIN_BLOCKS that does not limit registers"),
        ((64, 64, 32, 32, 16, 4, 1, 2, 1, 1, 1), H200, "stages of fewer than 48 of k, or more than 128"),
        ((128, 128, 64, 32, 32, 4, 0, 4, 1, 1, 1), H200, "more shared memory a block"),
        ((64, 64, 32, 32, 32, 4, 0, 3, 3, 1, 1), H200, "more blocks on an SM than its threads and shared memory allow"),
        ((128, 128, 64, 32, 16, 4, 0, 4, 1, 8, 1), H200, "grouped tiles, where all run at once"),
        ((64, 64, 32, 32, 16, 4, 1, 4, 1, 1, 8), H200, "more splits of k, where there are blocks enough"),
        ((256, 128, 64, 32, 16, 4, 0, 4, 1, 1, 1), H200, "more registers a thread"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(values: tuple[int, ...], device: Device, rule: str) -> None:
    refusal = SPACE.refusal(tile(*values), CUBE, device)
    assert refusal is not None
    assert refusal.startswith(rule)


def test_slices_that_are_empty_short_or_too_few_are_refused() -> None:
    def refusal(split: int, k: int) -> str | None:
        return SPACE.refusal(tile(64, 64, 32, 32, 16, 4, 1, 4, 1, 1, split), Problem(64, 64, k, dtype="float64"), H200)

    assert str(refusal(8, 256)).startswith("splits of k that are empty, or shorter than four k tiles")
    assert str(refusal(6, 16 * 32)).startswith("SMs left idle")
    assert refusal(8, 16 * 32) is None
    assert refusal(264, 131072) is None


@pytest.mark.parametrize(
    ("parts", "split", "size", "k", "device", "told"),
    [
        (4, 1, 64, 1024, H200, ""),
        (4, 1, 64, 1024, A100, "k shared out in clusters before sm_90"),
        (8, 1, 1024, 1024, H200, "k shared out in clusters before sm_90, or where blocks fill the SMs"),
        (4, 8, 64, 1024, H200, "k shared out in clusters and in splits"),
        (8, 1, 64, 9 * 16, H200, "k with too little for each block of a cluster"),
    ],
)
def test_clusters_share_a_long_k_of_few_tiles(
    parts: int, split: int, size: int, k: int, device: Device, told: str
) -> None:
    chosen = tile(64, 64, 32, 32, 16, 4, 1, 4, 1, 1, split, parts=parts)
    refused = SPACE.refusal(chosen, Problem(size, size, k, dtype="float64"), device)
    assert (refused or "").startswith(told)
    assert bool(refused) is bool(told)


def test_registers_are_those_of_sums_operands_and_addresses() -> None:
    chosen = tile(128, 128, 64, 32, 16, 4, 1, 4, 1, 1, 1)
    assert threads(chosen) == 256
    assert registers(chosen) == 2 * (64 * 32 + 2 * 4 * (64 + 32)) // 32 + 80
    streamed = tile(64, 128, 32, 32, 16, 8, 1, 5, 1, 1, 1, sms=132)
    assert registers(streamed) == 2 * (32 * 32 + 2 * 8 * (32 + 32)) // 32 + 80 + 28
    assert (register_limit(chosen, H200), register_limit(tile(64, 64, 32, 32, 16, 4, 1, 4, 3, 1, 1), H200)) == (
        255,
        168,
    )
    assert shared_bytes(chosen, CUBE) == 4 * 256 * 16 * 8


def test_only_architectures_with_these_tensor_cores_are_covered() -> None:
    small = Problem(16, 512, 512, dtype="float64")
    assert DOUBLE_TENSOR.covers(CUBE, H200)
    assert DOUBLE_TENSOR.covers(CUBE, A100)
    assert not DOUBLE_TENSOR.covers(CUBE, replace(H200, architecture="sm_120"))
    assert not DOUBLE_TENSOR.covers(CUBE, replace(PROCESSOR, architecture="sm_90"))
    assert not DOUBLE_TENSOR.covers(replace(CUBE, dtype="float32"), H200)
    assert not DOUBLE_TENSOR.covers(small, H200)


@pytest.mark.parametrize("size", [1, 64, 512, 1023, 1024, 2048, 4096, 8192])
@pytest.mark.usefixtures("uncorrected")
def test_defaults_are_legal_and_grow_with_the_shape(size: int) -> None:
    for device in (H200, A100):
        for problem in (Problem(size, size, size, dtype="float64"), Problem(64, size, 65536, dtype="float64")):
            assert SPACE.refusal(DOUBLE_TENSOR.default(problem, device), problem, device) is None
    chosen = DOUBLE_TENSOR.default(Problem(size, size, size, dtype="float64"), H200)
    tiles = -(-size // chosen["BM"]) * -(-size // chosen["BN"])
    assert tiles * chosen["SPLIT_K"] >= min(100, (size // 64) ** 2)
    assert chosen["BM"] * chosen["BN"] == 64 * 128 or size < 1023


@pytest.mark.usefixtures("uncorrected")
def test_default_has_small_tiles_where_large_ones_leave_sms_idle() -> None:
    """As 900 configs of ten shapes say, timed on an H200 (docs/kernel-log.md); or large ones share their k tiles."""
    for shape in ((131072, 64, 64), (768, 768, 768), (1000, 1200, 800), (256, 256, 8192)):
        chosen = DOUBLE_TENSOR.default(Problem(*shape, dtype="float64"), H200)
        assert chosen["BM"] * chosen["BN"] <= 64 * 64 or chosen["STREAM_K_SMS"], shape


@pytest.mark.parametrize("shape", [(1536, 1536, 1536), (11725, 74, 1917), (48, 11950, 2712), (543, 787, 10629)])
@pytest.mark.usefixtures("uncorrected")
def test_default_shares_k_tiles_where_tiles_leave_a_wave_half_empty(shape: tuple[int, int, int]) -> None:
    """Which took 0.85 to 0.96 of the time of the best config without, timed on an H200 (docs/kernel-log.md)."""
    problem = Problem(*shape, dtype="float64")
    assert DOUBLE_TENSOR.default(problem, H200)["STREAM_K_SMS"] == 132
    assert DOUBLE_TENSOR.default(replace(problem, m=8192, n=8192, k=1024), H200)["STREAM_K_SMS"] == 0


def test_defaults_take_instructions_8_deep_where_the_architecture_has_them() -> None:
    large = Problem(8192, 8192, 8192, dtype="float64")
    assert DOUBLE_TENSOR.default(large, H200)["MMA_K"] == 8
    assert DOUBLE_TENSOR.default(large, A100)["MMA_K"] == 4


@pytest.mark.parametrize(("trans_a", "trans_b", "sides"), [(0, 0, (64, 128)), (0, 1, (64, 128)), (1, 1, (128, 64))])
@pytest.mark.usefixtures("uncorrected")
def test_default_tile_is_longer_along_cs_side_in_memory(trans_a: int, trans_b: int, sides: tuple[int, int]) -> None:
    problem = Problem(2049, 2049, 2049, dtype="float64", trans_a=bool(trans_a), trans_b=bool(trans_b))
    chosen = DOUBLE_TENSOR.default(problem, H200)
    assert (chosen["BM"], chosen["BN"]) == sides


@pytest.mark.parametrize(("trans_a", "trans_b", "stages"), [(0, 0, 3), (1, 0, 3), (0, 1, 5), (1, 1, 5)])
@pytest.mark.usefixtures("uncorrected")
def test_default_tile_of_large_products_of_whole_rows_is_higher_than_wide(
    trans_a: int, trans_b: int, stages: int
) -> None:
    """By 2 to 7 % of the other's time, none if B alone is transposed, timed on an H200 (docs/kernel-log.md)."""
    problem = Problem(2048, 2048, 2048, dtype="float64", trans_a=bool(trans_a), trans_b=bool(trans_b))
    chosen = DOUBLE_TENSOR.default(problem, H200)
    assert (chosen["BM"], chosen["BN"], chosen["STAGES"]) == (128, 64, stages)


@pytest.mark.parametrize(("k", "legal"), [(256, True), (512, True), (528, False)])
def test_a_short_k_need_not_be_sliced_to_use_all_sms(k: int, legal: bool) -> None:
    whole = tile(32, 32, 16, 16, 32, 8, 1, 4, 1, 1, 1)
    refused = SPACE.refusal(whole, Problem(256, 256, k, dtype="float64"), H200)
    assert (refused is None) is legal
    assert legal or str(refused).startswith("SMs left idle")


def test_config_of_another_problem_is_still_right() -> None:
    launch = DOUBLE_TENSOR.launch(
        tile(64, 64, 32, 32, 16, 4, 1, 4, 1, 1, 66), Problem(64, 64, 4096, dtype="float64"), H200
    )
    assert (launch.grid, launch.scalars[:4]) == (64, (1, 64, 8, 4))
    assert launch.workspace_bytes == 4 * COUNTERS + 64 * 64 * 64 * 8
    short = DOUBLE_TENSOR.for_problem(launch, Problem(64, 64, 40, dtype="float64"))
    assert (short.grid, short.scalars[:4]) == (3, (1, 3, 2, 1))
    many = DOUBLE_TENSOR.for_problem(launch, Problem(8192, 8192, 4096, dtype="float64"))
    assert (many.grid, many.scalars[:4], many.workspace_bytes) == (128 * 128, (1, 1, 1, 256), 0)


COMPILED = [
    (architecture, size, turned)
    for architecture in sorted(DEVICES)
    for size in (64, 512, 1024, 4096)
    for turned in TRANSPOSITIONS
]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "size", "turned"), COMPILED)
def test_defaults_compile_and_spill_nothing(
    architecture: str, size: int, turned: tuple[bool, bool], tmp_path: Path
) -> None:
    device = DEVICES[architecture]
    problem = transposed("float64", *turned, size, size, 1024)
    check_compiled(DOUBLE_TENSOR.default(problem, device), problem, device, tmp_path)


@pytest.mark.rotating
@pytest.mark.parametrize("architecture", sorted(DEVICES))
@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_whatever_the_rules_leave_compiles_and_spills_nothing(architecture: str, count: int, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    for chosen in draw.sample(SPACE.legal(CUBE, DEVICES[architecture]), share_of(count)):
        problem = transposed("float64", *draw.choice(TRANSPOSITIONS), 1024, 1024, 1024)
        check_compiled(chosen, problem, DEVICES[architecture], tmp_path)


def check_compiled(chosen: Config, problem: Problem, device: Device, cache: Path) -> None:
    launch = DOUBLE_TENSOR.launch(chosen, problem, device)
    cubin = cuda.compile_cubin(launch.build, device.architecture, cache)
    assert cubin.spills == 0, (chosen, problem.key)
    assert cubin.registers <= register_limit(chosen, device), (chosen, problem.key)


# Rows of whole 16 bytes and not, tiles that are whole and not, one phase and several, bases that are aligned and not.
CASES = [
    pytest.param(SMALL, H200, TRANSPOSITIONS[0], (33, 37, 21), 2, 0, id="sm_90-nn"),
    pytest.param(SMALL, H200, TRANSPOSITIONS[1], (40, 30, 38), 1, 8, id="sm_90-nt-shifted"),
    pytest.param(SMALL, H200, TRANSPOSITIONS[2], (34, 36, 66), 1, 0, id="sm_90-tn"),
    pytest.param(SMALL, H200, TRANSPOSITIONS[3], (31, 66, 50), 1, 0, id="sm_90-tt"),
    pytest.param(WIDE, A100, TRANSPOSITIONS[0], (66, 34, 50), 1, 0, id="sm_80-nn"),
    pytest.param(WIDE, A100, TRANSPOSITIONS[3], (65, 31, 33), 1, 8, id="sm_80-tt-shifted"),
    pytest.param(WIDE, H200, TRANSPOSITIONS[2], (64, 32, 1), 3, 0, id="sm_90-tn-batch"),
    pytest.param(
        tile(64, 32, 32, 16, 32, 16, 0, 3, 1, 1, 1), H200, TRANSPOSITIONS[1], (60, 36, 70), 1, 0, id="sm_90-nt-deep"
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 4, 0, 4, 1, 1, 6), H200, TRANSPOSITIONS[0], (31, 30, 500), 1, 0, id="sm_90-nn-sliced"
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 8, 1, 4, 1, 8, 1),
        replace(H200, limits=replace(H200.limits, sms=4)),
        TRANSPOSITIONS[0],
        (290, 34, 8),
        1,
        0,
        id="sm_90-nn-grouped",
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 16, 0, 4, 1, 1, 1, parts=2),
        H200,
        TRANSPOSITIONS[1],
        (40, 30, 101),
        2,
        0,
        id="sm_90-nt-cluster",
    ),
    pytest.param(
        tile(64, 32, 64, 32, 16, 8, 1, 3, 1, 1, 1, parts=4),
        H200,
        TRANSPOSITIONS[0],
        (60, 31, 200),
        1,
        8,
        id="sm_90-nn-cluster",
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 4, 1, 3, 1, 1, 1, parts=8), H200, TRANSPOSITIONS[3], (33, 30, 40), 1, 0, id="short"
    ),
    # Five tiles of three blocks, of which each has one whole, and the rest in parts; then fewer tiles than blocks.
    pytest.param(
        tile(32, 32, 16, 16, 16, 8, 1, 3, 1, 1, 1, sms=3),
        H200,
        TRANSPOSITIONS[0],
        (150, 30, 100),
        1,
        0,
        id="sm_90-nn-stream-k",
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 4, 0, 3, 2, 1, 1, sms=2),
        H200,
        TRANSPOSITIONS[2],
        (31, 33, 97),
        1,
        8,
        id="sm_90-tn-stream-k-few",
    ),
    pytest.param(
        tile(32, 32, 16, 16, 16, 16, 0, 4, 1, 8, 1, sms=2),
        H200,
        TRANSPOSITIONS[3],
        (97, 64, 70),
        2,
        0,
        id="sm_90-tt-stream-k-batch",
    ),
]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("chosen", "device", "turned", "shape", "batch", "shift"), CASES)
def test_integer_products_are_exact_without_bank_conflicts(
    chosen: Config, device: Device, turned: tuple[bool, bool], shape: tuple[int, int, int], batch: int, shift: int
) -> None:
    problem = replace(transposed("float64", *turned, *shape), batch=batch)
    launch = DOUBLE_TENSOR.for_problem(DOUBLE_TENSOR.launch(SMALL, replace(CUBE, k=64), H200), problem)
    launch = DOUBLE_TENSOR.for_problem(replace(launch, config=chosen), problem)
    macros = tuple((name, str(value)) for name, value in chosen.items() if name not in DOUBLE_TENSOR.arguments)
    turns = tuple(zip(("TRANS_A", "TRANS_B"), (str(int(each)) for each in turned), strict=True))
    launch = replace(launch, build=replace(launch.build, macros=(*macros, ("DTYPE_FLOAT64", "1"), *turns)))
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, conflicts = interpreted(launch, a, b, device, shift)
    assert np.array_equal(c, reference(problem, a, b))
    assert conflicts == 0
    assert launch.scalars[1] == chosen["SPLIT_K"]


def test_the_interpreter_sees_reads_that_meet_on_a_bank() -> None:
    launch = DOUBLE_TENSOR.launch(SMALL, Problem(32, 32, 16, dtype="float64"), H200)
    plain = launch.build.text.replace("((x) ^ ((line) & 3) << 2)", "(x)")
    assert plain != launch.build.text
    a, b = operands(launch.problem, np.random.default_rng(11), integers=True)
    c, conflicts = interpreted(replace(launch, build=replace(launch.build, text=plain)), a, b, H200)
    assert np.array_equal(c, reference(launch.problem, a, b))
    assert conflicts > 0


def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity() -> None:
    expect_nan_in_its_row_alone(DOUBLE_TENSOR.launch(SMALL, Problem(33, 17, 19, dtype="float64"), H200))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from opened(tmp_path_factory.mktemp("cache"), DEVICES)


@pytest.mark.cuda
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_random_configs_are_exact_and_accurate_on_a_gpu(gpu: Any, turned: tuple[bool, bool]) -> None:
    shapes = ((1, 1, 1), (65, 130, 7), (129, 127, 1000), (64, 66, 5000), (300, 200, 64))
    expect_exact_and_accurate(gpu, DOUBLE_TENSOR, turned, shapes, in_turn_and_a_tenth)


def in_turn_and_a_tenth(problem: Problem, a: Array, b: Array, wide: Array) -> float:
    """The norm of the error of products added one after the other, and a tenth of it."""
    return 1.1 * float(np.linalg.norm((in_turn(problem, a, b) - wide).ravel())) + 1e-300


def in_turn(problem: Problem, a: Array, b: Array) -> Array:
    """Products added one after the other, each with one rounding: sums of long doubles, rounded each time."""
    left = (a.swapaxes(1, 2) if problem.trans_a else a).astype(np.longdouble)
    right = (b.swapaxes(1, 2) if problem.trans_b else b).astype(np.longdouble)
    sums = np.zeros((problem.batch, problem.m, problem.n))
    for q in range(problem.k):
        sums = (sums + left[:, :, q, None] * right[:, None, q]).astype(np.float64)
    return sums
