"""double_tensor: float64 products on tensor cores, by tiles in shared memory that are copied while others multiply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Final

from kernels.arithmetic import DMMA
from kernels.device import Device
from kernels.double_tensor.cost_model import seconds
from kernels.double_tensor.plan import plan, threads
from kernels.double_tensor.space import ARCHITECTURES, SPACE, SPLITS, STREAMED_THREADS
from kernels.kernel import Kernel, Sizes
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.residuals import CANDIDATES, ranked
from kernels.rules import blocks
from kernels.space import Config
from kernels.split_k import CLUSTERS
from kernels.stream_k import SMS

# C's short side that is skinny's, and the cube that is batched's: there memory is the bound, not products.
SHORT: Final = 16
SMALL: Final = 32
# What defaults are chosen from, and seeds of a search: BM, BN, WM, WN, BK, MMA_K, AHEAD, STAGES, MIN_BLOCKS. An
# instruction that is 8 deep keeps tensor cores busier than two of 4, and leaves registers to read operands ahead, which
# one of 16 does not; with three blocks on an SM the others' warps do instead.
_TILES: Final = (
    (64, 128, 32, 32, 16, 8, 1, 5, 1),
    (64, 64, 32, 32, 16, 8, 1, 4, 1),
    (64, 64, 32, 32, 16, 4, 0, 3, 3),
    (32, 128, 32, 32, 16, 4, 0, 3, 3),
    (32, 64, 16, 32, 16, 8, 1, 5, 1),
    (32, 64, 16, 32, 16, 4, 0, 4, 3),
    (32, 32, 16, 16, 32, 8, 1, 4, 1),
    (32, 32, 16, 16, 32, 8, 0, 4, 3),
    (32, 32, 16, 16, 16, 16, 0, 4, 4),
)
_SHALLOW_TILES: Final = (
    (64, 128, 32, 32, 16, 4, 1, 4, 1),
    (64, 64, 32, 32, 16, 4, 1, 4, 1),
    (32, 64, 16, 32, 16, 4, 1, 4, 1),
    (32, 32, 16, 16, 16, 4, 1, 4, 1),
)
# Of large products whose operands' rows are whole copies, an H200 makes those of the largest tile 2 to 7 % faster where
# it is higher than wide, unless B alone is transposed: as fast; with fewer stages if B is not. Waves, and stages.
_LARGE: Final = 2
_STAGES: Final = 3
# How many of them a search begins with.
SEEDS: Final = 6
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "BK", "MMA_K", "AHEAD", "STAGES", "MIN_BLOCKS")


def _default(problem: Problem, device: Device) -> Config:
    """The config of the least corrected estimate; the space's first one if the device allows none of those."""
    found = _fastest(problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


@lru_cache(1024)
def _fastest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Of the legal configs of the least estimates, no two of one tile, the first ones when corrected."""
    tiles = _SHALLOW_TILES if device.architecture == "sm_80" else _TILES
    shapes = [shape for tile in tiles for shape in _ways(dict(zip(_TILE_NAMES, tile, strict=True)), problem, device)]
    fastest = list[tuple[float, Config]]()
    for shape in shapes:
        group = 8 if blocks(shape, problem) > 2 * device.limits.sms else 1
        for choices in (_alone(shape | {"GROUP_M": group}), _streamed(shape | {"GROUP_M": group}, device)):
            legal = [choice for choice in choices if SPACE.refusal(choice, problem, device) is None]
            if legal:
                best = min(legal, key=lambda choice: seconds(choice, problem, device))
                fastest.append((seconds(best, problem, device), best))
    least = [_staged(config, problem, device) for _, config in sorted(fastest, key=itemgetter(0))[:CANDIDATES]]
    return ranked(DOUBLE_TENSOR, least, problem, device)[:SEEDS]


def _is_large(shape: Mapping[str, int], problem: Problem, device: Device) -> bool:
    """Whether a shape is the largest tile's, either way, and the problem large, its rows whole copies."""
    is_largest = {shape["BM"], shape["BN"]} == set(_TILES[0][:2])
    return is_largest and not ragged(problem) and blocks(shape, problem) > _LARGE * device.limits.sms


def _staged(config: Config, problem: Problem, device: Device) -> Config:
    """The config with the stages that a large problem's has, which estimates do not tell apart."""
    values = dict(config)
    if problem.trans_b or values["STREAM_K_SMS"] or not _is_large(values, problem, device):
        return config
    fewer = SPACE.config(values | {"STAGES": min(_STAGES, values["STAGES"])})
    return config if SPACE.refusal(fewer, problem, device) else fewer


def _alone(shape: dict[str, int]) -> list[Config]:
    """A tile's shape with k whole, in splits and in clusters."""
    shares = (*((split, 1) for split in SPLITS), *((1, parts) for parts in CLUSTERS[1:]))
    return [SPACE.config(shape | {"STREAM_K_SMS": 0, "SPLIT_K": split, "CLUSTER_K": parts}) for split, parts in shares]


def _streamed(shape: dict[str, int], device: Device) -> list[Config]:
    """A tile's shape with stream-K, as many blocks on an SM as keep it busy to the end."""
    if device.limits.sms not in SMS or not shape["AHEAD"]:
        return []
    chosen = shape | {"STREAM_K_SMS": device.limits.sms, "SPLIT_K": 1, "CLUSTER_K": 1}
    return [SPACE.config(chosen | {"MIN_BLOCKS": max(1, STREAMED_THREADS // threads(SPACE.config(chosen)))})]


def _ways(shape: dict[str, int], problem: Problem, device: Device) -> list[dict[str, int]]:
    """A tile's shape both ways; first with the longer side where memory has C's rows or columns along the operand."""
    if shape["BM"] == shape["BN"]:
        return [shape]
    turned = shape | {"BM": shape["BN"], "BN": shape["BM"], "WM": shape["WN"], "WN": shape["WM"]}
    is_higher = (problem.trans_a and problem.trans_b) or _is_large(shape, problem, device)
    return [turned, shape] if is_higher else [shape, turned]


DOUBLE_TENSOR: Final = Kernel(
    name="double_tensor",
    summary="Tiles in shared memory that each warp multiplies in float64 on tensor cores.",
    file="double_tensor/kernel.cu",
    space=SPACE,
    dtypes=("float64",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    seeds=_fastest,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    sizes=Sizes(short_over=SHORT, largest_over=SMALL),
    shapes=f"a C of more than {SHORT} both ways, where m, n or k is over {SMALL}",
    architectures=ARCHITECTURES,
    instructions=DMMA,
)
