"""pack_k_major: copies of operands in aligned rows along k, as interpreted, for every order, dtype and batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.dtypes import numpy_dtype
from kernels.launch import Build, Launch
from kernels.packing import A, B, pack_k_major, packed_k_major, ragged
from kernels.problem import Problem
from kernels.rules import LINE_BYTES
from kernels.space import Config
from tests.support.kernels.devices import H200, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import Array
from tests.support.kernels.tensor_core_configs import DEVICES

cuda = pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")

ALL = [
    (dtype, turned, which, shape, batch)
    for turned, (dtype, which, shape, batch) in enumerate(
        (
            ("float16", A | B, (67, 33, 77), 2),
            ("bfloat16", A | B, (33, 70, 130), 1),
            ("float32", A | B, (65, 31, 33), 2),
            ("float16", A, (5, 3, 1), 3),
        )
    )
] + [("float32", 1, B, (3, 66, 65), 1), ("bfloat16", 0, B, (1, 65, 64), 2)]


@pytest.mark.rotating
@pytest.mark.parametrize(("dtype", "turned", "which", "shape", "batch"), ALL)
def test_rows_along_k_start_at_128_bytes_and_end_in_zeros(
    dtype: str, turned: int, which: int, shape: tuple[int, int, int], batch: int
) -> None:
    trans_a, trans_b = TRANSPOSITIONS[turned]
    problem = Problem(*shape, batch, dtype, trans_a=trans_a, trans_b=trans_b)
    rng, item = np.random.default_rng(5), problem.itemsize
    bits = np.uint16 if item == 2 else np.uint32
    a, b = (rng.integers(1, 2**15, (batch, *each)).astype(bits) for each in (problem.a_shape, problem.b_shape))
    found, step = packed_k_major(problem, which, 3), pack_k_major(problem, which)
    sizes = (a.nbytes, b.nbytes, 0, found.end * LINE_BYTES)
    starts = [0]
    for size in sizes[:-1]:
        starts.append(-(-(starts[-1] + size) // LINE_BYTES) * LINE_BYTES + LINE_BYTES)
    memory = np.full(starts[3] + sizes[3], 0xFF, np.uint8)
    readable = np.zeros(len(memory), np.bool_)
    for start, content in zip(starts, (a, b), strict=False):
        memory[start : start + content.nbytes] = content.view(np.uint8).reshape(-1)
        readable[start : start + content.nbytes] = True
    launch = Launch("pack_k_major", Config(()), problem, step.build, step.grid, step.block, 0, sizes[3], found.scalars)
    conflicts = interpreter.run(launch, starts, memory, readable, H200)
    workspace = memory[starts[3] :].view(bits)
    assert conflicts == 0
    assert (workspace[: 3 * LINE_BYTES // item] == np.iinfo(bits).max).all(), "what is before the copies is not written"
    left, right = a.swapaxes(1, 2) if trans_a else a, b if trans_b else b.swapaxes(1, 2)
    if which & A:
        expect_copied(workspace, left, found.at_a, found.lines_a)
    if which & B:
        expect_copied(workspace, right, found.at_b, found.lines_b)


def expect_copied(workspace: Array, rows: Array, at: int, lines: int) -> None:
    wide = lines * LINE_BYTES // workspace.itemsize
    first = at * LINE_BYTES // workspace.itemsize
    copy = workspace[first : first + rows.shape[0] * rows.shape[1] * wide].reshape(*rows.shape[:2], wide)
    assert np.array_equal(copy[..., : rows.shape[2]], rows)
    assert not copy[..., rows.shape[2] :].any()


def test_operands_are_ragged_whose_stored_rows_are_not_whole_16_bytes() -> None:
    assert ragged(Problem(64, 64, 64, dtype="float16")) == 0
    assert ragged(Problem(64, 63, 64, dtype="float16")) == B
    assert ragged(Problem(64, 64, 63, dtype="float16")) == A
    assert ragged(Problem(63, 64, 64, dtype="float16", trans_a=True)) == A
    assert ragged(Problem(64, 64, 62, dtype="float32", trans_b=True)) == A | B
    assert numpy_dtype("float32").itemsize * 4 == 16


@pytest.mark.rotating
@pytest.mark.parametrize("architecture", ["sm_90", *(pytest.param(each, marks=pytest.mark.slow) for each in DEVICES)])
def test_it_compiles_and_spills_nothing(architecture: str, tmp_path: Path) -> None:
    for dtype in ("float16", "float32"):
        for trans_a, trans_b in TRANSPOSITIONS[1:3]:
            build: Build = pack_k_major(Problem(9, 9, 9, dtype=dtype, trans_a=trans_a, trans_b=trans_b), A | B).build
            assert cuda.compile_cubin(build, architecture, tmp_path).spills == 0
