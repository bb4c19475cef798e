"""pipelined: its products as interpreted, what NVRTC makes of it, and the sums that its split_k_reduce.cu adds up."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.device import Device
from kernels.launch import Build, Launch
from kernels.pipelined import PIPELINED
from kernels.pipelined.plan import SPLIT_K_REDUCE
from kernels.pipelined.space import SPACE
from kernels.problem import Problem
from kernels.register_tiled.plan import register_limit, threads
from kernels.sources import source
from kernels.space import Config
from kernels.split_k import REDUCE_THREADS
from tests.support.kernels.devices import H200, TRANSPOSITIONS, transposed
from tests.support.kernels.pipelined_configs import BARS, DEVICES, LARGE, NARROW, WIDE, planned, streamed, tile
from tests.support.kernels.pocl_runner import Array, compiled, operands, queue, reference
from tests.support.shares import share_of

cuda = pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")

MEBIBYTE = 2**20


def interpreted(launch: Launch, a: Array, b: Array, shift: int = 0, draw: random.Random | None = None) -> Array:
    """C, of a launch in which no reads of shared memory meet on a bank."""
    c, conflicts = interpreter.interpreted(launch, a, b, H200, shift, draw)
    assert conflicts == 0
    return np.asarray(c)


# Tiles that are whole and not, rows of whole 16 bytes and not, k of one phase and many, shorter than the stages and no
# multiple of BK; bases 4 bytes off 16 with copies as wide as they can be, which then go by the element.
CASES = {
    "nn": (tile(), 0, (36, 40, 50), 1, 0),
    "nt": (tile(), 1, (33, 31, 64), 2, 0),
    "tn": (tile(), 2, (36, 68, 37), 1, 0),
    "tt": (tile(), 3, (36, 29, 50), 2, 0),
    "nn-element": (tile(**NARROW), 0, (33, 37, 50), 1, 0),
    "nt-short": (tile(), 1, (1, 1, 5), 1, 0),
    "tn-element": (tile(**NARROW, STAGES=4), 2, (27, 30, 40), 2, 4),
    "tt-element": (tile(**NARROW), 3, (31, 33, 17), 1, 0),
    "tn-twos": (tile(CP_SIZE_A=8), 2, (34, 36, 37), 2, 0),
    "tn-twos-shifted": (tile(CP_SIZE_A=8, CP_SIZE_B=8, STAGES=4), 2, (34, 38, 21), 2, 8),
    "tn-twos-element": (tile(CP_SIZE_A=8, CP_SIZE_B=8), 2, (34, 38, 50), 1, 4),
    "tn-twos-large": (tile(LARGE, CP_SIZE_A=8, CP_SIZE_B=8), 2, (130, 258, 37), 1, 8),
    "nn-mixed-staged": (tile(LARGE, CP_SIZE_B=8, STAGE_C=1), 0, (130, 258, 20), 1, 0),
    "nn-shifted": (tile(), 0, (36, 40, 53), 1, 4),
    "tn-shifted": (tile(), 2, (40, 36, 48), 2, 4),
    "nn-repacked": (tile(PACK_MN=1), 0, (33, 29, 50), 2, 0),
    "nt-repacked": (tile(PACK_MN=1, SLICE_K=2), 1, (70, 31, 45), 1, 4),
    "tn-repacked": (tile(PACK_MN=1, STAGES=4), 2, (33, 36, 66), 1, 0),
    "tt-repacked": (tile(PACK_MN=1, SLICE_K=4, BK=32), 3, (31, 66, 70), 1, 0),
    "nn-teams": (tile(SLICE_K=2, TN=8, WN=32), 0, (40, 36, 90), 1, 0),
    "tn-teams": (tile(SLICE_K=4, BK=32, TM=8, BM=64), 2, (36, 36, 130), 1, 0),
    "nt-tall": (tile(TM=8, TN=4, WN=16, BM=64), 1, (70, 36, 40), 1, 0),
    "tt-wide": (tile(TM=4, TN=8, WN=64, BN=64, BK=8), 3, (34, 72, 33), 1, 0),
    "nn-split": (tile(SPLIT_K=3), 0, (36, 36, 150), 1, 0),
    "nt-split": (tile(SPLIT_K=4, SLICE_K=2), 1, (30, 29, 200), 2, 4),
    "tn-split-element": (tile(SPLIT_K=2, **NARROW), 2, (25, 37, 55), 2, 0),
    "tt-split-repacked": (tile(SPLIT_K=11, PACK_MN=1), 3, (33, 6, 340), 1, 0),
    "nn-grouped": (tile(GROUP_M=8), 0, (300, 40, 16), 1, 0),
    # Phases shared out: many blocks a tile, few, and whole tiles after these; past C's edge and a batch's end.
    "nn-streamed": (streamed(7), 0, (36, 20, 150), 1, 0),
    "nt-streamed": (streamed(5), 1, (33, 70, 85), 1, 0),
    "tn-streamed-element": (streamed(3, **NARROW, STAGES=4), 2, (27, 37, 70), 2, 4),
    "tt-streamed-repacked": (streamed(3, PACK_MN=1, GROUP_M=8), 3, (70, 38, 50), 2, 4),
    "nn-streamed-teams": (streamed(4, SLICE_K=2, TN=8, WN=32), 0, (68, 36, 133), 1, 0),
    "tn-streamed-whole": (streamed(2), 2, (36, 40, 37), 1, 0),
    # Rows of C by way of shared memory: each count of lanes, instead of stages and beside them, with slices of k.
    "nn-staged": (tile(**NARROW, STAGE_C=1), 0, (33, 37, 50), 1, 0),
    "nt-staged-tall": (tile(STAGE_C=1, TM=8, TN=16, WN=32, BM=256, BN=64, BK=8), 1, (130, 67, 20), 1, 4),
    "tn-staged-narrow": (tile(STAGE_C=1, TM=8, TN=4, WN=16, BM=64, BN=32), 2, (68, 34, 30), 2, 0),
    "tt-staged-wide": (tile(STAGE_C=1, TM=4, TN=8, WN=128, BN=128, BK=8), 3, (31, 257, 9), 1, 0),
    "nn-staged-large": (tile(LARGE, STAGE_C=1, **NARROW, STAGES=3), 0, (130, 257, 20), 1, 0),
    "nn-staged-split": (tile(STAGE_C=1, SPLIT_K=3, SLICE_K=2, TN=8, WN=32, **NARROW), 0, (65, 35, 150), 1, 4),
    "tn-staged-streamed": (streamed(3, STAGE_C=1, **NARROW), 2, (70, 33, 70), 2, 0),
    "nn-staged-repacked": (streamed(2, STAGE_C=1, PACK_MN=1), 0, (33, 66, 70), 1, 0),
    "nn-cluster": (tile(CLUSTER_K=2), 0, (36, 36, 150), 2, 0),
    "nt-cluster-slices": (tile(CLUSTER_K=4, SLICE_K=2), 1, (30, 29, 300), 1, 4),
    "tn-cluster-element": (tile(CLUSTER_K=8, **NARROW), 2, (25, 37, 555), 1, 0),
    "tt-cluster-repacked": (tile(CLUSTER_K=2, PACK_MN=1), 3, (33, 6, 341), 1, 0),
    "nn-cluster-staged": (tile(CLUSTER_K=4, STAGE_C=1, TM=8, WN=32, **NARROW), 0, (65, 35, 150), 1, 4),
    "nt-lines-cluster": (tile(K_MAJOR=1, CLUSTER_K=2, SLICE_K=2), 1, (30, 29, 200), 2, 8),
    "nt-cluster-short": (tile(CLUSTER_K=8), 1, (30, 29, 40), 1, 0),
    "nn-streamed-idle": (streamed(58), 0, (8, 12, 40), 1, 0),
    # Sides of three times a power of two: lines of 16, 32 and 64 elements to a round, of either operand, and both.
    "tn-thirds": (tile(BM=48, BN=64, TM=12, WN=32, CP_SIZE_A=4), 2, (41, 60, 37), 2, 0),
    "tn-thirds-wide": (tile(BM=96, BN=192, TM=12, TN=12, WN=48), 2, (92, 188, 40), 1, 4),
    "nt-thirds-warps": (tile(BM=48, BN=96, TM=12, WN=32, BK=8, **NARROW), 1, (38, 85, 21), 1, 0),
    "nt-thirds": (tile(BM=96, BN=96, TM=12, TN=12, WN=96, STAGE_C=1, BK=8, **NARROW), 1, (95, 91, 45), 1, 0),
    "nn-thirds-teams": (tile(BM=32, BN=48, TN=12, WN=48, SLICE_K=4, BK=32, CP_SIZE_A=4), 0, (30, 44, 77), 1, 0),
    "tt-thirds-staged": (tile(BM=128, BN=48, TM=8, TN=12, WN=48, STAGE_C=1, BK=8, **NARROW), 3, (117, 45, 29), 1, 0),
    # Tiles that stay K-major: lines by 16 bytes and 8, rounds of all of a warp's lines and of some, with rows or
    # columns the longer side, bases that are not aligned, k that ends in a k tile.
    "nt-lines": (tile(K_MAJOR=1), 1, (36, 29, 52), 2, 0),
    "nt-lines-twos": (tile(K_MAJOR=1, CP_SIZE_A=8, CP_SIZE_B=8), 1, (31, 33, 50), 1, 0),
    "nt-lines-shifted": (tile(K_MAJOR=1, STAGES=4), 1, (36, 41, 68), 1, 4),
    "nt-lines-teams": (tile(K_MAJOR=1, SLICE_K=4, BK=32, TM=8, BM=64), 1, (66, 35, 132), 1, 0),
    "nt-lines-tall": (tile(K_MAJOR=1, TM=8, TN=4, WN=16, BM=64, BK=8), 1, (70, 36, 40), 1, 0),
    "nt-lines-wide": (tile(K_MAJOR=1, TM=4, TN=8, WN=64, BN=64, BK=32), 1, (36, 75, 88), 1, 0),
    "nt-lines-thirds": (tile(K_MAJOR=1, BN=96, TM=8, TN=12, WN=96, SLICE_K=4, BK=32), 1, (30, 94, 72), 1, 0),
    "nt-lines-large": (tile(K_MAJOR=1, BM=128, BN=128, TM=16, TN=8, WN=64, STAGES=4), 1, (130, 132, 20), 1, 0),
    "nt-lines-split": (tile(K_MAJOR=1, SPLIT_K=3, SLICE_K=2), 1, (30, 29, 200), 2, 8),
    "nt-lines-streamed": (streamed(5, K_MAJOR=1, STAGE_C=1), 1, (33, 70, 84), 1, 0),
    "nn-thirds-streamed": (streamed(3, BM=96, BN=64, TM=12, TN=8, WN=32, **NARROW), 0, (150, 37, 70), 2, 0),
}


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if number % 3 else []) for number, name in enumerate(CASES)]
)
def test_integer_products_are_exact_without_races_or_bank_conflicts(name: str) -> None:
    chosen, turned, shape, batch, shift = CASES[name]
    problem = replace(transposed("float32", *TRANSPOSITIONS[turned], *shape), batch=batch)
    launch = planned(chosen, problem)
    assert (len(launch.before), len(launch.after)) == (chosen["PACK_MN"], chosen["SPLIT_K"] > 1)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    assert np.array_equal(interpreted(launch, a, b, shift), reference(problem, a, b))


def random_case(draw: random.Random) -> tuple[Config, Problem]:
    """A config that can be launched, and a problem around its tile's edges."""
    while True:
        values = {name: draw.choice(kind) for name, kind in SPACE.parameters.items()}
        slices, sms, parts = draw.choice(((1, 0, 1), (1, draw.randint(1, 9), 1), (2, 0, 1), (3, 0, 1), (1, 0, 2)))
        values |= {"MIN_BLOCKS": 1, "STREAM_K_SMS": 0, "SPLIT_K": slices, "GROUP_M": draw.choice((1, 8))}
        values["CLUSTER_K"] = values["CLUSTER_K"] if parts > 1 else 1
        chosen = streamed(sms, values)
        m, n = (max(1, chosen[side] * draw.choice((1, 1, 2)) + draw.choice((-3, -1, 0, 4))) for side in ("BM", "BN"))
        shares = chosen["SPLIT_K"] * chosen["CLUSTER_K"]
        k = chosen["BK"] * shares * draw.choice((1, 2, 3)) + draw.choice((-7, 0, 0, 3))
        problem = replace(transposed("float32", *draw.choice(TRANSPOSITIONS), m, n, k), batch=draw.choice((1, 1, 2)))
        launched = problem.batch * -(-m // chosen["BM"]) * -(-n // chosen["BN"]) * shares
        if threads(chosen) * launched <= 2048 and is_sound(chosen, problem):
            return chosen, problem


def is_sound(chosen: Config, problem: Problem) -> bool:
    """Whether what a launch cannot do without holds, whatever is said of its speed."""
    sound = (
        "a tile that is no multiple of its warps' tiles",
        "fewer threads a block",
        "a slice of the k tile that is too short, or too long",
        "copies that do not divide",
        "rounds of copies",
        "more shared memory",
        "more registers a thread",
        "more copies a thread",
        "copies of",
        "packing of",
        "packed operands",
        "K-major tiles, where an operand",
        "k with too little for each block of a cluster",
    )
    rules = [rule for reason, rule in SPACE.rules.items() if reason.startswith(sound)]
    assert all(any(reason.startswith(each) for reason in SPACE.rules) for each in sound)
    return all(rule(chosen, problem, H200) for rule in rules)


@pytest.mark.rotating
@pytest.mark.parametrize("count", [1, pytest.param(15, marks=pytest.mark.slow)])
def test_configs_at_random_are_exact(count: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - configs, not secrets
    for _ in range(share_of(count)):
        chosen, problem = random_case(draw)
        a, b = operands(problem, rng, integers=True)
        # Blocks that share tiles wait for those before them.
        order = None if chosen["STREAM_K_SMS"] else draw
        c = interpreted(planned(chosen, problem), a, b, draw.choice((0, 4)), order)
        assert np.array_equal(c, reference(problem, a, b)), (chosen, problem.key)


@pytest.mark.rotating
def test_slices_are_added_in_team_order_in_any_block_order() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    problem = Problem(8, 12, 11 * 16)
    launch = planned(tile(SPLIT_K=11), problem)
    a, b = operands(problem, rng)
    first = interpreted(launch, a, b)
    again = interpreted(launch, a, b, draw=random.Random(seed))  # noqa: S311 - an order, not a secret
    assert np.array_equal(first, again)
    slices = np.stack([in_turn(a[..., q : q + 16], b[:, q : q + 16]) for q in range(0, problem.k, 16)])
    assert launch.scalars[0] == len(slices) == 11
    assert np.array_equal(first, joined(slices, teams=8))


@pytest.mark.rotating
def test_parts_of_a_tile_are_added_up_from_the_first_phases_on() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    problem = Problem(8, 12, 11 * 16)
    launch = planned(streamed(4), problem)
    a, b = operands(problem, np.random.default_rng(seed))
    c = interpreted(launch, a, b)
    assert np.array_equal(c, interpreted(launch, a, b))
    assert launch.scalars[8:12] == (4, 2, 3, 0)
    parts = [in_turn(a[..., q : q + 48], b[:, q : q + 48]) for q in (0, 48, 96, 144)]
    assert np.array_equal(c, ((parts[0] + parts[1]) + parts[2]) + parts[3])


def in_turn(a: Array, b: Array) -> Array:
    """Products added one after the other, each sum rounded once."""
    sums = np.zeros((*a.shape[:2], b.shape[2]), np.float32)
    for q in range(a.shape[2]):
        sums = (a[:, :, q, None].astype(np.float64) * b[:, None, q] + sums).astype(np.float32)
    return sums


def joined(slices: Array, teams: int) -> Array:
    """Each team's slices in order, and then the teams' sums in order, each sum rounded to the slices' type."""
    sums = np.zeros((teams, *slices.shape[1:]), slices.dtype)
    for number, each in enumerate(slices):
        sums[number % teams] += each
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return np.asarray(total)


@pytest.mark.rotating
@pytest.mark.parametrize(("repack", "sms"), [(0, 0), (1, 0), (0, 3)])
def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity(repack: int, sms: int) -> None:
    problem = Problem(33, 18, 35)
    launch = planned(streamed(sms, PACK_MN=repack, **(WIDE if repack else NARROW), SPLIT_K=1 if sms else 2), problem)
    a, b = operands(problem, np.random.default_rng(11))
    a[0, 32, 34] = np.nan
    c = interpreted(launch, a, b)
    assert np.isnan(c[0, 32]).all()
    assert np.isfinite(c[0, :32]).all()
    assert (interpreted(launch, np.ones_like(a), np.full_like(b, np.inf)) == np.inf).all()


@pytest.mark.rotating
@pytest.mark.parametrize(("repack", "sms"), [(0, 0), (1, 0), (0, 3)])
def test_ones_for_all_numbers_leave_a_tiny_problem_near_its_operands(repack: int, sms: int) -> None:
    launch = planned(streamed(sms, PACK_MN=repack, SPLIT_K=1 if sms else 2), Problem(33, 33, 64))
    assert (len(launch.before), len(launch.after)) == (repack, sms == 0)
    one = replace(launch, problem=Problem(1, 1, 1), scalars=(1,) * len(launch.scalars), grid=1, workspace_bytes=4)
    one = replace(one, before=tuple(replace(each, grid=1) for each in one.before))
    one = replace(one, after=tuple(replace(each, grid=1) for each in one.after))
    # So far apart that what is a mebibyte from one is as far from the next one.
    starts = [(1 + 3 * place) * MEBIBYTE for place in range(4)]
    memory, near = np.zeros(12 * MEBIBYTE, np.uint8), np.zeros(12 * MEBIBYTE, np.bool_)
    for start in starts:
        near[start - MEBIBYTE : start + MEBIBYTE] = True
    interpreter.run(one, starts, memory, near, H200)
    assert not memory[~near].any()


@pytest.mark.rotating
def test_interpreter_sees_missing_barriers_and_waits() -> None:
    problem = Problem(32, 32, 80)
    launch = planned(tile(), problem)
    a, b = operands(problem, np.random.default_rng(11), integers=True)

    def changed(old: str, new: str) -> Launch:
        text = launch.build.text.replace(old, new)
        assert text != launch.build.text
        return replace(launch, build=replace(launch.build, text=text))

    step = "at = at == STAGES - 1 ? 0 : at + 1;\n                        "
    with pytest.raises(AssertionError, match="no barrier"):
        interpreted(changed(step + "BARRIER();", step), a, b)
    late = changed("cp_async_wait_group(STAGES - 2);\n                        const int step", "const int step")
    assert np.isnan(interpreted(late, a, b)).any()
    with pytest.raises(AssertionError, match="not aligned"):
        interpreted(changed("return w == 1 ||", "return 1 ||"), a, b, 4)


def compiles(chosen: Config, problem: Problem, device: Device, directory: Path) -> None:
    launch = PIPELINED.launch(chosen, problem, device)
    for build in (launch.build, *(step.build for step in (*launch.before, *launch.after))):
        cubin = cuda.compile_cubin(build, device.architecture, directory)
        assert cubin.spills == 0, (chosen, problem.key, device.architecture, build.name)
    assert cuda.compile_cubin(launch.build, device.architecture, directory).registers <= register_limit(chosen, device)


SHAPES = ((1024, 1024, 1024), (4096, 4096, 4096), (300, 200, 300), (256, 256, 16384), (1023, 1023, 1023))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 10])
def test_whatever_the_rules_leave_compiles_and_spills_nothing(count: int, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    for number in range(share_of(count)):
        device = DEVICES["sm_80" if number % 2 else "sm_90"]
        problem = transposed("float32", *draw.choice(TRANSPOSITIONS), *draw.choice(SHAPES))
        compiles(draw.choice(SPACE.legal(problem, device)), problem, device, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(DEVICES))
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), *BARS], ids=str)
def test_defaults_compile_and_spill_nothing(architecture: str, shape: tuple[int, int, int], tmp_path: Path) -> None:
    device = DEVICES[architecture]
    for turned in TRANSPOSITIONS[:1] if shape == BARS[6] else TRANSPOSITIONS:
        problem = transposed("float32", *turned, *shape)
        compiles(PIPELINED.default(problem, device), problem, device, tmp_path)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reducers", [1, 2, 4, 8])
def test_slices_are_joined_on_the_processor_in_the_teams_order(reducers: int, dtype: str) -> None:
    import pyopencl as cl  # noqa: PLC0415 - only where there is one

    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    macros = (("DTYPE_" + dtype.upper(), "1"), ("REDUCERS", str(reducers)))
    kernel = compiled(Build("split_k_reduce", source(SPLIT_K_REDUCE), "split_k_reduce", macros))
    line = 128 // np.dtype(dtype).itemsize
    piece = REDUCE_THREADS // reducers * 16 // np.dtype(dtype).itemsize
    for m, n, slices, batch in (
        (1, 1, reducers, 1),
        (33, 17, reducers + 3, 3),
        (64, 64, 3 * reducers, 2),
        (5, 1001, 40, 1),
    ):
        pitch, start = -(-m * n // line) * line, 2 * line
        left = rng.standard_normal((batch, slices, pitch)).astype(dtype)
        left[:, :, m * n :] = np.nan
        workspace = np.concatenate([np.full(start, np.nan, dtype), left.ravel(), np.full(line, np.nan, dtype)])
        c = np.full(line + batch * m * n + line, np.nan, dtype)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        whole, held = (cl.Buffer(queue().context, flags, hostbuf=each) for each in (c, workspace))
        window = whole.get_sub_region(128, batch * m * n * c.itemsize)
        sizes = map(np.int64, (m, n, 7))
        numbers = map(np.int64, (slices, start // line, 1, 1, 0, 0, 0, 0))
        kernel.set_args(window, window, window, *sizes, held, *numbers)
        grid = batch * -(-m * n // piece)
        cl.enqueue_nd_range_kernel(queue(), kernel, (grid * REDUCE_THREADS, 1), (REDUCE_THREADS, 1))
        cl.enqueue_copy(queue(), c, whole)
        expected = joined(np.moveaxis(left[:, :, : m * n], 1, 0), reducers)
        assert np.array_equal(c[line:-line].reshape(batch, m * n), expected), (m, n, slices, batch)
        assert np.isnan(c[:line]).all(), "C was written before its start"
        assert np.isnan(c[-line:]).all(), "C was written past its end"
