"""direct_tensor: its space and defaults, how lines are spread over threads, and its products as interpreted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.worker.serving.launch_class import sample
from kernels.common.division import divider
from kernels.direct_tensor import DIRECT_TENSOR
from kernels.direct_tensor.plan import passes, slices, tiles
from kernels.direct_tensor.space import MOST_PASSES, SPACE, most_k
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import operands
from tests.support.kernels.tensor_core_configs import expect_nan_in_its_row, rounded

pytest_plugins = ("tests.support.kernels.uncorrected",)

cuda = pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

CUBES = Problem(16, 16, 16, 4096, "bfloat16")
TALL = Problem(262_144, 16, 32, dtype="bfloat16")
TF32 = Problem(99, 101, 27, precision="tf32")


def tile(*values: int, slices: int = 1, blocks: int = 1, realign: int = 0) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, (*values, slices, blocks, realign), strict=True)))


def test_a_warp_has_a_tile_and_a_block_several() -> None:
    assert tiles(tile(64, 16, 32, 4, 4), replace(TALL, m=65, n=33, batch=3)) == 18
    launch = DIRECT_TENSOR.launch(tile(64, 16, 32, 4, 4), replace(TALL, m=65, n=33, batch=3), H200)
    assert (launch.grid, launch.block, launch.scalars[:3]) == (5, (128, 1), (18, 3, 32))
    assert launch.scalars[3:] == (divider(3), divider(2))


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((16, 16, 16, 4, 4), "less of k"),
        ((16, 8, 32, 2, 4), None),
        ((16, 32, 32, 8, 4), "half of a tile's columns"),
    ],
)
def test_what_is_too_small_or_too_large_is_refused_by_its_reason(values: tuple[int, ...], rule: str | None) -> None:
    assert (SPACE.refusal(tile(*values), TALL, H200) or "").startswith(rule or "")
    assert (SPACE.refusal(tile(*values), TALL, H200) is None) == (rule is None)


def test_a_tile_that_is_half_past_an_edge_is_refused() -> None:
    assert str(SPACE.refusal(tile(32, 16, 16, 4, 4), CUBES, H200)).startswith("half of a tile's rows")
    assert str(SPACE.refusal(tile(16, 16, 32, 4, 4), CUBES, H200)).startswith("half of a tile's k")


@pytest.mark.usefixtures("uncorrected")
def test_untuned_it_has_all_columns_and_leaves_no_sm_idle() -> None:
    assert DIRECT_TENSOR.default(TALL, H200) == tile(64, 16, 32, 4, 4)
    assert DIRECT_TENSOR.default(CUBES, H200) == tile(16, 16, 16, 4, 4)
    assert DIRECT_TENSOR.default(replace(TALL, n=1000), H200)["BN"] == 64
    assert DIRECT_TENSOR.default(Problem(13, 570, 6, dtype="float16"), H200)["BN"] <= 16


@pytest.mark.usefixtures("uncorrected")
def test_untuned_a_large_ragged_c_is_stored_by_rows() -> None:
    assert DIRECT_TENSOR.default(replace(TALL, n=1000), H200) == tile(64, 64, 32, 8, 4)
    assert DIRECT_TENSOR.default(replace(TALL, n=1001), H200) == tile(64, 64, 32, 8, 2, realign=6)
    assert DIRECT_TENSOR.default(replace(TF32, m=9000), H200)["REALIGN"] == 4


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (TALL, True),
        (replace(TALL, n=15), True),
        (Problem(600, 64, 64, dtype="float16"), True),
        (Problem(12, 670, 41, 73, dtype="float16"), True),
        (Problem(121, 73, 78, dtype="float32", precision="tf32", trans_a=True), True),
        (Problem(540, 12510, 79, dtype="bfloat16"), False),
        (Problem(609, 624, 113, 26, dtype="bfloat16"), False),
        (Problem(2793, 7805, 71, dtype="float32", precision="tf32"), False),
    ],
)
def test_untuned_it_is_taken_where_no_pipeline_is_estimated_to_be_faster(problem: Problem, *, preferred: bool) -> None:
    assert DIRECT_TENSOR.preferred_untuned(problem, H200) is preferred


@pytest.mark.parametrize(
    ("values", "realign", "legal"),
    [
        ((32, 32, 32, 8, 2), 0, True),
        ((32, 32, 32, 8, 2), 4, True),
        ((32, 32, 32, 8, 2), 5, False),
        ((32, 32, 32, 8, 2), 7, False),
        ((32, 32, 48, 8, 2), 7, True),
    ],
)
def test_rows_that_start_anywhere_are_realigned_where_the_tile_has_room(
    values: tuple[int, ...], realign: int, *, legal: bool
) -> None:
    problem = Problem(99, 101, 27, dtype="float16")
    assert (SPACE.refusal(tile(*values, realign=realign), problem, H200) is None) == legal


def test_slices_of_k_are_a_blocks_warps_and_multiply_in_passes() -> None:
    problem = Problem(20, 136, 1037, dtype="float16", trans_a=True)
    config = tile(16, 8, 48, 2, 16, slices=16)
    launch = DIRECT_TENSOR.launch(config, problem, H200)
    assert (launch.grid, launch.block, launch.scalars[:3]) == (2 * 17, (512, 1), (34, 1, 72))
    assert passes(config, problem) == 2
    assert str(SPACE.refusal(tile(16, 8, 48, 2, 8, slices=4), problem, H200)).startswith("slices of k that are not")
    assert str(SPACE.refusal(tile(16, 8, 128, 2, 16, slices=16), problem, H200)).startswith("half of a tile's k")


def test_a_clusters_blocks_have_slices_of_the_same_tile() -> None:
    problem = Problem(76, 9, 6654, dtype="float16")
    config = tile(16, 8, 64, 2, 16, slices=16, blocks=8, realign=7)
    launch = DIRECT_TENSOR.launch(config, problem, H200)
    assert (launch.grid, launch.block, launch.cluster) == (5 * 2 * 8, (512, 1), 8)
    assert launch.scalars[:3] == (10, 1, 56)
    assert passes(config, problem) == 1
    for values, blocks, shape, device in (
        ((16, 8, 64, 2, 16, 16), 8, problem, replace(H200, architecture="sm_80")),
        ((16, 8, 64, 2, 16, 16), 8, replace(problem, m=400), H200),
        ((16, 8, 128, 2, 1, 1), 2, replace(problem, k=128), H200),
    ):
        refused = SPACE.refusal(tile(*values[:-1], slices=values[-1], blocks=blocks), shape, device)
        assert str(refused).startswith("clusters before sm_90")


@pytest.mark.parametrize("shape", [(76, 9, 6654), (245, 15, 11441), (30, 20, 16384)])
def test_untuned_a_cluster_shares_a_long_k_where_that_is_clearly_the_least_estimate(
    shape: tuple[int, int, int],
) -> None:
    deep = Problem(*shape, dtype="float16")
    assert DIRECT_TENSOR.default(deep, H200)["CLUSTER_K"] > 1
    assert DIRECT_TENSOR.default(replace(deep, k=16), H200)["CLUSTER_K"] == 1
    assert DIRECT_TENSOR.default(deep, replace(H200, architecture="sm_80"))["CLUSTER_K"] == 1


def test_short_k_or_a_small_c_on_tensor_cores_from_sm_80_is_covered() -> None:
    assert DIRECT_TENSOR.covers(CUBES, H200)
    assert DIRECT_TENSOR.covers(TF32, H200)
    assert DIRECT_TENSOR.covers(TALL, replace(H200, architecture="sm_80"))
    for problem, covered in (
        (replace(TALL, k=129), False),
        (Problem(512, 512, 4096, dtype="float16"), True),
        (Problem(512, 513, 4096, dtype="float16"), False),
        (Problem(512, 512, 16384, dtype="float16"), True),
        (Problem(512, 512, 16385, dtype="float16"), False),
        (Problem(512, 512, 8193, precision="tf32"), False),
        (replace(TALL, dtype="float32"), False),
        (replace(TF32, precision="strict"), False),
    ):
        assert DIRECT_TENSOR.covers(problem, H200) is covered, problem
    assert not DIRECT_TENSOR.covers(TALL, replace(H200, architecture="sm_75"))
    assert not DIRECT_TENSOR.covers(TALL, PROCESSOR)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("sms", "architecture"), [(132, "sm_90"), (16, "sm_90"), (132, "sm_80"), (16, "sm_80")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_whatever_is_covered_has_a_legal_config(dtype: str, sms: int, architecture: str) -> None:
    device = replace(H200, architecture=architecture, limits=replace(H200.limits, sms=sms))
    dice = np.random.default_rng(11)
    for _ in range(100):
        m, n, batch = (round(2 ** dice.uniform(0, most)) for most in (14, 14, 6))
        precision = "tf32" if dtype == "float32" else "strict"
        problem = Problem(
            m, n, round(2 ** dice.uniform(0, 14)), batch, dtype, precision, trans_a=bool(dice.integers(2))
        )
        if DIRECT_TENSOR.covers(problem, device):
            assert SPACE.refusal(DIRECT_TENSOR.default(problem, device), problem, device) is None, problem


# Whole tiles and not, bands that lie among each other by one, two and four, odd lines, bases off 16 bytes, batches.
CASES = [
    pytest.param("float16", (16, 8, 16, 2, 1), 0, 0, (16, 8, 16), 1, 0, id="float16-one"),
    pytest.param("float16", (32, 16, 32, 4, 2), 0, 0, (70, 33, 31), 2, 2, id="float16-nn"),
    pytest.param("float16", (64, 32, 32, 8, 4), 0, 1, (96, 64, 24), 1, 0, id="float16-nt"),
    pytest.param("bfloat16", (64, 64, 32, 8, 8), 0, 2, (200, 72, 32), 2, 0, id="bfloat16-tn"),
    pytest.param("bfloat16", (16, 32, 32, 8, 2), 0, 3, (31, 65, 20), 1, 6, id="bfloat16-tt"),
    pytest.param("bfloat16", (16, 16, 16, 4, 8), 0, 0, (16, 16, 16), 11, 0, id="bfloat16-cubes"),
    pytest.param("bfloat16", (16, 8, 16, 2, 4), 0, 2, (1, 1, 1), 3, 2, id="bfloat16-tiny"),
    pytest.param("float16", (32, 64, 32, 2, 2), 0, 0, (40, 205, 20), 1, 0, id="float16-apart"),
    pytest.param("bfloat16", (16, 32, 64, 2, 4), 0, 1, (33, 66, 47), 2, 2, id="bfloat16-deeper"),
    pytest.param("float16", (32, 16, 128, 4, 2), 0, 2, (35, 26, 101), 1, 0, id="float16-deepest"),
    pytest.param("bfloat16", (16, 8, 96, 2, 1), 0, 3, (17, 9, 96), 1, 6, id="bfloat16-three-chunks"),
    pytest.param("float16", (16, 64, 32, 8, 1), 7, 0, (33, 145, 21), 2, 0, id="float16-realigned-nn"),
    pytest.param("bfloat16", (32, 16, 48, 4, 2), 7, 1, (67, 35, 27), 2, 4, id="bfloat16-realigned-nt"),
    pytest.param("float16", (32, 32, 64, 2, 2), 7, 2, (70, 34, 57), 1, 2, id="float16-realigned-tn"),
    pytest.param("bfloat16", (64, 32, 32, 8, 4), 7, 3, (65, 66, 18), 3, 0, id="bfloat16-realigned-tt"),
    pytest.param("float16", (16, 64, 16, 8, 2), 4, 0, (40, 59, 16), 1, 0, id="float16-realigned-c"),
    pytest.param("float32", (16, 16, 16, 4, 2), 0, 0, (33, 20, 13), 2, 0, id="tf32-nn"),
    pytest.param("float32", (16, 8, 80, 2, 2), 0, 1, (31, 59, 77), 1, 4, id="tf32-nt"),
    pytest.param("float32", (32, 64, 32, 4, 1), 4, 2, (70, 101, 27), 1, 0, id="tf32-realigned-c"),
    pytest.param("float32", (16, 32, 48, 2, 4), 4, 3, (18, 65, 48), 2, 8, id="tf32-realigned-c-tt"),
]
# Slices of one pass and of several, an empty last one, more bands of C than slices and fewer.
SLICED = [
    pytest.param("float16", (16, 8, 64, 2, 16), 0, 1, (20, 24, 1000), 1, 0, id="sliced-float16-nt"),
    pytest.param("float16", (16, 8, 48, 2, 16), 0, 2, (20, 36, 1037), 1, 0, id="sliced-float16-passes"),
    pytest.param("bfloat16", (64, 16, 32, 4, 4), 7, 0, (67, 35, 391), 2, 0, id="sliced-bfloat16-realigned"),
    pytest.param("bfloat16", (32, 16, 64, 4, 2), 7, 3, (33, 51, 107), 1, 6, id="sliced-bfloat16-realigned-tt"),
    pytest.param("float32", (16, 16, 32, 4, 8), 0, 3, (33, 20, 700), 1, 4, id="sliced-tf32-passes"),
    pytest.param("float32", (32, 8, 64, 2, 2), 4, 0, (40, 7, 127), 3, 0, id="sliced-tf32-realigned-c"),
]
# The blocks of a cluster: more and fewer than bands of C, with as many slices of k as warps each, and empty ones.
CLUSTERED = [
    pytest.param(8, "float16", (16, 8, 48, 2, 4), 0, 0, (20, 9, 1321), 1, 0, id="clustered-float16-nn"),
    pytest.param(4, "bfloat16", (64, 16, 48, 4, 2), 7, 1, (67, 35, 317), 2, 2, id="clustered-bfloat16-realigned-nt"),
    pytest.param(2, "float16", (32, 16, 32, 4, 4), 4, 2, (33, 17, 377), 1, 0, id="clustered-float16-realigned-c-tn"),
    pytest.param(2, "float32", (16, 16, 32, 4, 4), 0, 3, (33, 20, 700), 1, 4, id="clustered-tf32-passes-tt"),
    pytest.param(8, "float32", (32, 8, 16, 2, 2), 4, 0, (40, 7, 255), 2, 0, id="clustered-tf32-realigned-c"),
]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("dtype", "values", "realign", "turned", "shape", "batch", "shift"), CASES + SLICED)
def test_products_of_integers_are_exact(
    dtype: str, values: tuple[int, ...], realign: int, turned: int, shape: tuple[int, int, int], batch: int, shift: int
) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    precision = "tf32" if dtype == "float32" else "strict"
    problem = Problem(*shape, batch, dtype, precision, trans_a=trans_a, trans_b=trans_b)
    sliced = values[-1] if shape[-1] > 101 else 1
    expect_exact(tile(*values, slices=sliced, realign=realign), problem, shift)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("blocks", "dtype", "values", "realign", "turned", "shape", "batch", "shift"), CLUSTERED)
def test_sums_of_a_clusters_blocks_are_added(
    blocks: int,
    dtype: str,
    values: tuple[int, ...],
    realign: int,
    turned: int,
    shape: tuple[int, int, int],
    batch: int,
    shift: int,
) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    precision = "tf32" if dtype == "float32" else "strict"
    problem = Problem(*shape, batch, dtype, precision, trans_a=trans_a, trans_b=trans_b)
    expect_exact(tile(*values, slices=values[-1], blocks=blocks, realign=realign), problem, shift)


def expect_exact(config: Config, problem: Problem, shift: int) -> None:
    launch = DIRECT_TENSOR.launch(config, problem, H200)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(launch, a, b, H200, shift)
    assert np.array_equal(c, rounded(problem, a, b))


@pytest.mark.rotating
@pytest.mark.parametrize(
    "values",
    [
        (32, 32, 32, 8, 2, 1, 1, 0),
        (32, 32, 32, 8, 2, 1, 1, 7),
        (16, 16, 32, 4, 2, 2, 1, 7),
        (16, 8, 16, 2, 4, 4, 1, 0),
        (16, 8, 16, 2, 2, 2, 2, 0),
    ],
)
def test_what_is_verified_before_serving_has_room_for_its_k_and_is_right(values: tuple[int, ...]) -> None:
    config = SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))
    launch = DIRECT_TENSOR.launch(config, Problem(99, 101, 23 * slices(config), dtype="float16"), H200)
    checked = sample(launch)
    assert 16 < checked.k <= most_k(config, checked)
    assert passes(config, checked) == (1 if config["SLICE_K"] == 1 else MOST_PASSES)
    a, b = operands(checked, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(DIRECT_TENSOR.for_problem(launch, checked), a, b, H200)
    assert np.array_equal(c, rounded(checked, a, b))


@pytest.mark.parametrize("realign", [0, 7])
def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity(realign: int) -> None:
    problem = Problem(33, 17, 19, dtype="float16")
    launch = DIRECT_TENSOR.launch(tile(32, 16, 32, 2, 2, realign=realign), problem, H200)
    expect_nan_in_its_row(launch, interpreter.interpreted)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("turned", range(4))
def test_operands_move_in_16_bytes_at_once_wherever_rows_start_and_a_whole_c_too(turned: int, tmp_path: Path) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    whole = replace(TALL, n=32, trans_a=trans_a, trans_b=trans_b)
    ragged = replace(whole, m=999, n=1001, k=25)
    for problem, values, realign in ((whole, (32, 32, 32, 8, 4), 0), (ragged, (32, 32, 32, 8, 4), 7)):
        launch = DIRECT_TENSOR.launch(tile(*values, realign=realign), problem, H200)
        text = ptx_of(launch.build, "90")
        assert re.search(r"ld\.global\S*\.v4\.", text)
        assert bool(re.search(r"st\.global\S*\.v4\.", text)) == (problem == whole)
        assert cuda.compile_cubin(launch.build, "sm_90", tmp_path).spills == 0
