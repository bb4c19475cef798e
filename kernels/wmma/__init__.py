"""wmma: a warp for each 16 x 16 of C, which tensor cores multiply in steps of 16 along k; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels import arithmetic
from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.space import Config
from kernels.wmma.plan import plan
from kernels.wmma.space import SPACE

# What defaults are chosen from, largest first: BM, BN, BK.
_TILES: Final = ((64, 64, 64), (32, 64, 64), (64, 32, 64), (32, 32, 64), (16, 64, 64), (64, 16, 64), (16, 16, 64))


# The short side up to which skinny, which packs nothing, is faster on ragged rows, and the least k where it is.
_THIN: Final = 4
_LONG_K: Final = 512


def _default(problem: Problem, device: Device) -> Config:
    return lightest(SPACE, [dict(zip(SPACE.parameters, tile, strict=True)) for tile in _TILES], problem, device)


def _preferred_untuned(problem: Problem, _: Device) -> bool:
    """Whether no row is ragged, C has no short side or k is not long."""
    return not ragged(problem) or min(problem.m, problem.n) > _THIN or problem.k < _LONG_K


WMMA: Final = Kernel(
    name="wmma",
    summary="Tiles of 16 x 16 x 16 in shared memory that a warp multiplies at once on tensor cores.",
    file="wmma/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    preferred_untuned=_preferred_untuned,
    min_capability=70,
    dtype_capabilities=(("bfloat16", 80),),
    instructions=arithmetic.WMMA,
)
