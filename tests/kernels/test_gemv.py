"""gemv: its space and defaults, its products as interpreted, and what NVRTC makes of it."""

from __future__ import annotations

import random
import re
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.services.best.kernel_order import untuned
from kernels.device import Device
from kernels.gemv import GEMV
from kernels.gemv.plan import SHORT_SIDES, loads_short, registers, shared_bytes, step, threads, warps_of_k
from kernels.gemv.space import SPACE
from kernels.problem import Problem
from kernels.rules import covering_tile
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.kernels.tensor_core_configs import rounded
from tests.support.shares import share_of

cuda = pytest.importorskip("app.devices.cuda")
nvrtc = pytest.importorskip("app.devices.cuda.nvrtc")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

FLAT = Problem(1, 4096, 4096, trans_b=True)
ACROSS = Problem(1, 4096, 4096)
OLDER = replace(H200, architecture="sm_80")


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


@pytest.mark.parametrize(
    ("values", "problem", "rule"),
    [
        ((1, 1, 4, 1, 32, 4, 4, 1), FLAT, None),
        ((0, 4, 1, 1, 32, 4, 4, 1), FLAT, "a tile that lies along"),
        ((1, 2, 4, 1, 32, 4, 4, 1), FLAT, "a tile whose short side is not"),
        ((1, 1, 4, 1, 32, 2, 4, 1), FLAT, "vectors that are neither"),
        ((1, 1, 4, 1, 32, 4, 4, 1), replace(FLAT, k=4095), "vectors that are neither"),
        ((1, 1, 4, 1, 32, 1, 4, 1), replace(FLAT, k=4095), None),
        ((1, 1, 4, 4, 64, 4, 16, 1), FLAT, "a thread tile longer"),
        ((1, 1, 4, 1, 8, 4, 4, 1), FLAT, "fewer threads"),
        ((1, 1, 8, 1, 32, 1, 4, 1), ACROSS, None),
        ((1, 1, 4, 1, 32, 1, 4, 1), ACROSS, "coalesced reads"),
        ((1, 1, 4, 1, 32, 1, 4, 1), replace(ACROSS, n=3), None),
        ((1, 1, 4, 1, 256, 4, 8, 1), FLAT, "more threads or steps"),
        ((1, 1, 64, 1, 8, 4, 2, 8), FLAT, None),
        ((1, 1, 4, 1, 32, 4, 4, 8), FLAT, "clusters before sm_90"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(
    values: tuple[int, ...], problem: Problem, rule: str | None
) -> None:
    refusal = SPACE.refusal(tile(*values), problem, H200)
    assert refusal is None if rule is None else str(refusal).startswith(rule)


def test_clusters_share_k_from_sm_90_on() -> None:
    short = Problem(1, 9, 12911, trans_b=True)
    assert {config["CLUSTER_K"] for config in SPACE.legal(short, H200)} == {1, 2, 4, 8}
    assert {config["CLUSTER_K"] for config in SPACE.legal(short, OLDER)} == {1}
    launch = GEMV.launch(tile(1, 1, 1, 1, 256, 1, 8, 8), short, H200)
    assert (launch.grid, launch.cluster, launch.block) == (72, 8, (256, 1))


def test_a_tile_has_the_least_short_side_that_covers_cs() -> None:
    assert [covering_tile(side, SHORT_SIDES) for side in (1, 3, 5, 6, 7, 8, 9, 16, 17)] == [1, 3, 6, 6, 8, 8, 6, 8, 6]


def test_threads_share_k_in_vectors_where_it_is_contiguous() -> None:
    along, across = tile(1, 2, 4, 1, 64, 4, 2, 1), tile(1, 2, 64, 4, 16, 4, 2, 1)
    assert (step(along, FLAT), step(across, ACROSS)) == (256, 16)
    assert (warps_of_k(along, FLAT), warps_of_k(across, ACROSS)) == (2, 8)
    assert shared_bytes(along, FLAT) == 4 * 8 * 3
    assert shared_bytes(replace_cluster(across), ACROSS) == 4 * 128 * (9 + 1) + 16
    assert loads_short(along, replace(FLAT, m=2)) == 2
    assert loads_short(along, replace(FLAT, m=2, trans_a=True)) == 8


def replace_cluster(config: Config) -> Config:
    return SPACE.config({**config, "CLUSTER_K": 2})


def test_only_a_short_side_of_eight_is_covered() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        assert GEMV.covers(Problem(8, 4096, 64, dtype=dtype), OLDER)
    assert GEMV.covers(replace(FLAT, precision="tf32"), H200)
    for problem in (Problem(9, 9, 64), replace(FLAT, precision="emulated")):
        assert not GEMV.covers(problem, H200)
    assert not GEMV.covers(FLAT, PROCESSOR)


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (FLAT, True),
        (Problem(2, 16384, 16384), True),
        (Problem(3, 4096, 600), True),
        (Problem(8, 473, 220), True),
        (Problem(5, 4768, 4592), False),
        (Problem(8, 7789, 7640, dtype="float16"), False),
    ],
)
def test_untuned_it_is_taken_where_c_is_thinnest_or_little_is_read(problem: Problem, *, preferred: bool) -> None:
    assert (next(untuned(problem, H200)).name == "gemv") is preferred


@pytest.mark.parametrize("problem", [FLAT, ACROSS, Problem(105, 1, 545, trans_b=True), Problem(1, 9, 12911)])
def test_the_default_has_the_least_seconds_and_enough_threads(problem: Problem) -> None:
    card = replace(H200, architecture="sm_100")  # whose estimates nothing corrects
    config, seconds = GEMV.default(problem, card), GEMV.seconds
    assert seconds is not None
    assert seconds(config, problem, card) == min(seconds(one, problem, card) for one in SPACE.legal(problem, card))
    launch = GEMV.launch(config, problem, card)
    assert launch.grid * launch.threads >= min(132 * 128, problem.n * problem.m * 64)


# Each side long, along k and across, k shared by lanes, warps and blocks, vectors of one to eight, tails of k and of C,
# bases off 16 bytes, and problems that the space refuses but a binary computes.
CASES = {
    "flat": ((1, 1, 4, 1, 32, 4, 2, 1), Problem(1, 9, 300, trans_b=True), 0),
    "flat-shifted": ((1, 1, 4, 1, 32, 4, 2, 1), Problem(1, 9, 300, trans_b=True), 4),
    "flat-ragged": ((1, 2, 8, 2, 16, 1, 4, 1), Problem(2, 11, 301, 2, trans_b=True), 0),
    "flat-cluster": ((1, 1, 1, 1, 64, 1, 2, 8), Problem(1, 3, 1001, 2, trans_b=True), 0),
    "flat-of-columns": ((1, 3, 4, 2, 64, 4, 1, 1), Problem(3, 7, 256, 2, trans_a=True, trans_b=True), 0),
    "across": ((1, 1, 8, 1, 32, 1, 4, 1), Problem(1, 39, 77, 2), 0),
    "across-vectors": ((1, 4, 32, 4, 16, 4, 2, 1), Problem(4, 44, 37, 2, trans_a=True), 0),
    "across-shifted": ((1, 4, 32, 4, 16, 4, 2, 1), Problem(4, 44, 37, 2), 8),
    "across-cluster": ((1, 2, 16, 2, 16, 2, 2, 4), Problem(2, 30, 90, 3), 0),
    "across-warps": ((1, 1, 64, 1, 4, 1, 1, 2), Problem(1, 70, 13), 0),
    "upright": ((0, 8, 3, 2, 32, 1, 2, 1), Problem(13, 3, 95, 2), 0),
    "upright-halves": ((0, 4, 2, 1, 32, 8, 2, 2), Problem(5, 2, 520, dtype="float16", trans_b=True), 0),
    "upright-pairs": ((0, 16, 1, 2, 16, 2, 4, 1), Problem(34, 1, 61, dtype="bfloat16", trans_a=True), 2),
    "doubles": ((1, 6, 16, 2, 16, 2, 2, 2), Problem(5, 22, 40, dtype="float64"), 0),
    "doubles-by-k": ((0, 2, 8, 1, 64, 2, 1, 1), Problem(9, 7, 130, dtype="float64", trans_b=True), 8),
    "of-longer-sides": ((1, 1, 4, 1, 32, 4, 2, 1), Problem(3, 5, 37, 2, trans_b=True), 0),
    "of-one": ((1, 1, 1, 1, 64, 1, 1, 1), Problem(1, 1, 1, trans_b=True), 0),
}
FEW = ("flat-cluster", "across-vectors", "upright-halves", "of-longer-sides")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in CASES if each not in FEW)]
)
def test_products_of_integers_are_exact(name: str) -> None:
    values, problem, shift = CASES[name]
    config = tile(*values)
    vector, long = config["VECTOR"], 2 * max(config["BM"], config["BN"]) + config["VECTOR"]
    m, n = (config["BM"], long) if config["LONG_N"] else (long, config["BN"])
    home = replace(problem, m=m, n=n, k=2**14 + vector, batch=1)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    launch = GEMV.for_problem(GEMV.launch(config, home, roomy()), problem)
    c, _ = interpreter.interpreted(launch, a, b, H200, shift)
    assert np.array_equal(c, rounded(problem, a, b) if problem.itemsize == 2 else reference(problem, a, b))


def roomy() -> Device:
    """A device on which any number of clusters is two waves at most."""
    return replace(H200, limits=replace(H200.limits, sms=2**20))


@pytest.mark.parametrize("problem", [Problem(3, 37, 70, trans_b=True), Problem(37, 3, 70, trans_a=True)])
def test_nan_stays_in_its_row_and_what_is_past_k_makes_none_of_infinity(problem: Problem) -> None:
    launch = GEMV.launch(GEMV.default(problem, H200), problem, H200)
    a, b = operands(problem, np.random.default_rng(11))
    a[0, -1, -1] = np.nan
    c, _ = interpreter.interpreted(launch, a, b, H200)
    bad = np.isnan(c[0]).all(1)
    assert bad.sum() == 1
    assert np.isfinite(c[0][~bad]).all()
    c, _ = interpreter.interpreted(launch, np.ones_like(a), np.full_like(b, np.inf), H200)
    assert (c == np.inf).all()


def test_aligned_rows_are_loaded_in_16_bytes_at_once_and_clusters_send_each_other_sums() -> None:
    text = ptx_of(GEMV.launch(tile(1, 1, 4, 1, 32, 4, 2, 1), FLAT, H200).build, "90")
    assert re.search(r"ld\.global\.nc\.v4", text)
    assert "shared::cluster" not in text
    shared = ptx_of(GEMV.launch(tile(1, 1, 64, 1, 8, 4, 2, 8), FLAT, H200).build, "90")
    assert "st.async" in shared


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_legal_configs_spill_nothing(architecture: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311  configs, no secrets
    device = replace(H200, architecture=architecture)
    for trans_a, trans_b in TRANSPOSITIONS:
        long, k = draw.choice((4096, 4095, 4094)), draw.choice((2048, 2047))
        sides = draw.sample([draw.choice((1, 2, 3, 5, 8)), long], 2)
        problem = transposed(draw.choice(GEMV.dtypes), trans_a, trans_b, sides[0], sides[1], k)
        for config in draw.sample(SPACE.legal(problem, device), share_of(6)):
            found = nvrtc.compile_cubin(GEMV.launch(config, problem, device).build, architecture, tmp_path)
            assert not found.spills, (config, problem, found.registers, registers(config, problem))
            assert threads(config) % 32 == 0
