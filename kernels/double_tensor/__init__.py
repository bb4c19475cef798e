"""double_tensor: float64 products on tensor cores, by tiles in shared memory that are copied while others multiply."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Final

from kernels.arithmetic import DMMA
from kernels.device import Device
from kernels.double_tensor.plan import plan, registers, shared_bytes, threads
from kernels.double_tensor.space import ARCHITECTURES, SPACE, SPLITS
from kernels.kernel import Kernel, Sizes
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles_per_split

# C's short side that is skinny's, and the cube that is batched's: there memory is the bound, not products.
SHORT: Final = 16
SMALL: Final = 32
# What an SM does in a clock: float64 FMAs on tensor cores, and bytes that it gets from the L2 cache, of which some are
# in the way of products. What more products take by instructions 16 deep, and k tiles of an operand whose rows are no
# multiples of 16 bytes. Warps that never all wait, and how much more it takes with fewer. In clocks: an element on its
# way to C, what a block takes besides, if no other runs beside it, and slices of k for each other. All but FMAS are
# fitted to 1,394 times of 61 shapes on H200s: what is estimated to take least takes 1.05 of the least time.
FMAS: Final = 128
CACHE_BYTES: Final = 60
IN_THE_WAY: Final = 0.28
DEEPEST: Final = 16
DEEPEST_COST: Final = 0.24
RAGGED_COST: Final = 0.22
BUSY_WARPS: Final = 4.1
IDLE_POWER: Final = 5
STORE_CLOCKS: Final = 0.92
BLOCK_CLOCKS: Final = 1300
JOIN_CLOCKS: Final = 4300
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
    (128, 128, 64, 32, 16, 4, 1, 4, 1),
    (64, 128, 32, 32, 16, 4, 1, 4, 1),
    (64, 64, 32, 32, 16, 4, 1, 4, 1),
    (32, 64, 16, 32, 16, 4, 1, 4, 1),
    (32, 32, 16, 16, 16, 4, 1, 4, 1),
)
# How many of them a search begins with.
SEEDS: Final = 6
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "BK", "MMA_K", "AHEAD", "STAGES", "MIN_BLOCKS")


def _default(problem: Problem, device: Device) -> Config:
    """The legal choice whose busiest SM ends first; the space's first config if the device allows none."""
    found = _fastest(problem, device)
    return found[0] if found else next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))


@lru_cache(1024)
def _fastest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """The legal choices whose busiest SMs end first, no two of one tile."""
    tiles = _SHALLOW_TILES if device.architecture == "sm_80" else _TILES
    shapes = [shape for tile in tiles for shape in _ways(dict(zip(_TILE_NAMES, tile, strict=True)), problem)]
    fastest = list[tuple[float, Config]]()
    for shape in shapes:
        group = 8 if blocks(shape, problem) > 2 * device.limits.sms else 1
        choices = (SPACE.config(shape | {"GROUP_M": group, "SPLIT_K": split}) for split in SPLITS)
        legal = [choice for choice in choices if SPACE.refusal(choice, problem, device) is None]
        if legal:
            best = min(legal, key=lambda choice: _clocks(choice, problem, device))
            fastest.append((_clocks(best, problem, device), best))
    return tuple(config for _, config in sorted(fastest, key=itemgetter(0))[:SEEDS])


def _ways(shape: dict[str, int], problem: Problem) -> list[dict[str, int]]:
    """A tile's shape both ways; first with the longer side where memory has C's rows or columns along the operand."""
    if shape["BM"] == shape["BN"]:
        return [shape]
    turned = shape | {"BM": shape["BN"], "BN": shape["BM"], "WM": shape["WN"], "WN": shape["WM"]}
    return [turned, shape] if problem.trans_a and problem.trans_b else [shape, turned]


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products, or their loads from the cache if these take longer, and stores.

    Few warps leave it idle during waits.
    """
    limits, size, splits = device.limits, config["BM"] * config["BN"], config["SPLIT_K"]
    own = -(-blocks(config, problem) * splits // max(limits.sms, 1))
    resident = _resident(config, problem, device, own)
    idle = max(1, BUSY_WARPS * WARP / (threads(config) * resident)) ** IDLE_POWER
    brought = (config["BM"] + config["BN"]) * problem.itemsize / CACHE_BYTES
    products = size / FMAS * (1 + DEEPEST_COST * (config["MMA_K"] == DEEPEST))
    narrow = 1 + RAGGED_COST * ragged(problem).bit_count()
    step = (max(products, brought) + IN_THE_WAY * brought) * narrow * idle
    joining = JOIN_CLOCKS + 2 * fan(splits) * size * problem.itemsize / CACHE_BYTES if splits > 1 else 0
    depth = k_tiles_per_split(config, problem) * config["BK"]
    return own * (depth * step + size * STORE_CLOCKS + BLOCK_CLOCKS / resident) + joining


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    granted = min(registers(config), limits.registers_per_thread) * threads(config)
    return max(1, min(most, room, max(config["MIN_BLOCKS"], limits.registers_per_sm // granted)))


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
    seeds=_fastest,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    sizes=Sizes(short_over=SHORT, largest_over=SMALL),
    shapes=f"a C of more than {SHORT} both ways, where m, n or k is over {SMALL}",
    architectures=ARCHITECTURES,
    instructions=DMMA,
)
