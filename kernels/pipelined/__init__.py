"""pipelined: register_tiled's product with operands read and copied ahead, on CUDA from sm_80; strict float32."""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel
from kernels.packing import PACK_MN_MAJOR, is_c_ragged, packed_bytes
from kernels.pipelined.cost_model import seconds
from kernels.pipelined.plan import SPLIT_K_REDUCE, cp_sizes, plan
from kernels.pipelined.space import SPACE, STAGED_TILE, is_ragged
from kernels.problem import Problem
from kernels.register_tiled import untuned_seconds as register_tiled_seconds
from kernels.register_tiled.space import SPLITS
from kernels.residuals import CANDIDATES, ranked
from kernels.space import Config
from kernels.split_k import CLUSTERS, cluster_divides, cluster_exists
from kernels.stream_k import SMS

# Of C: of no more, or with a side shorter than a tile's, register_tiled may be faster.
SMALL_C: Final = 2**16
LEAST_SIDE: Final = 32
# What defaults are chosen from, and seeds of a search: BM, BN, TM, TN, WN, BK, STAGES, SLICE_K. Those that are fastest
# where products fill a GPU, and those that the model has fastest for 158 drawn problems, the fewest within a hundredth
# of the best; of 256 threads at most, as it has more of them too fast. The others were found faster by tunes of drawn
# problems, sixteen since tiles take fewer instructions to begin and to store; by the model for 203 problems, fifteen
# with sides of 48, 96 or 192; two where tiles stay K-major; and by the model for 185 others the last six, with which
# its choices are estimated at 1.8 % above the best of the whole space, at 2.3 before.
_TILES: Final = (
    (128, 256, 8, 16, 128, 16, 4, 1),
    (256, 128, 16, 8, 64, 16, 4, 1),
    (128, 128, 8, 8, 64, 16, 4, 1),
    (64, 128, 8, 8, 64, 16, 4, 1),
    (64, 128, 8, 16, 64, 8, 4, 1),
    (64, 128, 8, 8, 64, 16, 4, 2),
    (128, 64, 8, 8, 32, 16, 4, 1),
    (128, 64, 8, 8, 32, 16, 4, 2),
    (128, 64, 8, 8, 32, 8, 4, 1),
    (64, 128, 8, 8, 32, 8, 4, 1),
    (64, 64, 8, 8, 32, 8, 4, 1),
    (64, 64, 4, 8, 16, 8, 4, 1),
    (64, 64, 8, 8, 32, 16, 4, 1),
    (64, 64, 8, 8, 64, 32, 4, 4),
    (64, 64, 8, 4, 64, 32, 4, 4),
    (32, 128, 8, 8, 64, 16, 4, 2),
    (32, 128, 8, 8, 64, 32, 4, 4),
    (128, 32, 8, 8, 32, 16, 4, 2),
    (32, 64, 8, 8, 64, 32, 4, 4),
    (32, 64, 8, 4, 64, 32, 4, 4),
    (32, 64, 8, 4, 64, 16, 4, 2),
    (64, 32, 8, 4, 16, 32, 4, 4),
    (64, 32, 8, 8, 32, 8, 4, 1),
    (64, 32, 4, 8, 16, 16, 4, 2),
    (32, 32, 4, 8, 32, 32, 4, 4),
    (32, 32, 4, 8, 32, 16, 4, 2),
    (32, 32, 4, 4, 16, 32, 4, 4),
    (32, 32, 4, 4, 16, 64, 4, 4),
    (32, 32, 4, 4, 16, 32, 4, 2),
    (32, 32, 4, 4, 16, 16, 4, 2),
    (32, 32, 4, 4, 16, 16, 4, 1),
    (32, 32, 4, 4, 16, 8, 4, 1),
    (64, 256, 8, 16, 128, 8, 3, 1),
    (128, 128, 8, 16, 64, 8, 4, 1),
    (128, 64, 8, 16, 32, 8, 3, 1),
    (64, 128, 8, 8, 32, 8, 3, 1),
    (128, 64, 8, 8, 32, 8, 3, 1),
    (64, 64, 8, 4, 64, 8, 4, 1),
    (64, 64, 8, 4, 64, 8, 3, 1),
    (32, 128, 8, 8, 64, 8, 3, 1),
    (128, 32, 8, 8, 32, 8, 3, 1),
    (128, 32, 8, 4, 32, 16, 3, 1),
    (32, 64, 8, 4, 64, 8, 4, 1),
    (64, 32, 8, 4, 32, 8, 3, 1),
    (32, 32, 8, 4, 32, 16, 3, 2),
    (32, 32, 8, 4, 32, 64, 4, 4),
    (32, 32, 4, 4, 32, 16, 4, 2),
    (32, 32, 4, 4, 32, 8, 4, 1),
    (192, 96, 12, 12, 96, 8, 4, 1),
    (48, 64, 12, 4, 64, 16, 4, 2),
    (96, 192, 12, 12, 96, 8, 4, 1),
    (128, 48, 4, 12, 48, 8, 4, 1),
    (48, 32, 12, 4, 32, 32, 4, 4),
    (192, 192, 12, 12, 96, 8, 4, 1),
    (96, 48, 12, 12, 48, 32, 4, 4),
    (48, 128, 12, 4, 64, 8, 4, 1),
    (96, 96, 12, 12, 96, 8, 4, 1),
    (96, 48, 4, 12, 48, 32, 4, 4),
    (48, 128, 12, 8, 64, 32, 4, 4),
    (48, 96, 12, 4, 32, 8, 4, 1),
    (128, 96, 8, 12, 96, 16, 4, 2),
    (96, 128, 12, 4, 64, 8, 4, 1),
    (192, 192, 12, 8, 64, 8, 4, 1),
    (32, 96, 8, 12, 96, 32, 4, 4),
    (64, 64, 8, 8, 64, 32, 3, 4),
    (48, 128, 12, 8, 64, 8, 4, 1),
    (256, 64, 16, 8, 64, 8, 4, 1),
    (256, 32, 8, 8, 32, 8, 4, 1),
    (64, 256, 16, 8, 128, 8, 4, 1),
    (128, 32, 8, 8, 32, 32, 4, 4),
    (192, 64, 12, 8, 64, 8, 4, 1),
)
CP_SIZE: Final = ("CP_SIZE_A", "CP_SIZE_B")
_NAMES: Final = ("BM", "BN", "TM", "TN", "WN", "BK", "STAGES", "SLICE_K")
# Estimates of one power of two, in so many parts, are equal: the order of the tiles decides.
ALIKE: Final = 32
# Blocks for each SM that splits of k make at most: of small tiles several fit one.
BLOCKS_OF_SM: Final = 4
# What is packed at most where rows are whole, which need not be: products in tiles have little room beside, and their
# first tiles come in slices of k, which no packing precedes.
PACKED_BYTES: Final = 2**29
# How many of them a search begins with, each unlike the others in one of these.
SEEDS: Final = 8
UNLIKE: Final = (*_NAMES, "STREAM_K_SMS", "CLUSTER_K", "PACK_MN", "K_MAJOR", "SPLIT_K")


def _default(problem: Problem, device: Device) -> Config:
    """The config of the least corrected estimate; the space's first one if the device allows none of those."""
    found = _fastest(problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


@lru_cache(1024)
def _fastest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Of the legal configs of the least estimates, no two of one tile, the first ones when corrected."""
    ways = [SPACE.config(each) for tile in _TILES for each in _ways(tile, problem, device)]
    ordered = sorted(ways, key=lambda each: round(ALIKE * log2(seconds(each, problem, device))))
    candidates = SPACE.first_unlike(ordered, UNLIKE, CANDIDATES, problem, device)
    return ranked(PIPELINED, candidates, problem, device)[:SEEDS]


def _ways(tile: tuple[int, ...], problem: Problem, device: Device) -> list[dict[str, int]]:
    """Configs of a tile: how k is shared out, packing where B's rows are turned or some ragged, and groups of tiles.

    Where both operands are K-major and threads share k, the same with tiles that stay so.
    """
    shape, ragged = dict(zip(_NAMES, tile, strict=True)), is_ragged(problem)
    tiles, sms = _tiles(shape, problem), device.limits.sms
    shape |= {
        "MIN_BLOCKS": 1,
        "STAGE_C": int(is_c_ragged(problem) and shape["BM"] * shape["BN"] >= STAGED_TILE),
        "GROUP_M": 8 if tiles > 2 * sms else 1,
    }
    splits = [(0, split, 1) for split in SPLITS if split * tiles <= BLOCKS_OF_SM * sms or split == 1]
    clusters = [(0, 1, each) for each in CLUSTERS[1:] if _has_clusters(shape, each, problem, device)]
    shared = [(sms, 1, 1)] if sms in SMS and shape["SLICE_K"] == 1 else []
    packing = (0, 1) if ragged or (problem.trans_b and packed_bytes(problem) <= PACKED_BYTES) else (0,)
    k_major = [(0, 1)] if not problem.trans_a and problem.trans_b and shape["SLICE_K"] > 1 else []
    copies = [
        {"PACK_MN": packed, "K_MAJOR": kept, **dict(zip(CP_SIZE, cp_sizes(packed, kept, problem), strict=True))}
        for packed, kept in (*((each, 0) for each in packing), *k_major)
    ]
    return [
        shape | each | {"STREAM_K_SMS": streamed, "SPLIT_K": split, "CLUSTER_K": parts}
        for streamed, split, parts in (*splits, *clusters, *shared)
        for each in copies
    ]


def _has_clusters(shape: dict[str, int], parts: int, problem: Problem, device: Device) -> bool:
    config = Config.of(shape | {"SPLIT_K": 1, "CLUSTER_K": parts})
    return cluster_exists(config, problem, device) and cluster_divides(config, problem, device)


def _tiles(shape: dict[str, int], problem: Problem) -> int:
    return -(-problem.m // shape["BM"]) * -(-problem.n // shape["BN"]) * problem.batch


def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default."""
    return seconds(_default(problem, device), problem, device)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether C is large and no side short, or this is estimated to be faster than register_tiled.

    That has smaller tiles, and a slice of k for each of a block's teams: at 256 cubed it takes 0.7 of the time.
    """
    if problem.m * problem.n * problem.batch > SMALL_C and min(problem.m, problem.n) >= LEAST_SIDE:
        return True
    return untuned_seconds(problem, device) <= register_tiled_seconds(problem, device)


PIPELINED: Final = Kernel(
    name="pipelined",
    summary="Tiles as register_tiled's, with the next operands read and copied between the products.",
    file="pipelined/kernel.cu",
    space=SPACE,
    dtypes=("float32",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    seeds=_fastest,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    preferred_untuned=_preferred_untuned,
    auxiliary_sources=(PACK_MN_MAJOR, SPLIT_K_REDUCE),
    architectures=("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
)
