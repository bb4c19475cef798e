"""register_tiled: tiles in shared memory, with TM x TN accumulators a thread in registers."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.packing import PACK_MN_MAJOR
from kernels.problem import Problem
from kernels.register_tiled.cost_model import seconds
from kernels.register_tiled.plan import BUFFERED, plan
from kernels.register_tiled.space import BUSY_THREADS, COPIES_SINCE, SPACE, SPLITS
from kernels.space import Config

# What defaults are chosen from, largest first: BM, BN, TM, TN, WN, BK, STAGES, MIN_BLOCKS; and so many teams, most
# first.
_CUDA: Final = (
    (256, 128, 16, 8, 64, 16, 3, 1),
    (128, 256, 8, 16, 64, 16, 3, 1),
    (128, 128, 8, 8, 64, 16, 3, 2),
    (128, 64, 8, 8, 32, 32, 4, 1),
    (64, 128, 8, 8, 64, 32, 4, 1),
)
# Doubles take two registers each: 8 x 8 of them leave too few on some architectures. Small tiles are the same for both.
_DOUBLES: Final = ((128, 64, 8, 4, 32, 16, 3, 1), (64, 128, 4, 8, 32, 16, 3, 1))
_SMALL: Final = (
    (64, 64, 8, 8, 32, 32, 4, 1),
    (64, 64, 4, 8, 32, 16, 3, 1),
    (32, 128, 4, 8, 32, 16, 3, 1),
    (64, 32, 4, 4, 16, 32, 4, 1),
    (32, 64, 4, 4, 32, 32, 4, 1),
    (32, 32, 4, 4, 16, 32, 4, 1),
    (32, 32, 4, 4, 16, 16, 3, 1),
    (32, 32, 4, 4, 16, 8, 3, 1),
    (16, 32, 4, 4, 32, 32, 4, 1),
)
_OPENCL: Final = (
    (128, 128, 8, 16, 64, 64, 1, 1),
    (64, 64, 8, 16, 64, 64, 1, 1),
    (32, 64, 4, 16, 64, 64, 1, 1),
    (32, 32, 4, 8, 32, 64, 1, 1),
    (32, 32, 4, 4, 16, 64, 1, 1),
)
# On a processor tiled is faster below so many operations, of which fewer suffice where A is stored k x m, and for a C
# with a side below one tile's: a block of register_tiled begins with work that small products do not repay.
_FLOPS: Final = 2.5e8
_FLOPS_TRANSPOSED: Final = 1.5e8
_SIDE: Final = 64
# What tiles of that side may exceed C by, for it to be faster than tiled; and k tiles k.
PAST_EDGES: Final = 1.4
PADDED: Final = 1.25
_TILE_NAMES: Final = ("BM", "BN", "TM", "TN", "WN", "BK", "STAGES", "MIN_BLOCKS")


def _default(problem: Problem, device: Device) -> Config:
    large = _CUDA if problem.dtype == "float32" else _DOUBLES
    tiles = (*large, *_SMALL) if device.platform == "cuda" else _OPENCL
    shapes = [dict(zip(_TILE_NAMES, tile, strict=True)) for tile in tiles]
    if device.platform != "cuda":
        shapes = [shape | {"BK": min(shape["BK"], _depth(problem))} for shape in shapes]
    elif device.capability < COPIES_SINCE:
        shapes = [shape | {"STAGES": BUFFERED} for shape in shapes]
    return lightest(SPACE, [each for shape in shapes for each in _ways(shape, problem, device)], problem, device)


def _depth(problem: Problem) -> int:
    """The largest BK whose k tiles exceed k by no more than PADDED; of a k that one tile has, the least BK."""
    depths = SPACE.parameters["BK"]
    if problem.k <= depths[-1]:
        return next(bk for bk in depths if bk >= problem.k)
    return next((bk for bk in reversed(depths) if -(-problem.k // bk) * bk <= PADDED * problem.k), depths[0])


def _ways(shape: dict[str, int], problem: Problem, device: Device) -> list[dict[str, int]]:
    """Configs of a tile: SLICE_K, SPLIT_K, packing and groups of tiles."""
    teams = (4, 2, 1) if device.platform == "cuda" else (1,)
    tiles = -(-problem.m // shape["BM"]) * -(-problem.n // shape["BN"]) * problem.batch
    own = shape["BM"] // shape["TM"] * shape["BN"] // shape["TN"]
    group = 8 if device.platform == "cuda" and tiles > 2 * device.limits.sms else 1
    return [
        shape | {"BK": bk, "SLICE_K": team, "SPLIT_K": split, "PACK_MN": packed, "GROUP_M": group}
        for split in SPLITS
        if split * tiles <= 2 * device.limits.sms or split == 1
        for team in teams
        if team == 1 or 2 * team * own <= BUSY_THREADS
        for bk in (max(shape["BK"], 16 * team) if team > 1 else shape["BK"],)
        for packed in (1, 0)
    ]


@lru_cache(1024)
def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default, of float32 on CUDA."""
    return seconds(_default(problem, device), problem, device)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether it is faster than tiled: on a GPU always, on a processor for large products."""
    if device.platform == "cuda":
        return True
    least = _FLOPS_TRANSPOSED if problem.trans_a else _FLOPS
    covered = -(-problem.m // _SIDE) * -(-problem.n // _SIDE) * _SIDE**2
    is_filled = covered <= PAST_EDGES * problem.m * problem.n
    return min(problem.m, problem.n) >= _SIDE and is_filled and problem.flops >= least


REGISTER_TILED: Final = Kernel(
    name="register_tiled",
    summary="Tiles in shared memory, of which each thread adds up TM x TN elements of C in registers.",
    file="register_tiled/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    auxiliary_sources=(PACK_MN_MAJOR,),
    preferred_untuned=_preferred_untuned,
)
