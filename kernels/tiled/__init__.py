"""tiled: tiles of A and B in shared memory, one thread for each element of C's tile."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config
from kernels.tiled.plan import plan
from kernels.tiled.space import SPACE

# What defaults are chosen from, largest first: a GPU wants deep phases, which hide its latency; a processor wants the
# threads' sums and both tiles in its first cache.
TILES: Final = {
    "cuda": ((32, 32), (16, 32), (16, 16), (8, 32), (8, 8), (4, 32), (4, 8), (4, 4)),
    "opencl": ((16, 16), (8, 16), (4, 32), (4, 16), (4, 8), (4, 4)),
}
DEPTHS: Final = {"cuda": (64, 32, 8), "opencl": (16, 8)}


def _default(problem: Problem, device: Device) -> Config:
    shapes = [{"BM": bm, "BN": bn, "BK": bk} for bm, bn in TILES[device.platform] for bk in DEPTHS[device.platform]]
    return lightest(SPACE, shapes, problem, device)


TILED: Final = Kernel(
    name="tiled",
    summary="Tiles of A and B in shared memory, one thread for each element of C's tile.",
    file="tiled/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
)
