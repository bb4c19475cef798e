"""tensor_core: products of tiles on tensor cores by each warp's own instructions, from sm_80 on."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import MMA
from kernels.device import Device
from kernels.fp32_emulation import FILES, LEAST_K
from kernels.kernel import Kernel, Sizes
from kernels.packing import PACK_K_MAJOR, is_worth_packing, operands_to_realign, ragged
from kernels.problem import Problem
from kernels.rules import blocks
from kernels.space import Config
from kernels.split_k import WAVES, k_tiles
from kernels.tensor_core.cost_model import seconds
from kernels.tensor_core.plan import element_bytes, emulated, plan, stage_bytes
from kernels.tensor_core.space import SHORT, SPACE, SPLITS

# cp.async, and mma for bfloat16 and tf32 (PTX ISA, "mma", "Target ISA Notes").
SINCE: Final = 80
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
# And where operands are realigned: narrow tiles in slices, with as much k as there is room for.
_REALIGNED_TILES: Final = (
    (128, 64, 64, 64, 4, 0, 128),
    (32, 128, 32, 64, 2, 0, 256),
    (64, 32, 32, 16, 1, 0, 128),
    (32, 64, 32, 16, 1, 0, 128),
    (32, 32, 16, 32, 2, 0, 256),
    (16, 64, 16, 32, 4, 1, 256),
    (16, 32, 16, 32, 4, 0, 256),
    (32, 16, 32, 16, 4, 0, 256),
    (32, 16, 16, 16, 2, 0, 256),
    (16, 32, 16, 32, 4, 0, 128),
    (32, 16, 32, 16, 4, 0, 128),
    (32, 16, 16, 16, 2, 0, 128),
    (32, 16, 16, 16, 2, 0, 64),
    (128, 16, 32, 16, 1, 0, 32),
)
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "SLICE_K", "AHEAD")


def _default(problem: Problem, device: Device) -> Config:
    """The legal choice whose busiest SM ends first; the space's first config if the device allows none."""
    tiles = _TILES + _REALIGNED_TILES * (operands_to_realign(0, problem) > 0)
    choices = [SPACE.config(each) for tile in tiles for each in _ways(tile, problem, device)]
    legal = [each for each in choices if SPACE.refusal(each, problem, device) is None]
    if legal:
        return min(legal, key=lambda each: seconds(each, problem, device))
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
