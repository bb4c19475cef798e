"""skinny: right on every edge and in every slice, compiled without spills, and what its space and defaults promise."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.dtypes import numpy_dtype
from app.services.best.kernel_order import untuned
from kernels.cost_model import analyse
from kernels.device import Device
from kernels.launch import COUNTERS, Launch
from kernels.problem import Problem
from kernels.skinny import SKINNY
from kernels.skinny.plan import SHORT_SIDES, k_in_flight, long_side, register_limit, short_side, threads
from kernels.space import Config
from tests.support.kernels.devices import DTYPES, H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands, queue, reference
from tests.support.pairwise import crossed

pytest_plugins = ("tests.support.kernels.uncorrected",)

HALVES = ["float16", "bfloat16"]
PRECISION = {"float32": 1e-6, "float64": 2e-15, "float16": 5e-4, "bfloat16": 4e-3}
# Enough multiprocessors for slices of k to be legal.
MANY = replace(PROCESSOR, limits=replace(PROCESSOR.limits, sms=64))
# Short sides of one, a few and many; a warp's threads and more that share out k; one round of sums and several.
TILES = (
    (1, 32, 1, 4, 8, 1024, 2, 1, 4),
    (8, 64, 8, 4, 16, 256, 2, 1, 1),
    (4, 16, 4, 4, 16, 256, 2, 1, 32),
    (24, 64, 24, 4, 16, 128, 2, 1, 3),
)
# Fewer than a pack of anything; ragged; rows of whole 16 bytes and phases that are not whole; two tiles each way.
SHAPES = ((1, 1, 1), (5, 66, 129), (4, 132, 700), (3, 37, 1030), (17, 33, 65), (50, 80, 268))
CASES = [
    pytest.param(
        dtype,
        turned,
        flat,
        marks=[] if t == d + 2 and flat == (t % 3 == 0) else [pytest.mark.slow],
        id=f"{dtype}-{'nt'[turned[0]]}{'nt'[turned[1]]}-{('upright', 'flat')[flat]}",
    )
    for d, dtype in enumerate(DTYPES)
    for t, turned in enumerate(TRANSPOSITIONS)
    for flat in (False, True)
]
HALF_CASES = [
    pytest.param(
        dtype,
        turned,
        flat,
        marks=[] if (t + d) % 4 == flat else [pytest.mark.slow],
        id=f"{dtype}-{'nt'[turned[0]]}{'nt'[turned[1]]}-{('upright', 'flat')[flat]}",
    )
    for d, dtype in enumerate(HALVES)
    for t, turned in enumerate(TRANSPOSITIONS)
    for flat in (False, True)
]
CLASS = [
    (1, 4096, 4096),
    (4, 8192, 2048),
    (16, 8192, 8192),
    (4096, 8, 4096),
    (2048, 16, 1024),
    (16, 4096, 4096),
    (8192, 1, 2048),
]


def tile(values: tuple[int, ...], *, flat: bool = True) -> Config:
    named = dict(zip(SKINNY.space.parameters, values, strict=True))
    turned = {"BM": named["BN"], "BN": named["BM"], "TM": named["TN"], "TN": named["TM"]}
    return SKINNY.space.config(named if flat else named | turned)


def lying(shape: tuple[int, int, int], *, flat: bool) -> tuple[int, int, int]:
    return shape if flat else (shape[1], shape[0], shape[2])


def error(c: Array, exact: Array) -> float:
    return float(np.linalg.norm((c - exact).ravel()) / np.linalg.norm(exact.ravel()))


@pytest.mark.rotating
@pytest.mark.parametrize(("dtype", "turned", "flat"), CASES)
def test_mirror_images_multiply_every_shape_nan_and_infinity(
    dtype: str, turned: tuple[bool, bool], *, flat: bool
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    values = TILES[(TRANSPOSITIONS.index(turned) + 2 * flat) % len(TILES)]
    own = transposed(dtype, *turned, *lying((values[0], 2 * values[1], 4096), flat=flat))
    launch = SKINNY.launch(tile(values, flat=flat), own, MANY)
    kernel = compiled(launch.build)
    for shape in SHAPES:
        problem = replace(transposed(dtype, *turned, *lying(shape, flat=flat)), batch=rng.integers(1, 4).item())
        a, b = operands(problem, rng)
        assert (
            error(multiplied(kernel, SKINNY.for_problem(launch, problem), a, b), reference(problem, a, b))
            < PRECISION[dtype]
        )
        a, b = operands(problem, rng, integers=True)
        c = multiplied(kernel, SKINNY.for_problem(launch, problem), a, b)
        assert (c == reference(problem, a, b)).all(), f"small integers are not exact: {problem.key}"
    not_finite_goes_on(kernel, SKINNY.for_problem(launch, transposed(dtype, *turned, 3, 33, 65)), rng)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "turned", "flat"), HALF_CASES)
def test_halves_are_added_in_float32_and_rounded_once(dtype: str, turned: tuple[bool, bool], *, flat: bool) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    queue()
    values = TILES[(TRANSPOSITIONS.index(turned) + flat) % len(TILES)]
    own = transposed(dtype, *turned, *lying((values[0], 2 * values[1], 4096), flat=flat))
    launch = SKINNY.launch(tile(values, flat=flat), own, MANY)
    kernel = compiled(launch.build)
    for shape in SHAPES:
        problem = replace(transposed(dtype, *turned, *lying(shape, flat=flat)), batch=rng.integers(1, 4).item())
        a, b = operands(problem, rng)
        c = multiplied(kernel, SKINNY.for_problem(launch, problem), a, b)
        assert error(c.astype(np.float64), reference(problem, a, b)) < PRECISION[dtype]
        a, b = operands(problem, rng, integers=True)
        c = multiplied(kernel, SKINNY.for_problem(launch, problem), a, b)
        assert (c == reference(problem, a, b).astype(numpy_dtype(dtype))).all(), problem.key


def not_finite_goes_on(kernel: object, launch: Launch, rng: np.random.Generator) -> None:
    a, b = operands(launch.problem, rng)
    left = a.swapaxes(1, 2) if launch.problem.trans_a else a
    left[0, 2, 64] = np.nan
    c = multiplied(kernel, launch, a, b)
    assert np.isnan(c[0, 2]).all()
    assert np.isfinite(c[0, :2]).all(), "NaN went astray"
    endless = multiplied(kernel, launch, np.ones_like(a), np.full_like(b, np.inf))
    assert (endless == np.inf).all(), "the padding made NaN of infinity"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_legal_config_is_right_around_its_own_edges(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng, draw = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - configs, not secrets
    queue()
    for _ in range(3):
        short, flat = draw.choice(SHORT_SIDES), draw.random() < 1 / 2
        base = transposed(dtype, *draw.choice(TRANSPOSITIONS), *lying((short, 600, 3000), flat=flat))
        chosen = draw.choice(SKINNY.space.legal(base, MANY))
        launch = SKINNY.launch(chosen, base, MANY)
        kernel, long, depth = compiled(launch.build), long_side(chosen), chosen["BK"]
        for shape in ((short, long + 1, depth + 1), (short, 2 * long - 4, 2 * depth + 4), (short + 1, long, depth)):
            m, n, k = lying(shape, flat=flat)
            problem = replace(base, m=m, n=n, k=k)
            a, b = operands(problem, rng, integers=True)
            c = multiplied(kernel, SKINNY.for_problem(launch, problem), a, b)
            assert (c == reference(problem, a, b)).all(), (chosen, problem.key)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", CLASS)
def test_a_space_is_rich(shape: tuple[int, int, int], dtype: str) -> None:
    for device in (H200, PROCESSOR):
        found = SKINNY.space.legal(Problem(*shape, dtype=dtype), device)
        assert (100 if device is H200 else 50) <= len(found) <= 5000


@pytest.mark.parametrize("device", [H200, PROCESSOR], ids=["sm_90", "opencl"])
def test_a_rule_reads_no_more_than_it_says(device: Device) -> None:
    problem = Problem(4, 3000, 5000, trans_b=True)
    for chosen in SKINNY.space.legal(problem, device)[::97]:
        for reason, names in SKINNY.space.reads.items():
            part = Config(tuple((name, value) for name, value in chosen.items() if name in names))
            assert SKINNY.space.rules[reason](part, problem, device), reason


@pytest.mark.parametrize(
    ("values", "shape", "rule"),
    [
        ((2, 64, 2, 4, 8, 1024, 4, 1, 1), (1, 4096, 4096), "a tile whose short side is not along C's short side"),
        ((1, 64, 1, 4, 8, 1024, 4, 1, 1), (4096, 1, 4096), "a tile whose short side is not along C's short side"),
        (
            (1, 512, 1, 4, 2, 1024, 4, 1, 1),
            (1, 250, 4096),
            "a tile at least twice as long as C, where there are shorter ones",
        ),
        (
            (4, 64, 2, 4, 8, 256, 4, 1, 1),
            (4, 4096, 4096),
            "a thread tile without the tile's whole short side, or of parts of 16 bytes",
        ),
        (
            (4, 64, 4, 2, 8, 256, 4, 1, 1),
            (4, 4096, 4096),
            "a thread tile without the tile's whole short side, or of parts of 16 bytes",
        ),
        ((1, 16, 1, 4, 8, 1024, 4, 1, 1), (1, 4096, 4096), "fewer threads a block than 64"),
        ((1, 16, 1, 8, 64, 1024, 4, 1, 1), (1, 4096, 4096), "coalesced reads of less than two sectors"),
        (
            (1, 16, 1, 4, 64, 1024, 8, 1, 1),
            (1, 4096, 4096),
            "a k tile of fewer steps than stages, of too few or too many elements, or far past k",
        ),
        (
            (1, 64, 1, 4, 8, 512, 4, 1, 1),
            (1, 4096, 4096),
            "a k tile of fewer steps than stages, of too few or too many elements, or far past k",
        ),
        (
            (1, 64, 1, 4, 8, 2048, 4, 1, 1),
            (1, 4096, 300),
            "a k tile of fewer steps than stages, of too few or too many elements, or far past k",
        ),
        (
            (16, 64, 16, 4, 8, 1024, 4, 1, 1),
            (16, 4096, 4096),
            "a k tile of fewer steps than stages, of too few or too many elements, or far past k",
        ),
        (
            (1, 64, 1, 4, 8, 1024, 3, 1, 1),
            (1, 4096, 4096),
            "too few bytes in flight, or more than two stages where copies are not asynchronous",
        ),
        ((24, 64, 24, 8, 16, 256, 2, 1, 1), (24, 4096, 4096), "more registers a thread"),
        ((1, 64, 1, 4, 4, 1024, 8, 2, 1), (1, 4096, 4096), "MIN_BLOCKS that does not limit registers"),
        (
            (16, 64, 16, 4, 16, 512, 8, 2, 1),
            (16, 4096, 4096),
            "more blocks on an SM than its threads and shared memory allow",
        ),
        ((1, 64, 1, 4, 16, 1024, 4, 1, 64), (1, 4096, 4096), "more splits of k than it has k steps"),
        ((1, 64, 1, 4, 8, 1024, 4, 1, 32), (1, 4096, 4096), "more blocks by split k than two waves"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(
    values: tuple[int, ...], shape: tuple[int, int, int], rule: str
) -> None:
    refusal = SKINNY.space.refusal(tile(values), Problem(*shape), H200)
    assert refusal is not None
    assert refusal.startswith(rule)


@pytest.mark.drawn(2)
@crossed(shape=CLASS, turned=TRANSPOSITIONS, dtype=DTYPES)
def test_defaults_read_the_long_operand_once_and_keep_the_device_busy(
    shape: tuple[int, int, int], turned: tuple[bool, bool], dtype: str
) -> None:
    problem = transposed(dtype, *turned, *shape)
    chosen = SKINNY.default(problem, H200)
    launch = SKINNY.launch(chosen, problem, H200)
    assert short_side(chosen) == min(shape[:2])
    assert analyse(SKINNY, chosen, problem, H200).flops_launched <= 1.1 * problem.flops
    at_once = min(launch.grid / H200.limits.sms, max(chosen["MIN_BLOCKS"], 1))
    assert at_once >= 0.45
    bytes_in_flight = threads(chosen) * chosen["STAGES"] * max(chosen["TM"], chosen["TN"]) * 16
    assert at_once * bytes_in_flight >= 8 * 1024


def test_a_ring_is_none_where_nothing_is_copied_meanwhile() -> None:
    problem = Problem(16, 4096, 5000)
    assert {each["STAGES"] for each in SKINNY.space.legal(problem, PROCESSOR)} == {SKINNY.space.parameters["STAGES"][0]}


def test_slices_have_something_and_scratch_for_their_sums() -> None:
    problem = Problem(16, 4096, 5000)
    one = SKINNY.plan(tile((16, 128, 16, 4, 8, 256, 2, 1, 8)), problem)
    # Steps of 32, 157 of them, 20 a slice; sums of 16 x 128 in whole packs of 256 threads.
    assert one.scalars[:3] == (8, 8, 640)
    assert one.grid == 32 * 8
    assert one.workspace_bytes == 4 * COUNTERS + 32 * 8 * 16 * 128 * 4
    many = SKINNY.plan(tile((16, 128, 16, 4, 8, 256, 2, 1, 64)), problem)
    assert many.scalars[:3] == (53, 8, 96)
    whole = SKINNY.plan(tile((16, 128, 16, 4, 8, 256, 2, 1, 8)), Problem(16, 4096, 32))
    assert (whole.scalars[:3], whole.workspace_bytes) == ((1, 1, 32), 0)


def test_a_block_has_room_for_its_ring_and_two_phases() -> None:
    plan = SKINNY.plan(tile((16, 128, 16, 4, 8, 256, 6, 1, 1)), Problem(16, 4096, 5000))
    assert plan.shared_bytes == (6 * 4 * 256 * 4 + 2 * 16 * (256 + 4) + 16) * 4


def test_slices_that_scratch_cannot_hold_become_one() -> None:
    launch = SKINNY.launch(tile((1, 64, 1, 4, 8, 1024, 4, 1, 4)), Problem(1, 4096, 4096), H200)
    assert launch.scalars[0] == 4
    assert SKINNY.for_problem(launch, Problem(1, 2**20, 4096)).scalars[:3] == (1, 1, 4096)


def test_configs_that_differ_in_slices_of_k_share_a_binary() -> None:
    problem = Problem(16, 4096, 5000)
    builds = {SKINNY.launch(tile((16, 128, 16, 4, 8, 256, 4, 1, split)), problem, H200).build for split in (1, 3, 8)}
    assert len(builds) == 1


@pytest.mark.parametrize(("m", "n", "suited"), [(32, 5000, True), (5000, 1, True), (33, 5000, False), (64, 64, False)])
def test_only_a_short_side_suits(m: int, n: int, *, suited: bool) -> None:
    assert SKINNY.covers(Problem(m, n, 1000), H200) is suited


def test_default_reads_ragged_rows_across_k_in_long_pieces() -> None:
    """Tiles of 16 columns took three times as long as ones of 128 on an H100 (docs/kernel-log.md)."""
    ragged = SKINNY.default(Problem(1, 2306, 3360, trans_a=True), H200)
    assert long_side(ragged) >= 64
    assert SKINNY.default(Problem(9, 5363, 479), H200)["BN"] >= 64


def test_default_has_less_than_twice_a_short_k_in_flight() -> None:
    problem = Problem(1, 7, 410, trans_a=True)
    assert k_in_flight(SKINNY.default(problem, H200), problem) < 2 * problem.k


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_defaults_and_what_the_rules_leave_spill_nothing(architecture: str, tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - configs, not secrets
    device = replace(H200, architecture=architecture)
    for dtype in (*DTYPES, *HALVES):
        shape = lying((rng.choice(SHORT_SIDES), 4096, 4096), flat=rng.random() < 1 / 2)
        problem = transposed(dtype, *rng.choice(TRANSPOSITIONS), *shape)
        for chosen in (SKINNY.default(problem, device), rng.choice(SKINNY.space.legal(problem, device))):
            launch = SKINNY.launch(chosen, problem, device)
            cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
            assert cubin.spills == 0, (chosen, problem.key)
            assert cubin.registers <= register_limit(chosen, device), (chosen, problem.key)


@pytest.mark.parametrize(
    ("problem", "first"),
    [
        (Problem(1, 1358, 2062, dtype="float16", trans_a=True), "gemv"),
        (Problem(3355, 2, 6293, dtype="bfloat16"), "gemv"),
        (Problem(3355, 3, 6293, dtype="bfloat16"), "tensor_core"),
        (Problem(1, 4096, 4096, dtype="float16"), "gemv"),
        (Problem(13, 39, 2053, dtype="bfloat16"), "direct_tensor"),
    ],
)
@pytest.mark.usefixtures("uncorrected")
def test_untuned_halves_are_gemvs_where_c_is_very_thin_and_else_on_tensor_cores(problem: Problem, first: str) -> None:
    device = replace(H200, limits=replace(H200.limits, tensor_float16=989e12, tensor_bfloat16=989e12))
    assert next(untuned(problem, device)).name == first


def test_elements_of_16_bits_have_no_ring() -> None:
    problem = Problem(16, 4096, 5000, dtype="float16")
    assert {each["STAGES"] for each in SKINNY.space.legal(problem, H200)} == {SKINNY.space.parameters["STAGES"][0]}
    plan = SKINNY.plan(tile((1, 64, 1, 4, 8, 1024, 2, 1, 1)), Problem(1, 4096, 5000, dtype="float16"))
    assert plan.shared_bytes == (2 * (1024 + 4) + 16) * 4
