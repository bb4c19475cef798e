"""wmma: its space and defaults, what NVRTC makes of it, and its products as interpreted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.problem import Problem
from kernels.rules import DECLARED_BYTES
from kernels.space import Config
from kernels.wmma import WMMA
from kernels.wmma.plan import shared_bytes, threads
from kernels.wmma.space import SPACE
from tests.support.kernels.devices import H200, PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import operands
from tests.support.kernels.tensor_core_configs import DEVICES, expect_nan_in_its_row, rounded

cuda = pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")

CUBE = Problem(1024, 1024, 1024, dtype="float16")


def tile(*values: int) -> Config:
    return SPACE.config(dict(zip(SPACE.parameters, values, strict=True)))


def test_a_warp_has_16_x_16_of_the_tile() -> None:
    assert threads(tile(16, 16, 16)) == 32
    assert threads(tile(64, 32, 64)) == 256
    launch = WMMA.launch(tile(64, 32, 64), replace(CUBE, m=65, n=33, batch=3), H200)
    assert (launch.grid, launch.block) == (12, (256, 1))


@pytest.mark.parametrize(
    ("values", "rule"),
    [((128, 128, 16), "more threads"), ((64, 128, 64), "more shared memory")],
)
def test_what_cannot_run_is_refused_by_its_reason(values: tuple[int, ...], rule: str) -> None:
    assert str(SPACE.refusal(tile(*values), CUBE, H200)).startswith(rule)


@pytest.mark.parametrize("size", [1, 17, 64, 1000, 8192])
def test_defaults_are_legal(size: int) -> None:
    for dtype in WMMA.dtypes:
        problem = Problem(size, size, size, dtype=dtype)
        chosen = WMMA.default(problem, H200)
        assert SPACE.refusal(chosen, problem, H200) is None
        assert shared_bytes(chosen, problem) <= DECLARED_BYTES


def test_only_architectures_with_the_instruction_are_covered() -> None:
    turing = replace(H200, architecture="sm_75")
    assert WMMA.covers(CUBE, turing)
    assert not WMMA.covers(replace(CUBE, dtype="bfloat16"), turing)
    assert WMMA.covers(replace(CUBE, dtype="bfloat16"), H200)
    assert not WMMA.covers(CUBE, PROCESSOR)
    assert not WMMA.covers(replace(CUBE, dtype="float32"), H200)


# Whole tiles and not, of one warp and of many, several phases and less than one, batches, bases off 16 bytes.
CASES = [
    pytest.param("float16", (16, 16, 16), 0, (16, 16, 16), 1, 0, id="float16-one"),
    pytest.param("float16", (32, 32, 32), 0, (35, 41, 37), 2, 2, id="float16-nn"),
    pytest.param("float16", (16, 64, 16), 1, (17, 63, 50), 1, 0, id="float16-nt"),
    pytest.param("bfloat16", (64, 16, 64), 2, (65, 15, 70), 2, 0, id="bfloat16-tn"),
    pytest.param("bfloat16", (32, 64, 32), 3, (31, 65, 33), 1, 6, id="bfloat16-tt"),
    pytest.param("bfloat16", (32, 32, 16), 0, (1, 1, 1), 3, 0, id="bfloat16-tiny"),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("dtype", "values", "turned", "shape", "batch", "shift"), CASES)
def test_products_of_integers_are_exact(
    dtype: str, values: tuple[int, ...], turned: int, shape: tuple[int, int, int], batch: int, shift: int
) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    problem = Problem(*shape, batch, dtype, trans_a=trans_a, trans_b=trans_b)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, _ = interpreter.interpreted(WMMA.launch(tile(*values), problem, H200), a, b, H200, shift)
    assert np.array_equal(c, rounded(problem, a, b))


def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity() -> None:
    problem = Problem(33, 17, 19, dtype="float16")
    launch = WMMA.launch(tile(32, 16, 16), problem, H200)
    expect_nan_in_its_row(launch, interpreter.interpreted)


COMPILED = [
    pytest.param(architecture, dtype, turned, marks=[] if architecture == "sm_90" and turned == 1 else pytest.mark.slow)
    for architecture in ("sm_75", *DEVICES)
    for dtype in WMMA.dtypes
    for turned in range(4)
    if architecture != "sm_75" or dtype == "float16"
]


@pytest.mark.rotating
@pytest.mark.parametrize(("architecture", "dtype", "turned"), COMPILED)
def test_default_and_edge_configs_compile_without_spills(
    architecture: str, dtype: str, turned: int, tmp_path: Path
) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    problem = replace(CUBE, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    for chosen in {tile(16, 16, 16), tile(128, 64, 32), WMMA.default(problem, H200)}:
        launch = WMMA.launch(chosen, problem, replace(H200, architecture=architecture))
        assert cuda.compile_cubin(launch.build, architecture, tmp_path).spills == 0
