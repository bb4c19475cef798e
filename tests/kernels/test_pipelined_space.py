"""pipelined: how large its space is, what refuses what, its defaults, and what a launch of it is made of."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace

import pytest

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.pipelined import PIPELINED
from kernels.pipelined.plan import copies, cp_sizes, partials_lines, plan, registers
from kernels.pipelined.space import BITS, SPACE
from kernels.problem import Problem
from kernels.register_tiled.plan import register_limit, shared_bytes
from kernels.rules import blocks
from kernels.space import Config
from kernels.split_k import MOST_REDUCERS, REDUCE_THREADS, k_tiles
from kernels.stream_k import MOST_PARTIALS, stream_k_schedule
from tests.support.kernels.devices import H200, TRANSPOSITIONS, transposed
from tests.support.kernels.pipelined_configs import (
    A100,
    BARS,
    CUBE,
    DEVICES,
    LARGE,
    LINES,
    NARROW,
    SMALL,
    WIDE,
    planned,
    streamed,
    tile,
)


@pytest.mark.rotating
def test_the_space_is_rich() -> None:
    for shape in ((1024, 1024, 1024), (512, 512, 512), (32, 1024, 32768), (256, 256, 16384)):
        assert 2000 <= len(SPACE.legal(Problem(*shape), H200)) < 30_000, shape
    assert len(SPACE.legal(Problem(16, 8192, 8192), H200)) < 30_000


@pytest.mark.rotating
def test_building_configs_up_finds_what_asking_each_one_finds() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, problem = random.Random(seed), Problem(300, 201, 300, trans_a=True)  # noqa: S311 - configs, not secrets
    kinds = dict(SPACE.parameters) | {"STREAM_K_SMS": (0, H200.limits.sms)}
    found = SPACE.legal(problem, H200)
    # Of what is found, two parameters anew: of configs drawn at random hardly one of 100,000 is legal.
    changed = [{name: draw.choice(kinds[name]) for name in draw.sample(sorted(kinds), 2)} for _ in range(20_000)]
    drawn = [SPACE.config(dict(draw.choice(found)) | each) for each in changed]
    asked = [each for each in drawn if SPACE.refusal(each, problem, H200) is None]
    assert asked
    assert set(asked) <= set(found)
    assert all(SPACE.refusal(each, problem, H200) is None for each in found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    whole = tile(CP_SIZE_A=4)
    assert set(SPACE.reads) == set(SPACE.rules)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in whole.items() if name in names))
        assert SPACE.rules[reason](part, Problem(256, 256, 256), H200), reason


BLACKWELL = replace(H200, architecture="sm_100")
RAGGED, TURNED = Problem(1023, 1023, 1023), replace(CUBE, trans_b=True)
LARGER_COPIES = "copies of a size that does not divide an operand's rows"
SMALLER_COPIES = "copies of less than the largest size that divides an operand's rows"
REFUSED = [
    (tile(BM=256, BN=256), CUBE, H200, "fewer threads a block than a warp has"),
    (tile(TM=8, TN=8, WN=64), CUBE, H200, "a tile that is no multiple of its warps' tiles"),
    (tile(LARGE, BN=128, TM=16, TN=4, WN=16), CUBE, H200, "a warp's tile more than four times as long as wide"),
    (tile(BK=64), CUBE, H200, "a slice of the k tile that is too short, or too long"),
    (tile(LARGE, SLICE_K=2, BK=8), CUBE, H200, "a slice of the k tile that is too short, or too long"),
    (
        tile(BM=48, BN=64, TM=12, WN=32, BK=8),
        replace(CUBE, trans_a=True),
        H200,
        "copies that do not divide evenly among the threads",
    ),
    (tile(BM=48, TM=12, WN=32), replace(CUBE, m=60), H200, "a side of 48, 96 or 192 that reaches further past C"),
    (tile(BM=256, BN=48, TN=12, WN=48), TURNED, H200, "rounds of copies that do not lie alike"),
    (tile(LINES, BM=96, BN=96, TN=12, WN=96, SLICE_K=2, BK=16), TURNED, H200, "rounds of copies that do not lie alike"),
    (tile(LINES), CUBE, H200, "K-major tiles, where an operand is MN-major or packed"),
    (tile(LINES), replace(TURNED, k=1023), H200, "K-major tiles, where copies have 4 bytes"),
    (tile(LINES, SLICE_K=1), TURNED, H200, "K-major tiles, where no threads share k"),
    (tile(LARGE, TM=16, TN=16), CUBE, H200, "more registers a thread"),
    (tile(LARGE, BM=256), CUBE, H200, "more registers a thread"),
    (tile(LARGE), CUBE, A100, "more accumulators a thread than stay in registers before sm_90"),
    (
        tile(LARGE, BN=128, TN=8, WN=64, MIN_BLOCKS=2),
        CUBE,
        A100,
        "more accumulators a thread than leave registers for the rest",
    ),
    (
        tile(LARGE, BN=128, BM=256, TN=8, WN=64),
        Problem(4096, 4096, 4096),
        A100,
        "more accumulators a thread than leave registers for the rest",
    ),
    (
        tile(LARGE, TN=8, WN=64),
        Problem(4096, 4096, 4096),
        BLACKWELL,
        "more accumulators a thread than leave registers for the rest",
    ),
    (tile(BM=64, TM=8, TN=8, WN=32, BK=32), RAGGED, H200, "more copies a thread"),
    (tile(BM=64, BN=64, TM=8, TN=8, WN=32), TURNED, H200, "copies whose addresses take"),
    (tile(BM=256, TM=16, TN=8, WN=32, PACK_MN=1, BK=32, STAGE_C=1), RAGGED, H200, "copies whose addresses take"),
    (tile(MIN_BLOCKS=2), CUBE, H200, "MIN_BLOCKS that does not limit registers"),
    (
        tile(BM=64, BN=64, TM=8, WN=64, MIN_BLOCKS=4),
        CUBE,
        H200,
        "MIN_BLOCKS of no more blocks than fit without",
    ),
    (
        tile(LARGE, TN=8, WN=64, BN=128, BK=32, MIN_BLOCKS=2),
        CUBE,
        H200,
        "more blocks on an SM than its threads and shared memory allow",
    ),
    (tile(LARGE, BN=128, TN=8, WN=64, BK=64, SLICE_K=2), CUBE, H200, "more shared memory a block"),
    (tile(**WIDE), CUBE, H200, LARGER_COPIES),
    (tile(**NARROW), CUBE, H200, SMALLER_COPIES),
    (tile(**NARROW, PACK_MN=1), RAGGED, H200, SMALLER_COPIES),
    (tile(CP_SIZE_A=8, CP_SIZE_B=16), replace(CUBE, m=1022, n=1022, trans_a=True), H200, LARGER_COPIES),
    (
        tile(LARGE, STAGE_C=1),
        Problem(2048, 2048, 2048),
        H200,
        "C through shared memory, where its rows are whole 16 bytes",
    ),
    (tile(STAGE_C=1), RAGGED, H200, "C through shared memory, where a tile is small"),
    (
        tile(LARGE),
        Problem(2047, 2047, 2047),
        H200,
        "C past shared memory, where a tile is large and C's rows are not",
    ),
    (tile(PACK_MN=1), replace(CUBE, trans_a=True), H200, "packing of operands that need none"),
    (tile(LARGE, PACK_MN=1), Problem(2**15, 2**15 + 1, 2**13), H200, "packed operands of more than 1 GiB"),
    (tile(PACK_MN=1), Problem(8191, 16, 8191), H200, "packing that takes too long beside the product"),
    (tile(LARGE, BN=128, TN=8, WN=64, GROUP_M=8), CUBE, H200, "grouped tiles, where all run at once"),
    (tile(SPLIT_K=6), CUBE, H200, "more splits of k, where there are blocks enough"),
    (tile(SPLIT_K=6), Problem(64, 64, 21 * 16), H200, "SMs left idle"),
    (tile(CLUSTER_K=2), CUBE, H200, "k shared out in clusters before sm_90, or where blocks fill the SMs"),
    (tile(CLUSTER_K=4), Problem(64, 64, 21 * 16), A100, "k shared out in clusters before sm_90"),
    (tile(CLUSTER_K=4, SPLIT_K=2), Problem(64, 64, 1024), H200, "k shared out in clusters and in splits"),
    (tile(CLUSTER_K=8, **NARROW), Problem(64, 64, 9 * 16), H200, "k with too little for each block of a cluster"),
    (tile(SPLIT_K=16), Problem(64, 64, 21 * 16), H200, "splits of k no shorter than fewer of them"),
    (tile(SPLIT_K=22), Problem(64, 64, 22 * 16), H200, "splits of k shorter than two k tiles"),
    (tile(LARGE, STREAM_K_SMS=108), CUBE, H200, "stream-K over a number of SMs other than the device's"),
    (tile(LARGE, STREAM_K_SMS=132, SPLIT_K=2), CUBE, H200, "stream-K and split k at once"),
    (tile(STREAM_K_SMS=132), CUBE, H200, "stream-K with small tiles, or other than 256 threads an SM"),
    (tile(LARGE, STREAM_K_SMS=132, BK=32), CUBE, H200, "stream-K with k tiles longer than it needs"),
    (
        tile(LARGE, STREAM_K_SMS=132, PACK_MN=1, STAGE_C=1),
        Problem(1535, 1535, 1535),
        H200,
        "stream-K of packed operands, with accumulators that leave too few registers",
    ),
    (tile(LARGE, STREAM_K_SMS=132), Problem(128 * 132, 256, 1024), H200, "stream-K, where tiles fill the SMs evenly"),
    (
        tile(LARGE, STREAM_K_SMS=132),
        Problem(60, 16000, 1024),
        H200,
        "stream-K with tiles more than half past C's edge",
    ),
    (tile(LARGE, STREAM_K_SMS=132), Problem(256, 256, 16384), H200, "stream-K with a tile shared by too many blocks"),
    (tile(LARGE, STREAM_K_SMS=132), Problem(1024, 1024, 128), H200, "too few k tiles for stream-K"),
    (tile(SLICE_K=4, BK=64, BM=64, BN=64), Problem(4096, 4096, 4096), H200, "sliced k, where there are threads enough"),
]


def copied(chosen: Config, problem: Problem) -> Config:
    """A config with copies of the sizes that the problem's rows allow."""
    of_a, of_b = cp_sizes(chosen["PACK_MN"], chosen["K_MAJOR"], problem)
    return SPACE.config(dict(chosen) | {"CP_SIZE_A": of_a, "CP_SIZE_B": of_b})


def test_a_copy_is_as_wide_as_what_divides_rows_that_lie_along_c() -> None:
    ragged = Problem(1022, 1023, 1023)
    assert cp_sizes(1, 0, ragged) == (16, 16)
    assert cp_sizes(0, 0, ragged) == (4, 4)
    assert cp_sizes(0, 0, replace(ragged, trans_a=True)) == (8, 4)
    assert cp_sizes(0, 0, replace(ragged, n=1024)) == (4, 16)
    assert cp_sizes(0, 0, replace(ragged, n=1024, trans_b=True)) == (4, 4)


def test_a_copy_of_a_tile_that_stays_k_major_is_as_wide_as_what_divides_k() -> None:
    turned = Problem(1023, 1024, 1024, trans_b=True)
    assert [cp_sizes(0, 1, replace(turned, k=k)) for k in (1024, 1022, 1023)] == [(16, 16), (8, 8), (4, 4)]


@pytest.mark.parametrize(("chosen", "problem", "device", "rule"), REFUSED)
def test_what_cannot_run_well_is_refused_by_its_reason(
    chosen: Config, problem: Problem, device: Device, rule: str
) -> None:
    own = chosen if rule in {LARGER_COPIES, SMALLER_COPIES} else copied(chosen, problem)
    refusal = SPACE.refusal(own, problem, device)
    assert refusal is not None
    assert refusal.startswith(rule)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("shape", BARS, ids=str)
def test_defaults_are_legal_and_leave_few_sms_without_work(shape: tuple[int, int, int]) -> None:
    for device in DEVICES.values():
        for turned in TRANSPOSITIONS:
            problem = transposed("float32", *turned, *shape)
            chosen = PIPELINED.default(problem, device)
            assert SPACE.refusal(chosen, problem, device) is None
            launch = PIPELINED.launch(chosen, problem, device)
            smallest = -(-problem.m // 32) * -(-problem.n // 32)
            assert launch.grid >= min(0.45 * device.limits.sms, smallest)


@pytest.mark.parametrize(("batch", "size"), [(4096, 16), (1024, 32), (512, 64), (128, 128)])
def test_defaults_of_batches_are_legal(batch: int, size: int) -> None:
    for device in DEVICES.values():
        problem = Problem(size, size, size, batch=batch)
        assert SPACE.refusal(PIPELINED.default(problem, device), problem, device) is None


def test_only_float32_on_cuda_with_asynchronous_copies_is_covered() -> None:
    assert PIPELINED.covers(CUBE, H200)
    assert PIPELINED.covers(CUBE, A100)
    assert not PIPELINED.covers(CUBE, replace(H200, architecture="sm_75"))
    assert not PIPELINED.covers(CUBE, replace(H200, platform="opencl"))
    assert not PIPELINED.covers(replace(CUBE, dtype="float64"), H200)


def test_copies_of_a_thread_are_counted_as_wide_as_each_side_is_copied() -> None:
    for problem, of_a, of_b in (
        (CUBE, 1, 4),
        (replace(CUBE, trans_a=True), 4, 4),
        (replace(CUBE, trans_b=True), 1, 1),
        (RAGGED, 1, 1),
        (replace(CUBE, m=1022, trans_a=True), 2, 4),
    ):
        assert copies(copied(tile(LARGE), problem), problem) == (128 * 16 // 256 // of_a, 256 * 16 // 256 // of_b)
    assert copies(tile(LARGE, PACK_MN=1), RAGGED) == (128 * 16 // 256 // 4, 256 * 16 // 256 // 4)
    assert max(max(copies(each, CUBE)) for each in SPACE.legal(CUBE, H200)) <= BITS


def test_rows_on_their_way_to_c_lie_in_the_stages_or_behind_those_that_stream_k_fills() -> None:
    for start in (SMALL | {"BM": 128, "BN": 128, "TN": 8, "WN": 64, "BK": 8}, LARGE):
        bare = plan(tile(start, **NARROW), RAGGED).shared_bytes
        instead, beside = (
            plan(tile(start, **NARROW, STAGE_C=1, STREAM_K_SMS=sms), RAGGED).shared_bytes for sms in (0, 132)
        )
        rows = start["BM"] // start["TM"] * (start["BN"] // start["TN"]) * (start["TN"] + 1) * 4
        assert (instead, beside) == (max(bare, rows), bare + rows)


def test_slices_share_phases_evenly_and_lie_apart() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    for _ in range(500):
        chosen = tile(SPLIT_K=draw.choice(SPACE.parameters["SPLIT_K"]), PACK_MN=draw.choice((0, 1)))
        m, n, k, batch = draw.randint(1, 3000), draw.randint(1, 300), draw.randint(1, 100_000), draw.randint(1, 9)
        problem = replace(transposed("float32", *draw.choice(TRANSPOSITIONS), m, n, k), batch=batch)
        found = plan(chosen, problem)
        slices, at_c, k_tiles_per_split, _, at_a, lines_a, at_b, lines_b = found.scalars[:8]
        steps = -(-k // 16)
        assert (k_tiles_per_split, found.scalars[10]) == divmod(steps, slices)
        assert 1 <= slices <= min(steps, chosen["SPLIT_K"])
        assert 128 * at_c == 4 * COUNTERS
        assert at_a == at_c + (partials_lines(problem, slices) if slices > 1 else 0)
        assert at_b == at_a + batch * k * lines_a
        assert partials_lines(problem, slices) * 128 >= batch * slices * m * n * 4
        assert slices == 1 or partials_lines(problem, slices) * 128 <= 2**26
        end = 128 * (at_b + batch * k * lines_b)
        assert found.workspace_bytes == (end if end > 4 * COUNTERS else 0)
        assert len(found.before) == (lines_a + lines_b > 0)
        assert len(found.after) == (slices > 1)


def test_blocks_share_out_every_phase_once_and_whole_tiles_are_one_blocks() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    for _ in range(500):
        chosen = streamed(draw.randint(1, 200), MIN_BLOCKS=draw.choice((1, 2)), PACK_MN=draw.choice((0, 1)))
        held = chosen["STREAM_K_SMS"] * chosen["MIN_BLOCKS"]
        m, n, k, batch = draw.randint(1, 2000), draw.randint(1, 300), draw.randint(1, 5000), draw.randint(1, 9)
        problem = Problem(m, n, k, batch=batch)
        found, launch = stream_k_schedule(chosen, problem), plan(chosen, problem)
        tiles, steps = blocks(chosen, problem), k_tiles(chosen, problem)
        assert found.blocks * (found.each + found.rounds * steps) + found.more == tiles * steps
        assert launch.grid == found.blocks <= held
        assert found.each + found.rounds > 0, "a block with nothing to do"
        assert found.more < found.blocks
        assert found.each < 2 * steps
        assert (found.blocks * found.each + found.more) % steps == 0
        assert launch.scalars[0] == 1
        parts = found.blocks * chosen["BM"] * chosen["BN"] * 4 if found.each else 0
        assert 128 * launch.scalars[4] == 4 * COUNTERS + parts
        assert not launch.after


def test_tiles_too_deep_to_count_their_phases_are_left_whole() -> None:
    problem = Problem(64, 32, 2**36)
    assert stream_k_schedule(streamed(132), problem).scalars == (2, 0, 0, 1)
    assert plan(streamed(132), problem).grid == 2


@pytest.mark.rotating
@pytest.mark.parametrize("shape", [(2304, 2304, 2304), (2560, 2560, 2560), (3072, 3072, 3072)], ids=str)
def test_tiles_that_leave_a_wave_half_empty_are_shared_out(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape)
    chosen = PIPELINED.default(problem, H200)
    assert chosen["STREAM_K_SMS"] == H200.limits.sms
    assert PIPELINED.launch(chosen, problem, H200).grid == H200.limits.sms * chosen["MIN_BLOCKS"]
    shared = [each for each in SPACE.legal(problem, H200) if each["STREAM_K_SMS"]]
    assert {(128, 256), (128, 128)} <= {(each["BM"], each["BN"]) for each in shared}
    assert all(each["STREAM_K_SMS"] * each["MIN_BLOCKS"] <= MOST_PARTIALS * blocks(each, problem) for each in shared)
    older = replace(H200, limits=replace(H200.limits, sms=7))
    assert PIPELINED.default(problem, older)["STREAM_K_SMS"] == 0


def test_a_launch_joins_with_as_many_teams_as_its_slices_fill() -> None:
    for split, teams in ((2, 2), (3, 2), (4, 4), (6, 4), (8, 8), (33, 8)):
        launch = planned(tile(SPLIT_K=split), Problem(100, 33, 264 * 16, batch=2))
        (step,) = launch.after
        assert dict(step.build.macros)["REDUCERS"] == str(min(teams, MOST_REDUCERS))
        assert step.grid == 2 * -(-3300 // (REDUCE_THREADS // teams * 4))


def test_shared_bytes_are_all_stages_of_both_tiles_or_the_teams_sums() -> None:
    assert shared_bytes(tile(LARGE), CUBE) == 4 * 16 * (128 + 4 + 256) * 4
    assert shared_bytes(tile(LARGE, PACK_MN=1), CUBE) == 4 * 16 * (128 + 256) * 4
    assert shared_bytes(tile(SLICE_K=4, BK=32), CUBE) == max(3 * 32 * (36 + 32), 4 * 32 * 32) * 4
    assert registers(tile(LARGE)) <= register_limit(tile(LARGE), H200)
