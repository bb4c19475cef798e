"""tensor_core: products of tiles on tensor cores by each warp's own instructions, from sm_80 on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import nsmallest
from typing import Final

from kernels.arithmetic import MMA
from kernels.device import Device
from kernels.fp32_emulation import FILES, LEAST_K
from kernels.kernel import Kernel, Sizes
from kernels.packing import PACK_K_MAJOR, ragged
from kernels.problem import Problem
from kernels.residuals import CANDIDATES, ranked
from kernels.rules import blocks
from kernels.space import Config, Rule
from kernels.split_k import CLUSTERS, k_tiles
from kernels.tensor_core.cost_model import blocks_at_once, seconds
from kernels.tensor_core.plan import cp_sizes, element_bytes, emulated, plan, stage_bytes
from kernels.tensor_core.space import SHORT, SPACE, SPLITS, ways_to_copy

# cp.async, and mma for bfloat16 and tf32 (PTX ISA, "mma", "Target ISA Notes").
SINCE: Final = 80
# Shared memory that a default's stages take at most: more is not waited for.
MOST_STAGED: Final = 128 * 1024
# What defaults are chosen from, and seeds of a search: BM, BN, WM, WN, SLICE_K, AHEAD, and bytes of a k tile along k.
# Of all that the space allows 260 problems, so many that the model has one within a hundredth of the best for most.
_TILES: Final = (
    (128, 256, 64, 64, 1, 1, 64),
    (256, 128, 64, 64, 1, 1, 64),
    (64, 256, 64, 64, 1, 1, 64),
    (128, 128, 64, 64, 1, 1, 64),
    (128, 128, 64, 64, 1, 1, 128),
    (256, 64, 64, 64, 1, 0, 32),
    (128, 128, 32, 64, 1, 1, 128),
    (128, 128, 64, 32, 1, 1, 64),
    (256, 64, 32, 64, 1, 1, 128),
    (64, 128, 32, 64, 1, 0, 32),
    (64, 128, 32, 64, 1, 0, 128),
    (64, 128, 64, 32, 1, 1, 128),
    (128, 64, 64, 32, 1, 1, 64),
    (128, 64, 32, 32, 1, 1, 64),
    (64, 64, 64, 64, 4, 0, 256),
    (256, 32, 32, 32, 1, 0, 128),
    (256, 16, 64, 16, 2, 1, 256),
    (128, 32, 64, 32, 4, 0, 256),
    (128, 32, 64, 32, 2, 0, 128),
    (128, 32, 32, 32, 1, 0, 128),
    (64, 32, 64, 32, 4, 0, 256),
    (32, 256, 32, 32, 1, 0, 128),
    (32, 128, 32, 32, 1, 0, 128),
    (32, 64, 32, 64, 4, 0, 256),
    (32, 128, 32, 64, 4, 1, 256),
    (16, 256, 16, 64, 2, 0, 128),
    (64, 64, 32, 32, 1, 1, 64),
    (64, 64, 32, 32, 1, 1, 128),
    (64, 64, 64, 16, 1, 0, 32),
    (16, 128, 16, 64, 4, 0, 256),
    (32, 64, 16, 64, 4, 1, 256),
    (32, 64, 32, 32, 2, 1, 128),
    (128, 16, 64, 16, 4, 0, 256),
    (32, 64, 16, 32, 1, 1, 64),
    (64, 32, 32, 16, 1, 0, 32),
    (16, 64, 16, 32, 2, 1, 128),
    (16, 64, 16, 32, 4, 1, 256),
    (32, 32, 16, 32, 2, 1, 128),
    (32, 32, 32, 16, 4, 1, 256),
    (64, 16, 32, 16, 2, 1, 128),
    (16, 64, 16, 16, 1, 0, 32),
    (32, 32, 16, 16, 1, 0, 32),
    (32, 32, 16, 16, 1, 1, 64),
    (32, 32, 16, 16, 2, 1, 128),
    (16, 32, 16, 32, 4, 1, 256),
    (32, 16, 32, 16, 4, 1, 256),
    (16, 32, 16, 16, 2, 0, 64),
    (16, 32, 16, 16, 2, 1, 128),
    (32, 16, 16, 16, 2, 0, 64),
    (32, 16, 16, 16, 2, 1, 128),
    (16, 16, 16, 16, 1, 0, 32),
    (16, 16, 16, 16, 2, 0, 64),
    (16, 16, 16, 16, 2, 1, 128),
    (256, 16, 64, 16, 1, 0, 32),
    (16, 256, 16, 64, 1, 0, 32),
    (64, 16, 16, 16, 1, 0, 32),
    (32, 16, 32, 16, 1, 0, 32),
    (16, 32, 16, 16, 1, 0, 32),
    (16, 32, 16, 32, 1, 0, 32),
)
# And of emulated float32.
_EMULATED_TILES: Final = (
    (128, 256, 64, 64, 1, 1, 64),
    (256, 128, 64, 64, 1, 1, 64),
    (128, 128, 64, 32, 1, 1, 128),
    (128, 128, 64, 32, 1, 0, 64),
    (128, 128, 32, 64, 1, 0, 64),
    (128, 64, 32, 32, 1, 1, 128),
    (64, 128, 32, 32, 1, 1, 128),
    (64, 64, 32, 32, 1, 1, 128),
    (32, 64, 32, 32, 2, 1, 128),
    (64, 32, 32, 32, 2, 1, 128),
    (32, 32, 16, 16, 1, 1, 128),
    (16, 128, 16, 32, 1, 1, 128),
    (16, 64, 16, 32, 2, 1, 256),
    (64, 16, 32, 16, 2, 1, 256),
    (32, 32, 32, 32, 4, 0, 128),
    (32, 32, 32, 32, 1, 1, 64),
    (16, 16, 16, 16, 1, 0, 32),
)
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "SLICE_K", "AHEAD")
# The rules that read a tile alone, and those that read how its k is shared out too.
_OF_TILE: Final = {*_TILE_NAMES, "MIN_BLOCKS", "BK"}
_OF_SHARES: Final = {"SPLIT_K", "CLUSTER_K"}
_SHARES: Final = (
    *((splits, 1) for splits in SPLITS),
    *((1, parts) for parts in CLUSTERS[1:]),
    *((splits, CLUSTERS[-1]) for splits in SPLITS[1:]),
)
_OF_TILES: Final = tuple(rule for reason, rule in SPACE.rules.items() if _OF_TILE.issuperset(SPACE.reads[reason]))
_OF_SPLITS: Final = tuple(
    rule
    for reason, rule in SPACE.rules.items()
    if _OF_SHARES & {*SPACE.reads[reason]} and (_OF_TILE | _OF_SHARES).issuperset(SPACE.reads[reason])
)
# Those of the least estimates that are estimated with more blocks on an SM, too.
BOUNDED: Final = 48
# How many of them a search begins with, each unlike the others in one of these.
SEEDS: Final = 8
UNLIKE: Final = (*_TILE_NAMES, "BK", "PACK_K", "REALIGN", "SPLIT_K", "CLUSTER_K")


def _default(problem: Problem, device: Device) -> Config:
    """The config of the least corrected estimate; the space's first one if the device allows none of those."""
    found = _fastest(problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


@lru_cache(1024)
def _fastest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Of the legal configs of the least estimates, no two of one tile, the first ones when corrected."""
    tiles = _EMULATED_TILES if emulated(problem) else _TILES
    ways = [SPACE.config(each) for tile in tiles for each in _ways(tile, problem, device)]
    fastest = nsmallest(BOUNDED, ways, key=lambda each: seconds(each, problem, device))
    bounded = [one for each in fastest for one in _bounded(each, problem, device)]
    ordered = sorted([*fastest, *bounded], key=lambda each: _order(each, problem, device))
    candidates = SPACE.first_unlike(ordered, UNLIKE, CANDIDATES, problem, device)
    return ranked(TENSOR_CORE, candidates, problem, device)[:SEEDS]


def _order(config: Config, problem: Problem, device: Device) -> tuple[float, int]:
    """The estimate; of equal ones first what has as many blocks at once by MIN_BLOCKS, however it is compiled."""
    unsaid = abs(blocks_at_once(config, problem, device) - config["MIN_BLOCKS"])
    return seconds(config, problem, device), unsaid


def _ways(tile: tuple[int, ...], problem: Problem, device: Device) -> list[dict[str, int]]:
    """Configs of a tile that its rules allow: how operands are copied, STAGES, SPLIT_K, CLUSTER_K and GROUP_M."""
    shape = dict(zip(_TILE_NAMES, tile, strict=False)) | {"MIN_BLOCKS": 1}
    shape["BK"] = max(SHORT, tile[-1] // element_bytes(problem))
    if not _holds(_OF_TILES, shape, problem, device):
        return []
    shape["GROUP_M"] = 8 if blocks(shape, problem) > 2 * device.limits.sms else 1
    shares = [shape | {"SPLIT_K": splits, "CLUSTER_K": parts} for splits, parts in _SHARES]
    split = [one for one in shares if _holds(_OF_SPLITS, one, problem, device)]
    copied = sorted({0, 0 if emulated(problem) else ragged(problem)})
    packings = [_packing(each, which, problem) for each in copied for which in ways_to_copy(each, problem)]
    return [
        one | packing | {"STAGES": stages}
        for packing in packings
        for stages in _stages(shape | packing, problem, device)
        for one in split
    ]


def _bounded(config: Config, problem: Problem, device: Device) -> list[Config]:
    """The same with each larger MIN_BLOCKS that rules of tiles allow, and with as many stages or fewer."""
    values = SPACE.parameters["MIN_BLOCKS"][1:]
    bounds = [one for each in values if _holds(_OF_TILES, one := dict(config) | {"MIN_BLOCKS": each}, problem, device)]
    stages = [each for each in SPACE.parameters["STAGES"] if each <= config["STAGES"]]
    return [SPACE.config(one | {"STAGES": each}) for one in bounds for each in stages]


def _holds(rules: Iterable[Rule], values: dict[str, int], problem: Problem, device: Device) -> bool:
    return all(holds(Config.of(values), problem, device) for holds in rules)


def _packing(packed: int, realign: int, problem: Problem) -> dict[str, int]:
    """What of a config says how operands are copied."""
    of_a, of_b = cp_sizes(packed, realign, problem)
    return {"PACK_K": packed, "REALIGN": realign, "CP_SIZE_A": of_a, "CP_SIZE_B": of_b}


def _stages(shape: dict[str, int], problem: Problem, device: Device) -> list[int]:
    """Numbers of stages that fit, the largest first, and no more than there are k tiles."""
    room = min(device.limits.shared_bytes, MOST_STAGED) // stage_bytes(shape, problem)
    most = max(2, min(room, k_tiles(Config.of(shape), problem)))
    return [count for count in reversed(SPACE.parameters["STAGES"]) if count <= most]


TENSOR_CORE: Final = Kernel(
    name="tensor_core",
    summary="Tiles in shared memory that each warp multiplies on tensor cores, with sums in float32.",
    file="tensor_core/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16", "float32"),
    precisions=("strict", "tf32", "emulated"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    seeds=_fastest,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    auxiliary_sources=(PACK_K_MAJOR, *FILES),
    sizes=Sizes(emulated_k=LEAST_K),
    shapes="any shape, for emulated precision with a k that its bound on the error needs",
    excluded_classes=(("float32", "strict"),),
    min_capability=SINCE,
    instructions=MMA,
)
