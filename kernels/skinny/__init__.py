"""skinny: C with a short side; its long operand goes from memory into registers once, k is shared out among threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.pipelined import PIPELINED
from kernels.pipelined import untuned_seconds as pipelined_seconds
from kernels.problem import Problem
from kernels.register_tiled import untuned_seconds as register_tiled_seconds
from kernels.residuals import least
from kernels.rules import covering_tile
from kernels.skinny.cost_model import seconds
from kernels.skinny.plan import SHORT_SIDES, has_ring, plan, vector
from kernels.skinny.space import DEPTHS, LONG_SIDES, SPACE, STAGES
from kernels.space import Config

# This kernel suits a C whose short side is no longer.
SUITED: Final = 32
# What its estimate may be of pipelined's and register_tiled's, which are the safer ones, above all of batches.
SURELY: Final = 0.9
OF_BATCH: Final = 0.8
# Elements of A from which it is faster than naive and tiled on a processor, for a C of one column, A or B transposed.
LARGE_A: Final = 2**19
# Elements of a phase of the short operand, and of k.
_PHASE: Final = 4096
_DEEPEST: Final = 1024
# Threads of a block of a default, and blocks that an SM holds of it.
_BLOCKS: Final = (128, 256, 512)
_HELD: Final = (1, 2, 4)


def _choices(problem: Problem) -> Iterator[dict[str, tuple[int, ...]]]:
    """The candidates for defaults: parts of the space with one tile and one STAGES each."""
    short, pack, flat = covering_tile(min(problem.m, problem.n), SHORT_SIDES), vector(problem), problem.m <= problem.n
    most = min(_DEEPEST, _PHASE // short)
    for long, each, splits, stages in product(LONG_SIDES, sorted({4, pack}), SPACE.parameters["SLICE_K"], STAGES):
        depth = next((k_step for k_step in DEPTHS if k_step >= max(min(most, problem.k), splits * stages * pack)), 0)
        tile = (short, long, short, each) if flat else (long, short, each, short)
        if depth and long // each * splits in _BLOCKS:
            fixed = zip(SPACE.parameters, (*tile, splits, depth, stages), strict=False)
            yield {**SPACE.parameters, **{name: (value,) for name, value in fixed}, "MIN_BLOCKS": _HELD}


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """The candidate of the least corrected estimate; else the space's first legal config, or its first."""
    parts = (replace(SPACE, parameters=choice) for choice in _choices(problem))
    legal = (each for part in parts for each in part.legal(problem, device))
    found = least(SKINNY, legal, problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether no pipelined is there, or both that and register_tiled are estimated to be surely slower.

    On a processor naive and tiled are faster, but for a C of one column and a large A.
    """
    if device.platform == "opencl":
        is_column = problem.n == 1 and (problem.trans_a or problem.trans_b)
        return is_column and problem.m * problem.k >= LARGE_A
    if not has_ring(problem):  # the rungs of tensor cores are above
        return True
    if not PIPELINED.covers(problem, device):
        return True
    other = min(pipelined_seconds(problem, device), register_tiled_seconds(problem, device))
    return seconds(_default(problem, device), problem, device) <= (SURELY if problem.batch == 1 else OF_BATCH) * other


SKINNY: Final = Kernel(
    name="skinny",
    summary="C with a short side: the long operand straight into registers, k shared out among threads and blocks.",
    file="skinny/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    seconds=seconds,
    dynamic_smem=True,
    arguments=("SPLIT_K",),
    sizes=Sizes(short_most=SUITED),
    preferred_untuned=_preferred_untuned,
    shapes=f"a C with a side of at most {SUITED}",
)
