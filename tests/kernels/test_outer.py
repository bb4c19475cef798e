"""outer: its space and defaults, its products as interpreted, and what NVRTC makes of it."""

from __future__ import annotations

import random
import re
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.services.best.kernel_order import untuned
from app.worker.serving.launch_class import sample
from kernels.outer import OUTER
from kernels.outer.plan import blocks
from kernels.outer.space import SPACE
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS, transposed
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.kernels.tensor_core_configs import rounded
from tests.support.shares import share_of

cuda = pytest.importorskip("app.devices.cuda")
nvrtc = pytest.importorskip("app.devices.cuda.nvrtc")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

RAGGED = Problem(1000, 291, 1)


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


@pytest.mark.parametrize(
    ("values", "problem", "rule"),
    [
        ((1, 4, 1, 128), RAGGED, None),
        ((2, 4, 1, 128), RAGGED, "a BK other"),
        ((1, 8, 1, 128), RAGGED, "vectors of less than 8 bytes"),
        ((1, 1, 1, 128), RAGGED, "vectors of less than 8 bytes"),
        ((1, 4, 1, 128), replace(RAGGED, n=3), "vectors longer than"),
        ((1, 2, 1, 128), replace(RAGGED, n=1), None),
        ((1, 4, 4, 64), RAGGED, None),
        ((1, 4, 4, 64), replace(RAGGED, m=100), "several vectors of a thread"),
        ((4, 8, 4, 64), replace(RAGGED, k=4, dtype="float16"), "more reads"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(
    values: tuple[int, ...], problem: Problem, rule: str | None
) -> None:
    refusal = SPACE.refusal(tile(*values), problem, H200)
    assert refusal is None if rule is None else str(refusal).startswith(rule)


def test_a_class_of_one_k_is_verified_by_a_product_of_one() -> None:
    assert sample(OUTER.launch(OUTER.default(RAGGED, H200), RAGGED, H200)).k == 1


def test_a_batch_has_blocks_for_each_of_its_products_wherever_they_begin() -> None:
    assert blocks(tile(1, 4, 1, 64), Problem(16, 16, 1)) == 2  # 256 elements, and 3 before the first of them
    assert blocks(tile(1, 4, 1, 64), Problem(11, 23, 1)) == 1
    assert blocks(tile(1, 4, 1, 64), Problem(16, 16, 1, 7)) == 14


def test_only_a_k_of_four_from_sm_80_is_covered() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        assert OUTER.covers(replace(RAGGED, k=4, dtype=dtype), replace(H200, architecture="sm_80"))
    assert OUTER.covers(replace(RAGGED, precision="tf32"), H200)
    for problem in (replace(RAGGED, k=5), replace(RAGGED, precision="emulated")):
        assert not OUTER.covers(problem, H200)
    assert not OUTER.covers(RAGGED, replace(H200, architecture="sm_75"))
    assert not OUTER.covers(RAGGED, PROCESSOR)


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (Problem(1318, 291, 1, dtype="bfloat16"), True),
        (Problem(613, 187, 3), True),
        (Problem(66, 7748, 3), False),
        (Problem(2281, 2000, 1, dtype="bfloat16"), True),
        (Problem(2281, 4700, 1, dtype="bfloat16"), False),
        (Problem(2281, 2000, 2, dtype="bfloat16"), False),
        (Problem(9896, 18, 4, dtype="float16"), False),
    ],
)
def test_untuned_it_is_taken_where_k_is_one_or_c_is_small(problem: Problem, *, preferred: bool) -> None:
    assert (next(untuned(problem, H200)).name == "outer") is preferred


def test_untuned_blocks_are_smaller_where_there_are_few() -> None:
    assert OUTER.default(RAGGED, H200) == tile(1, 4, 1, 256)
    assert OUTER.default(Problem(108, 120, 1), H200) == tile(1, 2, 1, 64)
    assert OUTER.default(Problem(5000, 3, 2), H200)["VECTOR"] == 2
    assert OUTER.default(replace(RAGGED, dtype="float16"), H200)["VECTOR"] == 4
    assert OUTER.default(replace(RAGGED, m=2000, dtype="float16"), H200)["VECTOR"] == 8
    assert OUTER.default(replace(RAGGED, m=9000, dtype="float16"), H200) == tile(1, 8, 2, 128)
    assert OUTER.default(replace(RAGGED, m=9000, k=3, dtype="float16"), H200) == tile(3, 4, 2, 128)


# Rows that begin at any place of a vector, shorter than one, k of fewer than a tile's, batches, bases off 16 bytes.
CASES = {
    "ragged": ((1, 4, 1, 64), Problem(9, 61, 1), 0),
    "ragged-shifted": ((2, 4, 2, 64), Problem(9, 61, 2, 2, trans_a=True), 4),
    "short-rows": ((4, 4, 1, 64), Problem(71, 3, 4, 2, trans_b=True), 8),
    "one": ((1, 2, 1, 64), Problem(1, 1, 1), 0),
    "less-of-k": ((4, 4, 1, 64), Problem(20, 33, 2, 3), 0),
    "doubles": ((3, 2, 2, 64), Problem(13, 29, 3, 2, "float64", trans_a=True, trans_b=True), 8),
    "halves": ((3, 8, 1, 64), Problem(17, 45, 3, 2, "float16"), 2),
    "halves-of-short-rows": ((2, 4, 2, 64), Problem(90, 2, 2, 1, "bfloat16", trans_b=True), 0),
    "halves-turned": ((4, 8, 1, 64), Problem(21, 37, 4, 1, "bfloat16", trans_a=True, trans_b=True), 14),
}
FEW = ("ragged-shifted", "halves", "short-rows")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in CASES if each not in FEW)]
)
def test_products_of_integers_are_exact(name: str) -> None:
    values, problem, shift = CASES[name]
    home = replace(problem, m=2**16, n=2**8 if values[1] * problem.itemsize == 16 else 2, k=values[0], batch=1)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    launch = OUTER.for_problem(OUTER.launch(tile(*values), home, H200), problem)
    c, _ = interpreter.interpreted(launch, a, b, H200, shift)
    assert np.array_equal(c, rounded(problem, a, b) if problem.itemsize == 2 else reference(problem, a, b))


def test_nan_stays_in_its_row_and_what_is_past_k_makes_none_of_infinity() -> None:
    problem = Problem(33, 37, 2)
    home = replace(problem, m=2**12, k=4)
    launch = OUTER.for_problem(OUTER.launch(tile(4, 4, 1, 64), home, H200), problem)
    a, b = operands(problem, np.random.default_rng(11))
    a[0, 32, 1] = np.nan
    c, _ = interpreter.interpreted(launch, a, b, H200)
    assert np.isnan(c[0, 32]).all()
    assert np.isfinite(c[0, :32]).all()
    c, _ = interpreter.interpreted(launch, np.ones_like(a), np.full_like(b, np.inf), H200)
    assert (c == np.inf).all()


def test_vectors_are_stored_past_the_caches() -> None:
    text = ptx_of(OUTER.launch(tile(1, 4, 1, 128), RAGGED, H200).build, "90")
    assert re.search(r"st\.global\.cs\.v4\.f32", text)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_legal_configs_spill_nothing(architecture: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311  configs, no secrets
    device = replace(H200, architecture=architecture)
    for trans_a, trans_b in TRANSPOSITIONS:
        problem = transposed(
            draw.choice(OUTER.dtypes), trans_a, trans_b, 4096, draw.choice((3, 511)), draw.randint(1, 4)
        )
        legal = SPACE.legal(problem, device)
        for config in draw.sample(legal, min(len(legal), share_of(4))):
            found = nvrtc.compile_cubin(OUTER.launch(config, problem, device).build, architecture, tmp_path)
            assert not found.spills, (config, problem)
