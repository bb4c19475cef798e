"""direct_double: its space and defaults, how k is shared, and its products as interpreted."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.device import Device
from kernels.direct_double import DIRECT_DOUBLE
from kernels.direct_double.plan import passes, tiles
from kernels.direct_double.space import SPACE
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import operands
from tests.support.kernels.tensor_core_configs import expect_nan_in_its_row, rounded

cuda = pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

SHORT_K = Problem(250, 1116, 66, dtype="float64")
LONG_K = Problem(20, 135, 4350, dtype="float64")
A100 = replace(H200, architecture="sm_80")


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


def turned(which: int, m: int, n: int, k: int, batch: int = 1) -> Problem:
    trans_a, trans_b = TRANSPOSITIONS[which]
    return Problem(m, n, k, batch, "float64", trans_a=trans_a, trans_b=trans_b)


def test_a_warp_has_a_tile_and_groups_of_rows_are_whole() -> None:
    problem = replace(SHORT_K, m=65, n=33, batch=3)
    config = tile(16, 16, 40, 1, 4, 1, 1, 2)
    assert tiles(config, problem) == 3 * 6 * 3
    launch = DIRECT_DOUBLE.launch(config, problem, H200)
    assert (launch.grid, launch.block, launch.scalars[:2]) == (14, (128, 1), (3, 66))
    assert passes(config, problem) == 2


def test_slices_of_k_are_those_of_a_clusters_warps() -> None:
    config = tile(16, 16, 24, 1, 16, 16, 8, 1)
    launch = DIRECT_DOUBLE.launch(config, LONG_K, H200)
    assert (launch.grid, launch.cluster, launch.block, launch.scalars[:2]) == (2 * 9 * 8, 8, (512, 1), (1, 34))
    several = DIRECT_DOUBLE.launch(tile(16, 16, 32, 1, 8, 4, 4, 2), LONG_K, H200)
    assert (several.grid, several.cluster, several.scalars[:2]) == (9 * 4, 4, (1, 272))


@pytest.mark.parametrize(
    ("problem", "values", "rule"),
    [
        (SHORT_K, (16, 16, 40, 1, 4, 1, 1, 1), None),
        (SHORT_K, (16, 8, 40, 1, 4, 1, 1, 1), "half of an instruction's rows"),
        (replace(SHORT_K, trans_a=True, trans_b=True), (16, 8, 40, 1, 4, 1, 1, 1), None),
        (replace(SHORT_K, trans_a=True, trans_b=True), (8, 16, 40, 1, 4, 1, 1, 1), "half of an instruction's rows"),
        (SHORT_K, (16, 16, 64, 1, 4, 1, 1, 1), "passes that end 16 past k"),
        (SHORT_K, (32, 32, 40, 1, 4, 1, 1, 1), "more registers"),
        (SHORT_K, (16, 16, 40, 1, 4, 1, 1, 4), None),
        (SHORT_K, (16, 16, 24, 3, 4, 1, 1, 1), None),
        (SHORT_K, (16, 16, 40, 3, 4, 1, 1, 1), "more stages than passes"),
        (SHORT_K, (16, 16, 40, 1, 2, 1, 1, 4), "grouped rows"),
        (LONG_K, (16, 16, 40, 1, 16, 2, 1, 1), "slices of k of other"),
        (replace(SHORT_K, m=1000), (16, 16, 8, 1, 4, 4, 4, 1), "clusters before sm_90"),
        (replace(LONG_K, k=130), (16, 16, 8, 1, 16, 16, 8, 1), "slices of k, a quarter"),
        (LONG_K, (16, 16, 8, 1, 4, 4, 1, 1), "more passes than 64"),
    ],
)
def test_what_runs_badly_is_refused_by_its_reason(problem: Problem, values: tuple[int, ...], rule: str | None) -> None:
    refusal = SPACE.refusal(tile(*values), problem, H200)
    assert (refusal is None) == (rule is None), refusal
    assert re.match(rule or "", refusal or "")


def test_clusters_are_for_sm_90() -> None:
    config = tile(16, 16, 24, 1, 16, 16, 8, 1)
    assert SPACE.refusal(config, LONG_K, H200) is None
    assert str(SPACE.refusal(config, LONG_K, A100)).startswith("clusters before sm_90")


def test_short_k_or_a_small_c_in_float64_on_tensor_cores_is_covered() -> None:
    for problem, covered in (
        (SHORT_K, True),
        (LONG_K, True),
        (replace(SHORT_K, m=9000, n=9000, k=128), True),
        (replace(SHORT_K, m=9000, n=9000, k=129), False),
        (replace(LONG_K, k=8192), True),
        (replace(LONG_K, k=8193), False),
        (replace(SHORT_K, dtype="float32"), False),
        (replace(SHORT_K, precision="emulated"), False),
    ):
        assert DIRECT_DOUBLE.covers(problem, H200) is covered, problem
    assert DIRECT_DOUBLE.covers(SHORT_K, A100)
    assert not DIRECT_DOUBLE.covers(SHORT_K, replace(H200, architecture="sm_89"))
    assert not DIRECT_DOUBLE.covers(SHORT_K, PROCESSOR)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("device", [H200, A100, replace(H200, limits=replace(H200.limits, sms=16))])
def test_whatever_is_covered_has_a_legal_config(device: Device) -> None:
    dice = np.random.default_rng(11)
    for _ in range(60):
        m, n, batch = (round(2 ** dice.uniform(0, most)) for most in (14, 14, 6))
        problem = turned(int(dice.integers(4)), m, n, round(2 ** dice.uniform(0, 13)), batch)
        if DIRECT_DOUBLE.covers(problem, device):
            assert SPACE.refusal(DIRECT_DOUBLE.default(problem, device), problem, device) is None, problem


# Whole tiles and not, axes of pairs and of elements, odd lines, bases off 16 bytes, batches; passes and stages; groups.
CASES = [
    pytest.param((16, 16, 16, 1, 1, 1, 1, 1), 0, (16, 16, 16), 1, 0, id="one"),
    pytest.param((32, 16, 32, 1, 2, 1, 1, 1), 0, (70, 34, 31), 2, 8, id="nn"),
    pytest.param((8, 32, 24, 1, 4, 1, 1, 1), 1, (43, 66, 24), 1, 0, id="nt"),
    pytest.param((32, 32, 16, 1, 8, 1, 1, 1), 2, (98, 70, 16), 2, 0, id="tn"),
    pytest.param((16, 8, 8, 1, 2, 1, 1, 1), 3, (30, 65, 20), 1, 8, id="tt"),
    pytest.param((8, 16, 8, 1, 4, 1, 1, 1), 2, (1, 1, 1), 3, 0, id="tiny"),
    pytest.param((16, 16, 8, 1, 1, 1, 1, 1), 3, (18, 20, 26), 1, 0, id="tt-passes"),
    pytest.param((16, 16, 24, 1, 2, 1, 1, 1), 1, (33, 21, 67), 1, 0, id="nt-odd-passes"),
    pytest.param((8, 16, 96, 1, 1, 1, 1, 1), 0, (12, 31, 95), 1, 0, id="nn-deepest"),
    pytest.param((16, 16, 8, 2, 2, 1, 1, 1), 0, (33, 34, 17), 1, 0, id="nn-stages"),
    pytest.param((32, 16, 8, 3, 1, 1, 1, 1), 2, (35, 18, 33), 1, 0, id="tn-stages"),
    pytest.param((16, 16, 8, 4, 1, 1, 1, 1), 1, (17, 30, 57), 1, 8, id="nt-stages"),
    pytest.param((16, 16, 16, 1, 4, 1, 1, 2), 0, (49, 50, 14), 2, 0, id="groups"),
    pytest.param((8, 16, 16, 1, 4, 1, 1, 4), 2, (35, 49, 9), 2, 0, id="groups-of-four"),
]
# Slices of one pass and of several, empty ones, several tiles a block, fewer elements than blocks.
SLICED = [
    pytest.param((16, 16, 16, 1, 16, 16, 1, 1), 2, (20, 34, 500), 1, 0, id="sliced-tn"),
    pytest.param((8, 16, 8, 1, 16, 16, 1, 1), 0, (20, 33, 370), 1, 0, id="sliced-nn-passes"),
    pytest.param((32, 16, 16, 1, 8, 4, 1, 2), 1, (65, 39, 130), 2, 8, id="sliced-teams"),
    pytest.param((16, 32, 24, 1, 2, 2, 1, 1), 3, (34, 50, 47), 3, 0, id="sliced-tt"),
    pytest.param((16, 16, 8, 3, 4, 4, 1, 1), 0, (20, 33, 197), 1, 0, id="sliced-stages"),
    pytest.param((16, 16, 16, 1, 4, 4, 8, 1), 0, (12, 35, 450), 1, 0, id="cluster-nn"),
    pytest.param((8, 16, 8, 1, 2, 2, 8, 1), 1, (9, 17, 187), 2, 0, id="cluster-nt"),
    pytest.param((16, 16, 16, 1, 8, 2, 4, 2), 2, (34, 65, 121), 1, 0, id="cluster-teams"),
    pytest.param((16, 8, 16, 1, 1, 1, 2, 1), 3, (33, 18, 59), 1, 8, id="cluster-of-warps"),
]


@pytest.mark.rotating
@pytest.mark.drawn(3)
@pytest.mark.parametrize(("values", "which", "shape", "batch", "shift"), CASES + SLICED)
def test_products_of_integers_are_exact(
    values: tuple[int, ...], which: int, shape: tuple[int, int, int], batch: int, shift: int
) -> None:
    problem = turned(which, *shape, batch)
    launch = DIRECT_DOUBLE.launch(tile(*values), problem, H200)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(launch, a, b, H200, shift, random.Random(7))  # noqa: S311 - an order, no secret
    assert np.array_equal(c, rounded(problem, a, b))


@pytest.mark.parametrize("which", range(4))
def test_before_sm_90_instructions_have_half_the_rows_and_no_clusters(which: int) -> None:
    problem = turned(which, 33, 34, 120)
    launch = DIRECT_DOUBLE.launch(tile(16, 16, 16, 1, 8, 8, 1, 1), problem, A100)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(launch, a, b, A100)
    assert np.array_equal(c, rounded(problem, a, b))


@pytest.mark.parametrize("values", [(16, 16, 24, 1, 2, 1, 1, 1), (16, 16, 8, 1, 4, 4, 1, 1)])
def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity(values: tuple[int, ...]) -> None:
    problem = turned(0, 33, 17, 19)
    launch = DIRECT_DOUBLE.launch(tile(*values), problem, H200)
    expect_nan_in_its_row(launch, interpreter.interpreted)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("which", range(4))
def test_aligned_rows_move_by_16_bytes_and_nothing_is_spilt(which: int, tmp_path: Path) -> None:
    for values in ((32, 32, 16, 1, 4, 1, 1, 2), (16, 16, 48, 1, 8, 8, 4, 1), (16, 16, 24, 1, 16, 16, 1, 1)):
        config = tile(*values)
        problem = turned(which, 64, 64, 64 if config["SLICE_K"] == 1 else 1536)
        build = DIRECT_DOUBLE.launch(config, problem, H200).build
        text = ptx_of(build, "90")
        assert re.search(r"ld\.global\S*\.v2\.", text)
        assert config["SLICE_K"] > 1 or re.search(r"st\.global\S*\.v2\.", text)
        assert ("st.async" in text) == (config["CLUSTER_K"] > 1)
        assert cuda.compile_cubin(build, "sm_90", tmp_path).spills == 0
