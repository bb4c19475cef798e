"""naive: one thread for each element of C, from global memory alone; the baseline of tiling."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.naive.plan import plan
from kernels.naive.space import SPACE
from kernels.problem import Problem
from kernels.space import Config

# Rows and columns of tiled's smallest tile, and columns of a vector: on a processor a block's threads along x are one,
# and those past C's edge are computed with the rest.
LEAST_TILE: Final = 4
VECTOR: Final = 16
_LONG_ROW: Final = 256  # columns from which a single row is shared among wider blocks


def _default(problem: Problem, device: Device) -> Config:
    if device.platform == "opencl":
        return lightest(SPACE, [dict(zip(SPACE.parameters, _on_processor(problem), strict=True))], problem, device)
    shapes = ((8, 32), (4, 32), (1, 64), (1, 8))
    return lightest(SPACE, [dict(zip(SPACE.parameters, shape, strict=True)) for shape in shapes], problem, device)


def _on_processor(problem: Problem) -> tuple[int, int]:
    """BM and BN that fit C."""
    if problem.m == 1:
        return (1, 8) if problem.n < _LONG_ROW else (1, 64)
    if problem.n <= VECTOR or problem.m <= LEAST_TILE:
        return (2, 16) if problem.n > VECTOR else (1, 8)
    return 8, 32


def leaves_tiles_empty(problem: Problem) -> bool:
    """Whether a processor makes C faster without tiles: of one or two rows, or small and of few rows or columns.

    By the times of drawn shapes (docs/kernel-log.md).
    """
    if problem.m <= LEAST_TILE:
        return problem.m <= LEAST_TILE // 2 or problem.n <= VECTOR
    return problem.n <= LEAST_TILE and problem.k <= LEAST_TILE


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether it is faster than tiled: on a GPU never."""
    return device.platform == "opencl" and leaves_tiles_empty(problem)


NAIVE: Final = Kernel(
    name="naive",
    summary="One thread for each element of C, every operand from global memory.",
    file="naive/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    preferred_untuned=_preferred_untuned,
)
