"""C = op(A) x op(B) by Numba: the tiled kernel written in Python, with the winner's tile.

It is the same algorithm as matmul.cu, compiled by Numba, and so not the binary that was measured: that one is
matmul.cubin, which tilewise_gemm.py launches. Matrices are row-major, [rows, columns] or [batch, rows, columns], and
contiguous. A product outside the class of the export raises OutsideClass. `python check.py --module tilewise_tiled`
checks it, without a GPU too: in Numba's simulator, which NUMBA_ENABLE_CUDASIM=1 chooses.
"""

import json
import os
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numba import cuda, float32, float64
from tilewise_recipe import OutsideClass, product

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
DTYPE = np.dtype(PROBLEM["dtype"])
REAL = float64 if PROBLEM["dtype"] == "float64" else float32
BM, BN, BK = (MANIFEST["config"][name] for name in ("BM", "BN", "BK"))
TRANS_A, TRANS_B = PROBLEM["trans_a"], PROBLEM["trans_b"]
THREADS, TILE_A, TILE_B = BM * BN, BM * BK, BK * BN
SAMPLES = 50
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


@cuda.jit
def matmul(a, b, c, m, n, k):
    """A block computes a tile of BM x BN; it copies BK of k of both operands into shared memory at a time."""
    a_tile = cuda.shared.array((BM, BK), REAL)
    b_tile = cuda.shared.array((BK, BN), REAL)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    across, down = (n + BN - 1) // BN, (m + BM - 1) // BM
    block = cuda.blockIdx.x
    top, left, batch = block // across % down * BM, block % across * BN, block // across // down
    total = REAL(0)
    for start in range(0, k, BK):
        for at in range(y * BN + x, TILE_A, THREADS):
            row, depth = top + at // BK, start + at % BK
            inside = row < m and depth < k
            if TRANS_A:
                a_tile[at // BK, at % BK] = a[batch, depth, row] if inside else REAL(0)
            else:
                a_tile[at // BK, at % BK] = a[batch, row, depth] if inside else REAL(0)
        for at in range(y * BN + x, TILE_B, THREADS):
            depth, column = start + at // BN, left + at % BN
            inside = depth < k and column < n
            if TRANS_B:
                b_tile[at // BN, at % BN] = b[batch, column, depth] if inside else REAL(0)
            else:
                b_tile[at // BN, at % BN] = b[batch, depth, column] if inside else REAL(0)
        cuda.syncthreads()
        for depth in range(BK):
            total += a_tile[y, depth] * b_tile[depth, x]
        cuda.syncthreads()
    if top + y < m and left + x < n:
        c[batch, top + y, left + x] = total


def sizes_of(a_shape, b_shape):
    """m, n, k and batch of stored operands; raises OutsideClass where they do not fit each other."""
    batch = a_shape[0] if len(a_shape) == 3 else 1
    m, k = reversed(a_shape[-2:]) if TRANS_A else a_shape[-2:]
    depth, n = reversed(b_shape[-2:]) if TRANS_B else b_shape[-2:]
    if depth != k or batch != (b_shape[0] if len(b_shape) == 3 else 1):
        raise OutsideClass(f"A is {a_shape} and B is {b_shape}: they cannot be multiplied")
    return m, n, k, batch


class Gemm:
    """The kernel on Numba's current device."""

    def multiply(self, a, b, c, sizes, stream=0):
        """Queue a product of device arrays of three dimensions; sizes are m, n, k and batch."""
        launch = product(MANIFEST, *sizes).launches[0]
        matmul[launch.grid, launch.block, stream](a, b, c, *sizes[:3])

    def multiply_host(self, a, b):
        """Multiply NumPy's arrays, and wait."""
        sizes = sizes_of(a.shape, b.shape)
        left, right, out = self._arrays(a, b, sizes)
        self.multiply(left, right, out, sizes)
        return out.copy_to_host().reshape(*a.shape[:-2], sizes[0], sizes[1])

    def seconds(self, a, b):
        """Seconds of launches with cold caches, by events; none in Numba's simulator.

        Nothing keeps the GPU busy meanwhile: of a short product they have Numba's own time for a launch in them.
        """
        if SIMULATED:
            return []
        sizes = sizes_of(a.shape, b.shape)
        sets = [self._arrays(a, b, sizes) for _ in range(MANIFEST["measured"]["sets"])]
        return [self._took(each, sizes) for each in islice(cycle(sets), SAMPLES + 2)][2:]

    def _took(self, arrays, sizes):
        start, end = cuda.event(), cuda.event()
        start.record()
        self.multiply(*arrays, sizes)
        end.record()
        end.synchronize()
        return 1e-3 * cuda.event_elapsed_time(start, end)

    @staticmethod
    def _arrays(a, b, sizes):
        m, n, _, batch = sizes
        stored = [np.ascontiguousarray(each, DTYPE).reshape(batch, *each.shape[-2:]) for each in (a, b)]
        return [*map(cuda.to_device, stored), cuda.device_array((batch, m, n), DTYPE)]
