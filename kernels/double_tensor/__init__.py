"""double_tensor: float64 products on tensor cores, by tiles in shared memory that are copied while others multiply."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import DMMA
from kernels.device import Device
from kernels.double_tensor.plan import plan, shared_bytes, threads
from kernels.double_tensor.space import ARCHITECTURES, SPACE, SPLITS
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles_per_split

# C's short side that is skinny's, and the cube that is batched's: there memory is the bound, not products.
SHORT: Final = 16
SMALL: Final = 32
# What an SM does in a clock: float64 FMAs on tensor cores, and bytes that it gets from the L2 cache, of which some are
# in the way of products. In clocks: what a tile takes before its first product and after its last one, and slices for
# each other. Warps that never all wait. CACHE_BYTES, IN_THE_WAY and TILE_CLOCKS are fitted to 900 timed configs.
FMAS: Final = 128
CACHE_BYTES: Final = 48
IN_THE_WAY: Final = 0.1
TILE_CLOCKS: Final = 1500
JOIN_CLOCKS: Final = 6000
BUSY_WARPS: Final = 8
# What defaults are chosen from, largest first: BM, BN, WM, WN, BK, MMA_K, AHEAD, STAGES, MIN_BLOCKS. An instruction
# that is 8 deep keeps tensor cores busier than two of 4, and leaves registers to read operands ahead, which one of 16
# does not.
_TILES: Final = (
    (64, 128, 32, 32, 16, 8, 1, 5, 1),
    (64, 64, 32, 32, 16, 8, 1, 4, 1),
    (32, 64, 16, 32, 16, 8, 1, 5, 1),
    (32, 32, 16, 16, 32, 8, 1, 4, 1),
)
_SHALLOW_TILES: Final = (
    (128, 128, 64, 32, 16, 4, 1, 4, 1),
    (64, 128, 32, 32, 16, 4, 1, 4, 1),
    (64, 64, 32, 32, 16, 4, 1, 4, 1),
    (32, 64, 16, 32, 16, 4, 1, 4, 1),
    (32, 32, 16, 16, 16, 4, 1, 4, 1),
)
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "BK", "MMA_K", "AHEAD", "STAGES", "MIN_BLOCKS")


def _default(problem: Problem, device: Device) -> Config:
    """The legal choice whose busiest SM ends first; the space's first config if the device allows none."""
    tiles = _SHALLOW_TILES if device.architecture == "sm_80" else _TILES
    shapes = [shape for tile in tiles for shape in _ways(dict(zip(_TILE_NAMES, tile, strict=True)), problem)]
    choices = [
        SPACE.config(shape | {"GROUP_M": 8 if blocks(shape, problem) > 2 * device.limits.sms else 1, "SPLIT_K": split})
        for shape in shapes
        for split in SPLITS
    ]
    legal = [choice for choice in choices if SPACE.refusal(choice, problem, device) is None]
    if legal:
        return min(legal, key=lambda choice: _clocks(choice, problem, device))
    return next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))


def _ways(shape: dict[str, int], problem: Problem) -> list[dict[str, int]]:
    """A tile's shape both ways; first with the longer side where memory has C's rows or columns along the operand."""
    if shape["BM"] == shape["BN"]:
        return [shape]
    turned = shape | {"BM": shape["BN"], "BN": shape["BM"], "WM": shape["WN"], "WN": shape["WM"]}
    return [turned, shape] if problem.trans_a and problem.trans_b else [shape, turned]


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products, or their loads from the cache if these take longer.

    Prologues and epilogues of concurrent blocks overlap with products; few warps leave it idle during waits.
    """
    limits, size, splits = device.limits, config["BM"] * config["BN"], config["SPLIT_K"]
    own = -(-blocks(config, problem) * splits // max(limits.sms, 1))
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    min_blocks = min(own, max(1, room))
    idle = max(1, BUSY_WARPS * WARP / (threads(config) * min_blocks))
    brought = (config["BM"] + config["BN"]) * problem.itemsize / CACHE_BYTES
    step = max(size / FMAS, brought) + IN_THE_WAY * brought
    joining = JOIN_CLOCKS + 2 * fan(splits) * size * problem.itemsize / CACHE_BYTES if splits > 1 else 0
    depth = k_tiles_per_split(config, problem) * config["BK"]
    return own * depth * step * idle + -(-own // min_blocks) / min_blocks * TILE_CLOCKS + joining


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
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    sizes=Sizes(short_over=SHORT, largest_over=SMALL),
    shapes=f"a C of more than {SHORT} both ways, where m, n or k is over {SMALL}",
    architectures=ARCHITECTURES,
    instructions=DMMA,
)
