"""batched: many small products, several of which a block loads at once."""

from __future__ import annotations

from typing import Final

from kernels.batched.plan import plan, shared_bytes, threads
from kernels.batched.space import (
    BOUND_BINDS,
    COPIES_SINCE,
    ROOM_FOR_BLOCKS,
    SPACE,
    TILE,
    fits_vectors,
    sums_and_registers_fit,
)
from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config

LARGEST: Final = 128
# Sums of a thread, in bytes, that leave its block no room beside others.
LARGE_BYTES: Final = 256
Tile = tuple[int, int, int, int]
# What defaults are chosen from, as BM, BN, TM, TN, largest first.
_CUDA: Final[tuple[Tile, ...]] = (
    (64, 64, 8, 8),
    (64, 64, 8, 4),
    (64, 32, 8, 4),
    (32, 64, 4, 8),
    (32, 32, 4, 4),
    (128, 16, 4, 4),
    (16, 128, 4, 4),
    (64, 16, 4, 4),
    (16, 64, 4, 4),
    (128, 8, 4, 4),
    (8, 128, 4, 4),
    (64, 8, 4, 4),
    (8, 64, 4, 4),
    (32, 16, 4, 4),
    (16, 32, 4, 4),
    (16, 16, 4, 4),
    (8, 16, 4, 4),
    (16, 8, 4, 4),
    (8, 8, 4, 4),
)
# Where there are fewer products than SMs: all of one on an SM of its own, or more threads and more tiles.
_FEW: Final[tuple[Tile, ...]] = ((128, 128, 8, 8), (16, 16, 2, 4), (8, 32, 2, 4), (8, 16, 2, 2))
_OPENCL: Final[tuple[Tile, ...]] = (
    (64, 64, 8, 16),
    (32, 64, 4, 16),
    (32, 32, 4, 8),
    (64, 16, 4, 8),
    (16, 64, 4, 8),
    (64, 8, 4, 4),
    (8, 64, 4, 4),
    (16, 32, 4, 4),
    (16, 16, 4, 8),
    (8, 16, 4, 8),
    (16, 8, 4, 4),
    (8, 8, 4, 4),
)
# A phase's bytes along k, and those of all phases for each two warps, of which an SM is to hold four or more.
PHASE_BYTES: Final = 128
POOL_BYTES: Final = 48 * 1024
# Threads of a block of small tiles, and registers for each; blocks an SM has before any takes more products.
SMALL_BLOCK: Final = 128
SMALL_REGISTERS: Final = 128
BUSY: Final = 2
# k that one product's steps are through with before the launch is.
SHORT_K: Final = 32
# The longest side of a product that is one block's: several tiles load what rank_k's load once.
ONE_TILE: Final = 64


def _default(problem: Problem, device: Device) -> Config:
    tiles = _CUDA if device.platform == "cuda" else _OPENCL
    if tiles is _CUDA and problem.batch < device.limits.sms:
        tiles = (*tiles, *(tile for tile in _FEW if fits_vectors(dict(zip(TILE, tile, strict=True)), problem)))
    return lightest(SPACE, [_filled(tile, problem, device) for tile in tiles], problem, device)


def _filled(tile: Tile, problem: Problem, device: Device) -> dict[str, int]:
    """A tile with its BK and BATCH_PER_BLOCK."""
    chosen = dict(zip(TILE, tile, strict=True))
    needed = min(problem.k, PHASE_BYTES // problem.itemsize)
    chosen["BK"] = next(bk for bk in SPACE.parameters["BK"] if bk >= needed)
    chosen["BATCH_PER_BLOCK"] = _products(tile, problem, device)
    chosen |= {"STAGES": 1, "MIN_BLOCKS": 1}
    if device.capability >= COPIES_SINCE:
        pairs = max(1, threads(Config.of(chosen)) // (2 * WARP))
        room = POOL_BYTES * pairs // shared_bytes(Config.of(chosen), problem)
        chosen["STAGES"] = max(1, min(room, -(-problem.k // chosen["BK"]), SPACE.parameters["STAGES"][-1]))
    return chosen | {"MIN_BLOCKS": _held(Config.of(chosen), problem, device)}


def _products(tile: Tile, problem: Problem, device: Device) -> int:
    bm, bn, tm, tn = tile
    if bm < problem.m or bn < problem.n:
        return 1
    several = min(SMALL_BLOCK * tm * tn // (bm * bn), problem.batch // (BUSY * max(device.limits.sms, 1)))
    return max(_below(several if device.platform == "cuda" else 1), WARP * tm * tn // (bm * bn))


def _held(config: Config, problem: Problem, device: Device) -> int:
    """The MIN_BLOCKS of a tile: more than its registers alone would allow."""
    limits = device.limits
    if not limits.registers_per_sm or config["TM"] * config["TN"] * problem.itemsize >= LARGE_BYTES:
        return 1
    room = limits.registers_per_sm // (SMALL_REGISTERS * threads(config))
    min_blocks = (
        Config.of(dict(config) | {"MIN_BLOCKS": count})
        for count in reversed(SPACE.parameters["MIN_BLOCKS"])
        if count <= room
    )
    rules = (sums_and_registers_fit, BOUND_BINDS, ROOM_FOR_BLOCKS)
    return next((one["MIN_BLOCKS"] for one in min_blocks if all(rule(one, problem, device) for rule in rules)), 1)


def _below(count: int) -> int:
    """The largest power of two that is not above a count; of none, one."""
    return 1 << max(count.bit_length() - 1, 0)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether a block has a whole product, and they fill the GPU or k is short: else it waits for one step of k.

    A single product with a k of 76 to 127 takes it 5 to 9 us on an H200, and register_tiled, which slices k, 2.2 to
    2.6; of 81x113x8 x 97 and 117x38x14 x 189 it takes 1.55 and 1.30 times as long as rank_k, of 33x53x18 x 178, by
    tiles of 8x64, 1.38 times. On a processor a block's start is more than its few products.
    """
    if device.platform != "cuda" or max(problem.m, problem.n) > ONE_TILE:
        return False
    default = _default(problem, device)
    whole = default["BM"] >= problem.m and default["BN"] >= problem.n
    return whole and (problem.k <= SHORT_K or problem.batch >= device.limits.sms)


BATCHED: Final = Kernel(
    name="batched",
    summary="Many small products: a block has the whole operands of several on their way at once.",
    file="batched/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    dynamic_smem=True,
    sizes=Sizes(largest_most=LARGEST),
    preferred_untuned=_preferred_untuned,
    shapes=f"m, n and k of at most {LARGEST}",
)
