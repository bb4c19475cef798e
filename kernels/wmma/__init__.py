"""wmma: a warp for each 16 x 16 of C, which tensor cores multiply in steps of 16 along k; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels import arithmetic
from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.packing import is_worth_packing
from kernels.problem import Problem
from kernels.space import Config
from kernels.wmma.plan import plan
from kernels.wmma.space import SPACE

# What defaults are chosen from, largest first: BM, BN, BK.
_TILES: Final = ((64, 64, 64), (32, 64, 64), (64, 32, 64), (32, 32, 64), (16, 64, 64), (64, 16, 64), (16, 16, 64))


def _default(problem: Problem, device: Device) -> Config:
    return lightest(SPACE, [dict(zip(SPACE.parameters, tile, strict=True)) for tile in _TILES], problem, device)


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
    preferred_untuned=is_worth_packing,
    min_capability=70,
    dtype_capabilities=(("bfloat16", 80),),
    instructions=arithmetic.WMMA,
)
