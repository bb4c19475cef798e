"""tensor_core: products of tiles on tensor cores by each warp's own instructions, from sm_80 on."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import MMA
from kernels.cost_model import occupancy
from kernels.device import Device
from kernels.fp32_emulation import FILES, LEAST_K
from kernels.kernel import Kernel, Sizes
from kernels.packing import PACK_K_MAJOR, A, B, is_worth_packing, operands_to_realign, packed_k_major, ragged
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import WAVES, fan, k_tiles, k_tiles_per_split
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    element_bytes,
    emulated,
    plan,
    planes,
    registers,
    shared_bytes,
    stage_bytes,
    threads,
)
from kernels.tensor_core.space import SHORT, SPACE, SPLITS

# cp.async, and mma for bfloat16 and tf32 (PTX ISA, "mma", "Target ISA Notes").
SINCE: Final = 80
# What an SM does in a clock: FMAs of 16-bit operands on tensor cores, and bytes that it gets from the L2 cache while
# all others do the same; and products that one of split operands takes.
FMAS: Final = 1024
CACHE_BYTES: Final = 32
SPLIT_PRODUCTS: Final = {1: 1, 2: 3}
# In clocks: what a block waits in a phase, and where its pieces are copied one element at a time; what a tile takes
# before its first product and after its last one, slices for each other, and a launch before. And clocks of a second.
PHASE_CLOCKS: Final = 250
NARROW_CLOCKS: Final = 1500
NARROW_READS: Final = 4
TILE_CLOCKS: Final = 2500
JOIN_CLOCKS: Final = 6000
LAUNCH_CLOCKS: Final = 4000
CLOCK: Final = 1.7e9
# Elements of k of an instruction, in 16 bits.
STEP_DEPTH: Final = 16
# Shared memory that a default's stages take at most: more is not waited for.
MOST_STAGED: Final = 128 * 1024
# What defaults are chosen from, largest first: BM, BN, WM, WN, SLICE_K, AHEAD, and bytes of a phase along k.
_TILES: Final = (
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


def _default(problem: Problem, device: Device) -> Config:
    """The legal choice whose busiest SM ends first; the space's first config if the device allows none."""
    choices = [SPACE.config(each) for tile in _TILES for each in _ways(tile, problem, device)]
    legal = [each for each in choices if SPACE.refusal(each, problem, device) is None]
    if legal:
        return min(legal, key=lambda each: _clocks(each, problem, device))
    return next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))


def _ways(tile: tuple[int, ...], problem: Problem, device: Device) -> list[dict[str, int]]:
    """Configs of a tile: as many stages as fit, and values of SPLIT_K, PACK_K, REALIGN and GROUP_M."""
    shape = dict(zip(_TILE_NAMES, tile, strict=False)) | {"MIN_BLOCKS": 1}
    shape["BK"] = max(SHORT, tile[-1] // element_bytes(problem))
    tiles = blocks(shape, problem)
    shape["GROUP_M"] = 8 if tiles > 2 * device.limits.sms else 1
    splits = [split for split in SPLITS if split * tiles <= WAVES * device.limits.sms or split == 1]
    copied = sorted({0, 0 if emulated(problem) else ragged(problem)})
    shapes = (shape | {"PACK_K": each, "REALIGN": operands_to_realign(each, problem)} for each in copied)
    return [each | {"STAGES": _stages(each, problem, device), "SPLIT_K": split} for each in shapes for split in splits]


def _stages(shape: dict[str, int], problem: Problem, device: Device) -> int:
    """As many stages as fit, and no more than there are k tiles."""
    room = min(device.limits.shared_bytes, MOST_STAGED) // stage_bytes(shape, problem)
    most = max(2, min(room, k_tiles(Config.of(shape), problem)))
    return max((count for count in SPACE.parameters["STAGES"] if count <= most), default=2)


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products, their loads from the cache, or its waits."""
    limits, bm, bn = device.limits, config["BM"], config["BN"]
    splits, item = config["SPLIT_K"], element_bytes(problem)
    busy = -(-blocks(config, problem) * splits // max(limits.sms, 1))
    resident = occupancy(limits, threads(config), shared_bytes(config, problem), registers(config, problem))
    waves = -(-busy // max(resident.blocks_per_sm if resident else 1, 1))
    count = k_tiles_per_split(config, problem)
    narrow = ragged(problem) & ~config["PACK_K"] & ~config["REALIGN"] and not emulated(problem)
    products = max(bm * bn * SPLIT_PRODUCTS[planes(problem)] * item / (2 * FMAS), _fragment_clocks(config))
    reads = planes(problem) * (bm + bn) * item * (NARROW_READS if narrow else 1) / CACHE_BYTES
    loop = max(
        busy * count * config["BK"] * max(products, reads), waves * count * (NARROW_CLOCKS if narrow else PHASE_CLOCKS)
    )
    joining = JOIN_CLOCKS + 2 * fan(splits) * bm * bn * ACCUMULATOR_BYTES / CACHE_BYTES if splits > 1 else 0
    lines = packed_k_major(problem, config["PACK_K"], 0).end
    copying = LAUNCH_CLOCKS + 2 * lines * LINE_BYTES * CLOCK / limits.bandwidth if lines else 0
    return loop + waves * TILE_CLOCKS + joining + copying


def _fragment_clocks(config: Config) -> float:
    """Clocks of an SM's shared memory for each k: a realigned fragment's pairs are two loads each, of four bytes."""
    which, warps = config["REALIGN"], threads(config) // WARP
    sides = config["WM"] * bool(which & A) + config["WN"] * bool(which & B)
    return warps * sides / (2 * STEP_DEPTH)


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
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K"),
    auxiliary_sources=(PACK_K_MAJOR, *FILES),
    sizes=Sizes(emulated_k=LEAST_K),
    preferred_untuned=is_worth_packing,
    shapes="any shape, for emulated precision with a k that its bound on the error needs",
    excluded_classes=(("float32", "strict"),),
    min_capability=SINCE,
    instructions=MMA,
)
