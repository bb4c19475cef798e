"""tiled: tiles of A and B in shared memory, one thread for each element of C's tile."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.naive import LEAST_TILE, VECTOR, leaves_tiles_empty
from kernels.problem import Problem
from kernels.space import Config
from kernels.tiled.plan import plan
from kernels.tiled.space import SPACE

# What a GPU's defaults are chosen from, largest first: it wants deep phases, which hide its latency.
TILES: Final = ((32, 32), (16, 32), (16, 16), (8, 32), (8, 8), (4, 32), (4, 8), (4, 4))
DEPTHS: Final = (64, 32, 8)
# A processor wants the threads' sums and both tiles in its first cache, and vectors along x that are full. Of 14 tiles
# and blocks 16 x 16 was the fastest or nearly so from a dozen rows and columns up to some 500 (docs/kernel-log.md).
PROCESSOR_DEPTH: Final = 16


def _default(problem: Problem, device: Device) -> Config:
    if device.platform == "opencl":
        shapes = [dict(zip(SPACE.parameters, (*_on_processor(problem), PROCESSOR_DEPTH), strict=True))]
    else:
        shapes = [{"BM": bm, "BN": bn, "BK": bk} for bm, bn in TILES for bk in DEPTHS]
    return lightest(SPACE, shapes, problem, device)


def _on_processor(problem: Problem) -> tuple[int, int]:
    """BM and BN that fit C."""
    if problem.n <= LEAST_TILE:
        return 4, 4
    return (4, 32) if problem.m <= LEAST_TILE and problem.n > VECTOR else (16, 16)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether it is faster than naive: on a processor not where tiles would be mostly empty."""
    return device.platform == "cuda" or not leaves_tiles_empty(problem)


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
    preferred_untuned=_preferred_untuned,
)
