"""rank_k: its space and defaults, its products as interpreted, and what NVRTC makes of it."""

from __future__ import annotations

import random
import re
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.worker.serving.launch_class import sample
from kernels.problem import Problem
from kernels.rank_k import RANK_K
from kernels.rank_k.plan import lines, register_limit, registers, shared_bytes, threads, warp_tile
from kernels.rank_k.space import SPACE
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.kernels.tensor_core_configs import rounded
from tests.support.shares import share_of

cuda = pytest.importorskip("app.devices.cuda")
nvrtc = pytest.importorskip("app.devices.cuda.nvrtc")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

WIDE = Problem(8192, 8192, 16)


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((64, 128, 16, 16, 4, 16, 4, 1), None),
        ((64, 128, 16, 16, 4, 16, 1, 1), None),
        ((64, 128, 16, 16, 4, 16, 2, 1), "a RUN_N of neither"),
        ((64, 64, 16, 16, 8, 8, 4, 1), "fewer sums"),
        ((32, 32, 16, 16, 4, 8, 4, 1), "fewer threads"),
        ((32, 32, 16, 8, 2, 32, 2, 1), "a tile that is no multiple"),
        ((128, 128, 16, 4, 4, 32, 4, 4), "fewer threads"),
        ((32, 32, 16, 4, 4, 8, 4, 2), "MIN_BLOCKS that limit"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(values: tuple[int, ...], rule: str | None) -> None:
    refusal = SPACE.refusal(tile(*values), WIDE, H200)
    assert refusal is None if rule is None else str(refusal).startswith(rule)


def test_elements_are_stored_together_as_far_as_rows_are_aligned() -> None:
    for n, dtype, runs in ((8192, "float32", {1, 4}), (8190, "float32", {1, 2}), (8191, "float32", {1})):
        legal = SPACE.legal(replace(WIDE, n=n, dtype=dtype), H200)
        assert {config["RUN_N"] for config in legal if config["TN"] == 4} == runs
    doubles = SPACE.legal(replace(WIDE, dtype="float64"), H200)
    assert {config["RUN_N"] for config in doubles} == {1, 2}


def deep(bk: int) -> Config:
    return tile(64, 128, bk, 16, 4, 16, 4, 1)


def test_lines_along_k_have_an_odd_number_of_packs_and_others_none_to_spare() -> None:
    assert lines(deep(24), Problem(64, 64, 17, trans_b=True)) == (28, 28)
    assert lines(deep(4), Problem(64, 64, 3, trans_b=True)) == (4, 4)
    assert lines(deep(32), Problem(64, 64, 32, trans_a=True)) == (32, 32)
    assert lines(deep(8), Problem(64, 64, 5, dtype="float64")) == (10, 8)
    assert lines(deep(8), Problem(64, 64, 5, dtype="float16")) == (12, 8)
    assert shared_bytes(deep(32), replace(WIDE, k=32)) == 4 * (64 * 36 + 128 * 32)


def test_there_is_room_for_all_of_k_and_for_little_more() -> None:
    for k, depth in ((1, 4), (4, 4), (5, 8), (17, 24), (49, 64), (128, 128)):
        assert {config["BK"] for config in SPACE.legal(replace(WIDE, k=k), H200)} == {depth}
        assert RANK_K.default(replace(WIDE, k=k), H200)["BK"] == depth


def test_a_tile_may_be_deeper_than_shared_memory_is() -> None:
    small = replace(H200, limits=replace(H200.limits, shared_bytes=2**14))
    assert "shared memory" in str(SPACE.refusal(deep(64), replace(WIDE, k=64), small))


def sides(config: Config) -> tuple[int, int, int]:
    return config["BM"], config["BN"], config["RUN_N"]


def test_untuned_tiles_are_large_where_there_are_many_and_small_where_there_are_few() -> None:
    assert sides(RANK_K.default(WIDE, H200)) == (32, 128, 4)
    assert sides(RANK_K.default(replace(WIDE, k=48), H200)) == (64, 128, 4)
    assert sides(RANK_K.default(Problem(300, 400, 30), H200)) == (32, 32, 4)
    assert sides(RANK_K.default(replace(WIDE, m=16384, n=20), H200)) == (64, 32, 4)


def test_untuned_single_elements_lie_side_by_side_where_rows_are_ragged() -> None:
    for n in (8191, 8190):
        ragged = RANK_K.default(replace(WIDE, n=n), H200)
        assert (ragged["RUN_N"], ragged["LANES_N"]) == (1, 32)
    assert RANK_K.default(replace(WIDE, n=8190, dtype="float64"), H200)["RUN_N"] == 2


def test_only_short_k_from_sm_80_is_covered() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        assert RANK_K.covers(replace(WIDE, k=128, dtype=dtype), replace(H200, architecture="sm_80"))
    assert RANK_K.covers(replace(WIDE, precision="tf32"), H200)
    for problem in (replace(WIDE, k=129), replace(WIDE, precision="emulated")):
        assert not RANK_K.covers(problem, H200)
    assert not RANK_K.covers(WIDE, replace(H200, architecture="sm_75"))
    assert not RANK_K.covers(WIDE, PROCESSOR)


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (replace(WIDE, k=32), True),
        (replace(WIDE, k=33), True),
        (replace(WIDE, k=33, dtype="float64"), False),
        (replace(WIDE, m=80, k=33), False),
        (replace(WIDE, n=8191, k=3, precision="tf32"), False),
        (replace(WIDE, k=33, precision="tf32"), False),
        (replace(WIDE, k=4, dtype="float16"), False),
        (Problem(984, 43, 3, dtype="bfloat16"), True),
        (Problem(64, 64, 16, 512), False),
        (Problem(476, 30, 24, 157), True),
        (Problem(512, 512, 16, 8), True),
    ],
)
def test_untuned_it_is_taken_for_the_shortest_k_but_not_for_batches_of_small_products(
    problem: Problem, *, preferred: bool
) -> None:
    assert RANK_K.preferred_untuned(problem, H200) is preferred


# Whole tiles and not, k of one and of no whole packs, elements stored alone, in pairs and in fours, bases off 16 bytes.
CASES = {
    "nn": ((32, 32, 24, 4, 4, 8, 4, 1), "float32", 0, (36, 40, 17), 2, 0),
    "nt": ((32, 64, 8, 8, 4, 16, 1, 1), "float32", 1, (33, 67, 5), 2, 0),
    "tn": ((64, 32, 16, 8, 2, 16, 2, 1), "float32", 2, (70, 34, 12), 1, 0),
    "tt": ((32, 32, 4, 4, 2, 8, 1, 1), "float32", 3, (36, 29, 3), 3, 0),
    "nn-shifted": ((32, 32, 8, 4, 4, 8, 4, 1), "float32", 0, (33, 36, 8), 1, 4),
    "tn-shifted": ((32, 64, 16, 4, 8, 8, 4, 1), "float32", 2, (36, 32, 16), 2, 8),
    "nt-packs": ((32, 64, 24, 4, 8, 8, 4, 1), "float32", 1, (32, 64, 24), 1, 0),
    "one": ((32, 32, 4, 4, 4, 8, 1, 1), "float32", 0, (1, 1, 1), 1, 0),
    "nn-doubles": ((32, 32, 16, 4, 4, 8, 2, 1), "float64", 0, (33, 38, 9), 2, 0),
    "nt-doubles": ((64, 32, 8, 8, 2, 16, 1, 1), "float64", 1, (65, 31, 6), 1, 8),
    "tn-doubles": ((32, 64, 8, 8, 4, 16, 2, 1), "float64", 2, (34, 66, 7), 1, 0),
    "tt-doubles": ((32, 32, 16, 4, 4, 8, 1, 1), "float64", 3, (35, 33, 10), 1, 0),
    "nn-halves": ((32, 32, 24, 4, 4, 8, 4, 1), "float16", 0, (33, 36, 17), 2, 0),
    "nt-halves": ((32, 64, 8, 8, 2, 16, 1, 1), "bfloat16", 1, (33, 67, 8), 1, 0),
    "tn-halves": ((64, 32, 8, 8, 2, 16, 2, 1), "bfloat16", 2, (36, 34, 5), 2, 2),
    "tt-halves": ((32, 32, 16, 4, 4, 8, 4, 1), "float16", 3, (40, 44, 12), 1, 8),
    "in-fours-of-ragged-rows": ((32, 32, 16, 4, 4, 8, 4, 1), "float32", 0, (9, 35, 13), 2, 0),
}


FEW = ("nn", "nt", "tn-halves", "tt-doubles", "in-fours-of-ragged-rows")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in CASES if each not in FEW)]
)
def test_products_of_integers_are_exact(name: str) -> None:
    values, dtype, turned, shape, batch, shift = CASES[name]
    trans_a, trans_b = TRANSPOSITIONS[turned]
    problem = Problem(*shape, batch, dtype, trans_a=trans_a, trans_b=trans_b)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    home = replace(WIDE, n=2048 * values[6], k=values[2], dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    launch = RANK_K.for_problem(RANK_K.launch(tile(*values), home, H200), problem)
    c, conflicts = interpreter.interpreted(launch, a, b, H200, shift)
    assert np.array_equal(c, rounded(problem, a, b) if problem.itemsize == 2 else reference(problem, a, b))
    assert conflicts == 0


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [1, 4, 17, 32])
def test_what_is_verified_before_serving_has_room_for_its_k_and_is_right(k: int) -> None:
    problem = Problem(4096, 4096, k)
    launch = RANK_K.launch(RANK_K.default(problem, H200), problem, H200)
    checked = sample(launch)
    assert checked.k <= launch.config["BK"]
    assert (checked.k % 4 == 0) == (k % 4 == 0)
    a, b = operands(checked, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(RANK_K.for_problem(launch, checked), a, b, H200)
    assert np.array_equal(c, reference(checked, a, b))


def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity() -> None:
    problem = Problem(33, 37, 6)
    launch = RANK_K.launch(tile(32, 32, 8, 4, 4, 8, 1, 1), problem, H200)
    a, b = operands(problem, np.random.default_rng(11))
    a[0, 32, 5] = np.nan
    c, _ = interpreter.interpreted(launch, a, b, H200)
    assert np.isnan(c[0, 32]).all()
    assert np.isfinite(c[0, :32]).all()
    c, _ = interpreter.interpreted(launch, np.ones_like(a), np.full_like(b, np.inf), H200)
    assert (c == np.inf).all()


def test_aligned_rows_move_in_16_bytes_at_once() -> None:
    launch = RANK_K.launch(tile(64, 128, 16, 16, 4, 16, 4, 1), WIDE, H200)
    text = ptx_of(launch.build, "90")
    assert re.search(r"cp\.async\S* \[\S+\], \[\S+\], 16", text)
    assert re.search(r"st\.global\.cs\.v4\.f32", text)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_legal_configs_spill_nothing(architecture: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311  configs, no secrets
    device = replace(H200, architecture=architecture)
    for trans_a, trans_b in TRANSPOSITIONS:
        problem = transposed(draw.choice(RANK_K.dtypes), trans_a, trans_b, 4096, 4096, draw.choice((5, 16, 33)))
        for config in draw.sample(SPACE.legal(problem, device), share_of(6)):
            found = nvrtc.compile_cubin(RANK_K.launch(config, problem, device).build, architecture, tmp_path)
            assert not found.spills, (config, problem)
            assert registers(config, problem) <= register_limit(config, device)
            assert threads(config) % 32 == 0
            assert config["BM"] % warp_tile(config)[0] == 0
