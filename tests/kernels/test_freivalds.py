"""What NVRTC makes of the kernels of Freivalds' check, on the interpreter: no race, no bank conflict, exact sums."""

from __future__ import annotations

import numpy as np
import pytest

from app.dtypes import Array, numpy_dtype
from kernels.freivalds import BLOCK_BYTES, VECTORS, WIDTH, StoredMatrix, project, row_peaks, word_sums
from kernels.launch import COUNTERS, Launch
from tests.devices.test_cubins import H200

launches = pytest.importorskip("tests.ptx_interpreter.launches")
GAP = 1024


def ran(launch: Launch, a: Array, b: Array, out: Array) -> tuple[Array, int]:
    """C, as large as `out`, and bank conflicts; nothing else but the workspace may be written."""
    starts, at = [], GAP
    for array in (a, b, out):
        starts.append(at)
        at = -(-(at + array.nbytes + GAP) // 128) * 128
    starts.append(at)
    memory = np.full(at + launch.workspace_bytes + GAP, 0xFF, np.uint8)
    readable = np.zeros(len(memory), np.bool_)
    for start, array in zip(starts[:2], (a, b), strict=True):
        memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        readable[start : start + array.nbytes] = True
    memory[at : at + min(launch.workspace_bytes, 4 * COUNTERS)] = 0
    readable[at : at + launch.workspace_bytes] = True
    before, conflicts = memory.copy(), launches.run(launch, starts, memory, readable, H200)
    for written in (slice(starts[2], starts[2] + out.nbytes), slice(at + 4 * COUNTERS, at + launch.workspace_bytes)):
        before[written] = memory[written]
    assert np.array_equal(before, memory), "something else was written"
    found = memory[starts[2] : starts[2] + out.nbytes].view(out.dtype).reshape(out.shape)
    return found.copy(), conflicts


@pytest.mark.rotating
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_projection_is_exact_where_sums_are(dtype: str, turned: bool) -> None:
    rng, matrix = np.random.default_rng(1), StoredMatrix(269, 35, 2, dtype, turned)
    values = rng.integers(-8, 9, (2, 269, 35)).astype(numpy_dtype(dtype))
    factors = rng.integers(-3, 4, (2, 269, WIDTH)).astype(np.float64)
    stored = values.swapaxes(1, 2) if turned else values
    found, conflicts = ran(project(matrix), factors, stored, np.zeros(matrix.sketch_shape))
    exact, weights = values.astype(np.float64), factors[..., VECTORS, None]
    assert np.array_equal(found[..., :VECTORS], exact.swapaxes(1, 2) @ factors[..., :VECTORS])
    assert np.array_equal(found[..., VECTORS], np.ones((2, 35)))
    assert np.array_equal(found[..., -1], np.square(weights * exact).sum(1))
    assert conflicts == 0


@pytest.mark.rotating
@pytest.mark.parametrize("turned", [False, True])
def test_the_peaks_of_rows_are_those_of_a_sample_and_nan_where_it_has_one(turned: bool) -> None:
    rng, matrix = np.random.default_rng(2), StoredMatrix(7, 600, 2, "float32", turned)
    values = rng.standard_normal((2, 7, 600)).astype(np.float32)
    values[0, 3, 4], values[1, 5, 1] = np.nan, np.nan  # the second is in no sample
    stored = values.swapaxes(1, 2) if turned else values
    found, _ = ran(row_peaks(matrix), np.zeros(1), stored, np.zeros((2, 7)))
    assert np.array_equal(found, np.abs(values[:, :, ::2]).max(2), equal_nan=True)
    assert np.isnan(found).sum() == 1


@pytest.mark.rotating
@pytest.mark.parametrize("nbytes", [2, 14, BLOCK_BYTES, BLOCK_BYTES + 6])
def test_the_sums_of_words_are_those_of_blocks_and_end_with_zeros(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    count = -(-nbytes // BLOCK_BYTES)
    found, conflicts = ran(word_sums(nbytes), data, np.zeros(1), np.zeros(count, np.uint64))
    padded = np.pad(data, (0, count * BLOCK_BYTES - nbytes)).view(np.uint64)
    assert np.array_equal(found, padded.reshape(count, -1).sum(1))
    assert conflicts == 0
