"""pipelined: register_tiled's product with operands read and copied ahead, on CUDA from sm_80; strict float32."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.packing import PACK_MN_MAJOR, is_c_ragged, packed_bytes
from kernels.pipelined.cost_model import LAUNCH, seconds
from kernels.pipelined.plan import SPLIT_K_REDUCE, plan
from kernels.pipelined.space import BUSY_THREADS, SPACE, STAGED_TILE, is_ragged
from kernels.problem import Problem
from kernels.register_tiled.space import SPLITS
from kernels.space import Config
from kernels.stream_k import SMS

# Of C: fewer are too few tiles, where k is no longer than what is not sliced.
SMALL_C: Final = 2**16
NOT_SLICED: Final = 512
# What copies of one element instead of four add to the time of the loop over k, as the instructions in it say.
SINGLE_COST: Final = 0.05
# What defaults are chosen from, largest first: BM, BN, TM, TN, WN, BK, STAGES, MIN_BLOCKS.
_TILES: Final = (
    (128, 256, 8, 16, 128, 16, 4, 1),
    (256, 128, 16, 8, 64, 16, 4, 1),
    (128, 128, 8, 8, 64, 16, 4, 1),
    (64, 128, 8, 8, 64, 16, 4, 1),
    (128, 64, 8, 8, 32, 16, 4, 1),
    (64, 64, 8, 8, 64, 16, 4, 1),
    (32, 128, 8, 8, 64, 16, 4, 1),
    (32, 64, 8, 4, 64, 16, 4, 1),
    (64, 32, 8, 4, 16, 16, 4, 1),
    (32, 32, 4, 4, 16, 16, 4, 1),
)
_NAMES: Final = ("BM", "BN", "TM", "TN", "WN", "BK", "STAGES", "MIN_BLOCKS")


def _default(problem: Problem, device: Device) -> Config:
    shapes = [dict(zip(_NAMES, tile, strict=True)) for tile in _TILES]
    ways = [each for shape in shapes for each in _ways(shape, problem, device)]
    chosen = lightest(SPACE, sorted(ways, key=lambda each: each["SPLIT_K"] > 1), problem, device)
    shared = [SPACE.config(each | {"STREAM_K_SMS": device.limits.sms}) for each in ways if device.limits.sms in SMS]
    legal = [each for each in shared if SPACE.refusal(each, problem, device) is None]
    return min((chosen, *legal), key=lambda each: seconds(each, problem, device))


def _is_cheap(problem: Problem, device: Device) -> bool:
    """Whether copying operands takes no more than copies of single elements in the loop over k would."""
    copying = LAUNCH + 2 * packed_bytes(problem) / device.limits.bandwidth
    return copying <= SINGLE_COST * problem.flops / device.limits.peak


def _tiles(shape: dict[str, int], problem: Problem) -> int:
    return -(-problem.m // shape["BM"]) * -(-problem.n // shape["BN"]) * problem.batch


def _ways(shape: dict[str, int], problem: Problem, device: Device) -> list[dict[str, int]]:
    """Configs of a tile: SLICE_K, SPLIT_K, copies for ragged rows, and groups of tiles."""
    tiles, ragged = _tiles(shape, problem), is_ragged(problem)
    own = shape["BM"] // shape["TM"] * shape["BN"] // shape["TN"]
    most = 2 if ragged else 4  # four were slower on an H200 where copies are of one element
    teams = (team for team in (4, 2, 1) if team <= most and team * own <= BUSY_THREADS)
    splits = [split for split in SPLITS if split * tiles <= 2 * device.limits.sms or split == 1]
    group = 8 if tiles > 2 * device.limits.sms else 1
    ways = [(1, 4), (0, 1)] if ragged and _is_cheap(problem, device) else [(0, 1), (1, 4)] if ragged else [(0, 4)]
    return [
        shape
        | {
            "STREAM_K_SMS": 0,
            "BK": max(16, 8 * team),
            "SLICE_K": team,
            "SPLIT_K": split,
            "PACK_MN": copied,
            "VECTOR": width,
            "STAGE_C": int(is_c_ragged(problem) and shape["BM"] * shape["BN"] >= STAGED_TILE),
            "GROUP_M": group,
        }
        for team in teams
        for split in splits
        for copied, width in ways
    ]


def _preferred_untuned(problem: Problem, _: Device) -> bool:
    """Whether its tiles fill a GPU, or slices of k do: at 256 cubed register_tiled's take 0.7 of the time."""
    return problem.m * problem.n * problem.batch > SMALL_C or problem.k > NOT_SLICED


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
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    preferred_untuned=_preferred_untuned,
    auxiliary_sources=(PACK_MN_MAJOR, SPLIT_K_REDUCE),
    architectures=("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
)
