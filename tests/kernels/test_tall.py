"""tall: right on the processor, compiled without spills, and the arithmetic of its tiles, runs, banks and defaults."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config
from kernels.tall import TALL
from kernels.tall.plan import (
    TILES,
    blocks,
    depth,
    registers,
    shared_bytes,
    short_and_long_tile,
    streams_k_major,
    threads,
    tiles_per_block,
    warp_long,
)
from kernels.tall.space import SPACE
from tests.support.kernels.devices import DTYPES, H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import compiled, multiplied, operands, queue, reference
from tests.support.pairwise import crossed
from tests.support.shares import share_of

PRECISION = {"float32": 1e-6, "float64": 2e-15}
LONG, THIN, DEEP = (131072, 64, 64), (262144, 16, 32), (65536, 128, 512)
TURING = replace(H200, architecture="sm_75", limits=replace(H200.limits, shared_bytes=2**16, shared_bytes_per_sm=2**16))


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


def sized(
    shape: tuple[int, int, int], dtype: str = "float32", *, turned: tuple[bool, bool] = (False, False)
) -> Problem:
    return Problem(*shape, dtype=dtype, trans_a=turned[0], trans_b=turned[1])


def flipped(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return shape[1], shape[0], shape[2]


@pytest.mark.rotating
@crossed(keep_a=(0, 1), dtype=DTYPES, trans_a=(False, True), trans_b=(False, True))
def test_both_sides_multiply_ragged_batches_nan_and_infinity(
    keep_a: int, dtype: str, *, trans_a: bool, trans_b: bool
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    large = (128, 16) if not keep_a else (16, 128)
    base = sized((4096, 16, 20) if not keep_a else (16, 4096, 20), dtype, turned=(trans_a, trans_b))
    few = replace(PROCESSOR, limits=replace(PROCESSOR.limits, sms=12))
    launch = TALL.launch(tile(keep_a, *large, 4, 4, 1, 3, 32, 16, 1), base, few)
    kernel = compiled(launch.build)
    # The last ones are deeper than what is kept, wider than a piece, and of the other side.
    for long, short, k, batch in ((500, 16, 20, 1), (1, 1, 1, 1), (385, 13, 33, 3), (260, 35, 70, 2), (20, 300, 9, 1)):
        m, n = (short, long) if keep_a else (long, short)
        problem = replace(base, m=m, n=n, k=k, batch=batch)
        a, b = operands(problem, rng, integers=True)
        c = multiplied(kernel, TALL.for_problem(launch, problem), a, b)
        assert (c == reference(problem, a, b)).all(), problem.key
    problem = replace(base, m=300, n=17, k=40, batch=2)
    a, b = operands(problem, rng)
    exact, c = reference(problem, a, b), multiplied(kernel, TALL.for_problem(launch, problem), a, b)
    assert np.linalg.norm((c - exact).ravel()) / np.linalg.norm(exact.ravel()) < PRECISION[dtype]
    (a.swapaxes(1, 2) if problem.trans_a else a)[1, 299, 39] = np.nan
    c = multiplied(kernel, TALL.for_problem(launch, problem), a, b)
    assert np.isnan(c[1, 299]).all()
    assert np.isfinite(np.delete(c.reshape(-1, 17), 599, axis=0)).all(), "NaN went astray"
    c = multiplied(kernel, TALL.for_problem(launch, problem), np.ones_like(a), np.full_like(b, np.inf))
    assert (c == np.inf).all(), "the padding made NaN of infinity"


def right_around_its_own_edges(dtype: str, draw: random.Random, rng: np.random.Generator) -> None:
    shape = draw.choice((LONG, THIN, (65536, 128, 100), (4096, 5, 3), (10000, 40, 17)))
    shape = flipped(shape) if draw.random() < 0.5 else shape
    base = sized(shape, dtype, turned=draw.choice(TRANSPOSITIONS))
    chosen = draw.choice(SPACE.legal(base, PROCESSOR))
    launch = TALL.launch(chosen, base, PROCESSOR)
    kernel = compiled(launch.build)
    bm, bn, bk = chosen["BM"], chosen["BN"], chosen["BK"]
    for m, n, k in ((bm + 1, 2 * bn - 1, bk + 1), (3 * bm - 4, bn + 4, 2 * bk), (bm, 5 * bn, 4)):
        problem = replace(base, m=m, n=n, k=k, batch=draw.choice((1, 2)))
        a, b = operands(problem, rng, integers=True)
        c = multiplied(kernel, TALL.for_problem(launch, problem), a, b)
        assert (c == reference(problem, a, b)).all(), (chosen, problem.key)


@pytest.mark.slow
def test_any_legal_config_is_right_around_its_own_edges() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    queue()
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    right_around_its_own_edges(draw.choice(DTYPES), draw, np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_legal_configs_are_right_around_their_own_edges(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    queue()
    draw, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - configs, not secrets
    for _ in range(share_of(15)):
        right_around_its_own_edges(dtype, draw, rng)


def compiles(chosen: Config, problem: Problem, architecture: str, directory: Path) -> None:
    """With no spills, and with no more registers than let an SM hold MIN_BLOCKS blocks."""
    cuda = pytest.importorskip("app.devices.cuda")
    launch = TALL.launch(chosen, problem, replace(H200, architecture=architecture))
    cubin = cuda.compile_cubin(launch.build, architecture, directory)
    assert cubin.spills == 0, (chosen, problem.key, architecture)
    assert cubin.registers * launch.threads * chosen["MIN_BLOCKS"] <= 65536, (chosen, problem.key, architecture)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), [("sm_80", "float64"), ("sm_90", "float32")])
def test_a_default_and_a_config_at_random_compile_and_spill_nothing(
    architecture: str, dtype: str, tmp_path: Path
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    device = replace(H200, architecture=architecture)
    shape = draw.choice((LONG, THIN, DEEP, flipped(LONG), flipped(DEEP)))
    problem = sized(shape, dtype, turned=draw.choice(TRANSPOSITIONS))
    compiles(TALL.default(problem, device), problem, architecture, tmp_path)
    compiles(draw.choice(SPACE.legal(problem, device)), problem, architecture, tmp_path)


def test_where_nothing_is_copied_asynchronously_a_default_compiles_too(tmp_path: Path) -> None:
    compiles(TALL.default(sized(LONG), TURING), sized(LONG), "sm_75", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_whatever_the_rules_leave_compiles_and_spills_nothing(architecture: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    for _ in range(share_of(30)):
        shape = draw.choice((LONG, THIN, DEEP, (100000, 33, 100), (50000, 8, 16)))
        shape = flipped(shape) if draw.random() < 0.5 else shape
        problem = sized(shape, draw.choice(DTYPES), turned=draw.choice(TRANSPOSITIONS))
        chosen = draw.choice(SPACE.legal(problem, replace(H200, architecture=architecture)))
        compiles(chosen, problem, architecture, tmp_path)


@pytest.mark.parametrize(
    ("shape", "suited"),
    [
        (LONG, True),
        (flipped(THIN), True),
        (DEEP, True),
        ((2048, 1, 1), True),
        ((1024, 8, 8), False),
        ((65536, 129, 64), False),
        ((65536, 64, 513), False),
        ((2048, 130, 130), False),
        ((4096, 128, 512), False),
    ],
)
def test_it_is_for_a_long_side_a_short_one_and_little_of_k(shape: tuple[int, int, int], suited: bool) -> None:
    assert TALL.covers(Problem(*shape), H200) == suited


@pytest.mark.rotating
@pytest.mark.parametrize("device", [H200, TURING, PROCESSOR], ids=["sm_90", "sm_75", "opencl"])
def test_building_configs_up_finds_what_asking_each_one_finds(device: Device) -> None:
    problem = sized(flipped((300000, 33, 100)), "float64", turned=(True, False))
    found = SPACE.legal(problem, device)
    assert len(found) >= (100 if device is H200 else 10)
    assert all(SPACE.refusal(each, problem, device) is None for each in found)
    some = random.Random(len(found))  # noqa: S311 - configs, not secrets
    asked = [SPACE.config({name: some.choice(of) for name, of in SPACE.parameters.items()}) for _ in range(20000)]
    assert {each for each in asked if SPACE.refusal(each, problem, device) is None} <= set(found)


def test_the_space_is_rich_on_each_shape() -> None:
    for shape in (LONG, THIN, DEEP, flipped(LONG)):
        found = SPACE.legal(sized(shape), H200)
        assert 500 <= len(found) <= 5000, shape


def test_a_rule_reads_no_more_than_it_says() -> None:
    whole = tile(0, 256, 64, 8, 8, 1, 4, 64, 32, 3)
    assert set(SPACE.reads) == set(SPACE.rules)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in whole.items() if name in names))
        assert SPACE.rules[reason](part, sized(LONG), H200)


@pytest.mark.parametrize(
    ("values", "device", "rule"),
    [
        ((1, 64, 256, 8, 8, 1, 4, 64, 32, 3), H200, "the large operand kept"),
        (
            (0, 256, 128, 8, 8, 1, 4, 64, 32, 3),
            H200,
            "a tile at least twice as long as the short side, or that covers too little of it",
        ),
        (
            (0, 256, 16, 8, 8, 1, 4, 64, 32, 3),
            H200,
            "a tile at least twice as long as the short side, or that covers too little of it",
        ),
        ((0, 1024, 64, 4, 4, 1, 4, 64, 32, 3), H200, "fewer threads a block than a warp has"),
        ((0, 8, 64, 8, 8, 1, 4, 64, 32, 3), H200, "fewer threads a block than a warp has"),
        ((0, 16, 64, 16, 8, 1, 4, 64, 32, 3), PROCESSOR, "fewer threads a block than a warp has"),
        (
            (0, 32, 64, 8, 8, 1, 4, 64, 32, 3),
            H200,
            "fewer warps an SM than it has partitions, or MIN_BLOCKS where there are no SMs",
        ),
        (
            (0, 32, 64, 8, 8, 2, 1024, 64, 32, 1),
            PROCESSOR,
            "fewer warps an SM than it has partitions, or MIN_BLOCKS where there are no SMs",
        ),
        ((0, 256, 64, 8, 8, 1, 32, 64, 32, 3), H200, "TILES that"),
        ((0, 256, 64, 8, 8, 1, 3, 64, 32, 3), H200, "TILES that"),
        (
            (0, 256, 64, 8, 8, 1, 4, 128, 32, 3),
            H200,
            "a DEPTH other than the least that holds all of k, or the most that fits",
        ),
        (
            (0, 256, 64, 8, 8, 1, 4, 64, 32, 1),
            H200,
            "one stage where copies are asynchronous, or more where they are not",
        ),
        (
            (0, 256, 64, 8, 8, 1, 4, 64, 32, 3),
            TURING,
            "one stage where copies are asynchronous, or more where they are not",
        ),
        ((0, 256, 64, 8, 8, 1, 4, 64, 64, 4), H200, "more shared memory a block"),
        ((0, 512, 64, 16, 16, 1, 2, 64, 16, 3), H200, "more registers a thread"),
        ((0, 256, 64, 8, 8, 2, 2, 64, 32, 2), H200, "more registers a thread"),
        ((0, 128, 64, 8, 8, 2, 4, 64, 64, 4), H200, "more blocks on an SM than its threads and shared memory allow"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(values: tuple[int, ...], device: Device, rule: str) -> None:
    refusal = SPACE.refusal(tile(*values), sized(LONG), device)
    assert refusal is not None
    assert refusal.startswith(rule)


def test_shared_bytes_registers_and_blocks_are_counted_as_by_hand() -> None:
    each, problem = tile(0, 256, 64, 8, 8, 1, 4, 64, 32, 3), sized(LONG)
    # Eight warps, each with three phases of 32 rows of 32, padded by 4; and 64 x 64 that are kept.
    assert (threads(each), warp_long(each), short_and_long_tile(each)) == (256, 32, (64, 256))
    assert shared_bytes(each, problem) == 4 * (64 * 64 + 8 * 3 * 32 * 36)
    assert shared_bytes(each, sized(LONG, turned=(True, True))) == 4 * (64 * 68 + 8 * 3 * 32 * 32)
    wide, mirrored = tile(1, 64, 256, 8, 8, 1, 4, 64, 32, 3), sized(flipped(LONG), turned=(False, True))
    assert shared_bytes(wide, mirrored) == 4 * (64 * 68 + 8 * 3 * (32 * 32 + 8 * 4))
    assert registers(each, problem) == 64 + 2 * (8 + 32) + 30
    assert registers(wide, sized(flipped(LONG))) == 64 + 2 * (8 + 8) + 30 + 30 + 16
    assert blocks(each, replace(problem, n=65, batch=3), 4) == 3 * 2 * 128
    launch = TALL.launch(each, problem, H200)
    assert (launch.grid, launch.block, launch.scalars[:1], launch.workspace_bytes) == (128, (256, 1), (4,), 0)
    assert launch.dynamic_smem_bytes == shared_bytes(each, problem)
    assert "TILES" not in dict(launch.build.macros)


def test_runs_of_tiles_fill_the_sms_and_are_few() -> None:
    assert tiles_per_block(512, 1, 132)[0] == 4  # 128 blocks of four; three each would be 171 blocks, in two goes
    assert tiles_per_block(1024, 1, 264)[0] == 4
    assert tiles_per_block(100, 1, 132) == (1,)
    for tiles, others, room in ((39063, 1, 132), (512, 2, 132), (7, 300, 2), (10**6, 1, 132)):
        best = min(-(-others * -(-tiles // each) // room) * each for each in TILES)
        for each in tiles_per_block(tiles, others, room):
            assert -(-others * -(-tiles // each) // room) * each <= 1.1 * best


def test_all_of_k_is_kept_where_it_fits_and_otherwise_what_leaves_room() -> None:
    assert [depth(64, Problem(4096, 64, k), H200) for k in (1, 16, 17, 64, 100, 512)] == [16, 16, 32, 64, 128, 512]
    assert depth(128, Problem(65536, 128, 512), H200) == 256
    assert depth(64, Problem(65536, 64, 512, dtype="float64"), H200) == 256
    assert depth(64, Problem(65536, 64, 512), TURING) == 64


def test_defaults_keep_all_of_k_and_fill_the_device() -> None:
    def default(shape: tuple[int, int, int], device: Device = H200) -> Config:
        return TALL.default(sized(shape), device)

    assert default(LONG) == tile(0, 256, 64, 8, 8, 1, 4, 64, 16, 4)
    assert default(flipped(LONG)) == tile(1, 64, 256, 8, 8, 1, 4, 64, 16, 4)
    assert default(THIN) == tile(0, 256, 16, 4, 4, 2, 4, 32, 32, 3)
    assert (default(DEEP)["DEPTH"], default(DEEP)["BN"]) == (512, 64)
    assert (default(LONG, TURING)["STAGES"], default(LONG, PROCESSOR)["STAGES"]) == (1, 1)
    few = default((16384, 64, 64))
    assert TALL.launch(few, sized((16384, 64, 64)), H200).grid >= 0.9 * 132


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_is_legal_for_any_suitable_shape_and_limits(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    for _ in range(100):
        short, long, k = draw.randint(1, 128), draw.randint(2048, 10**6), draw.randint(1, 512)
        problem = sized((short, long, k) if draw.random() < 0.5 else (long, short, k), dtype)
        device = draw.choice((H200, TURING, PROCESSOR))
        device = replace(device, limits=replace(device.limits, sms=draw.choice((1, 2, 40, 108, 142))))
        assert SPACE.refusal(TALL.default(problem, device), problem, device) is None, (problem.key, device.limits)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_a_quarter_of_a_warp_reads_both_operands_from_banks_of_their_own(dtype: str, turned: tuple[bool, bool]) -> None:
    for shape in (LONG, THIN, flipped(LONG), flipped(DEEP)):
        problem = sized(shape, dtype, turned=turned)
        for chosen in {narrowed(each) for each in SPACE.legal(problem, H200)}:
            small, large = packs(dict(chosen), problem)
            for start in (0, 8, 16, 24):
                assert ways(small[start : start + 8]) == 1, chosen
                assert ways(large[start : start + 8]) <= (2 if problem.itemsize == 8 else 1), chosen


def narrowed(config: Config) -> tuple[tuple[str, int], ...]:
    return tuple((name, config[name]) for name in ("KEEP_A", "BM", "BN", "TM", "TN", "BK"))


def packs(each: dict[str, int], problem: Problem) -> tuple[list[int], list[int]]:
    """Which 16 bytes of the small operand and of the large one each lane reads, as MY_S and MY_L of tall/kernel.cu."""
    keep_a, wide = each["KEEP_A"], 16 // problem.itemsize
    short, ts = (each["BM"], each["TM"]) if keep_a else (each["BN"], each["TN"])
    lanes = short // ts
    pair = 2 if lanes < 32 else 1
    deep = streams_k_major(Config.of(each), problem)
    own = [lane % pair + lane // (pair * lanes) * pair for lane in range(32)]
    rows = [place * (wide if keep_a else 1) for place in own]
    along = [(row * each["BK"] + (row // wide if keep_a else row) * wide) // wide for row in rows]
    return [lane // pair % lanes for lane in range(32)], along if deep else own


def ways(places: list[int]) -> int:
    """How many different packs the busiest of the eight sets of banks is asked for."""
    banks = [place % 8 for place in set(places)]
    return max(banks.count(bank) for bank in banks)
