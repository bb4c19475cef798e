"""double_hopper's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK
from kernels.device import Device
from kernels.double_hopper.plan import consumers, shared_bytes, threads
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config
from kernels.split_k import k_tiles

# What an SM does in a clock: float64 FMAs on tensor cores, and bytes of shared memory.
FMAS: Final = 128
SHARED_BYTES: Final = 128
# An instruction's rows or columns, and the k of the deepest.
SIDE: Final = 8
DEEPEST: Final = 16
# Of the registers that a block's threads are given.
MOST: Final = 255
# Fitted, as benchmarks/kernels/fit.py does, to times on an H200: seconds of a launch, and the share of memory's
# bandwidth that traffic seems to have.
LAUNCH: Final = 5.02e-06
OF_BANDWIDTH: Final = 496
# Clocks of a k tile that a block waits: for its loads, shared by the stages ahead; for each step of a warp whose
# fragments are not read ahead, or are; and for each instruction of it.
WAIT_CLOCKS: Final = 344
STEP_CLOCKS: Final = 14
AHEAD_CLOCKS: Final = 0.337
MMA_CLOCKS: Final = 2.84
# Clocks of an SM: for each one of its products, more where instructions are deepest; for each one of loads from shared
# memory by bytes, and for each of what the TMA unit brings.
PRODUCT_CLOCKS: Final = 0.562
DEEPEST_CLOCKS: Final = 0.0624
LOAD_CLOCKS: Final = 0.0731
TMA_CLOCKS: Final = 0.896
# Clocks of a tile before its first product and after its last one; of each further one of an SM where no other block
# runs beside it, and it is no persistent block's; of each store of a warp.
TILE_CLOCKS: Final = 1100
ALONE_CLOCKS: Final = 2420
STORE_CLOCKS: Final = 1.81


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    moving = problem.bytes / (OF_BANDWIDTH * device.limits.bandwidth)
    return LAUNCH + _clocks(config, problem, device) / CLOCK + moving


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM; the first loads of a persistent block's next tile come while it stores the last."""
    busy = -(-blocks(config, problem) // max(device.limits.sms, 1))
    resident = _resident(config, problem, device, busy)
    waves = -(-busy // resident)
    alone = ALONE_CLOCKS * (waves - 1) * (resident == 1) * (config["BLOCKS"] == 0)
    stores = busy * STORE_CLOCKS * config["BM"] * config["BN"] / WARP
    each = _k_tile_clocks(config, problem, busy, waves)
    return k_tiles(config, problem) * each + waves * TILE_CLOCKS + alone + stores


def _k_tile_clocks(config: Config, problem: Problem, busy: int, waves: int) -> float:
    """Clocks of the busiest SM for one k tile of each of its blocks: what they issue, and what one waits."""
    wm, wn, bk, deep = config["WM"], config["WN"], config["BK"], config["MMA_K"]
    products = config["BM"] * config["BN"] * bk / FMAS
    loads = consumers(config) / WARP * (wm + wn) * bk * problem.itemsize / SHARED_BYTES
    brought = (config["BM"] + config["BN"] / config["CLUSTER"]) * bk * problem.itemsize / SHARED_BYTES
    each = PRODUCT_CLOCKS + DEEPEST_CLOCKS * (deep == DEEPEST)
    issued = each * products + LOAD_CLOCKS * loads + TMA_CLOCKS * brought
    step = AHEAD_CLOCKS if config["AHEAD"] else STEP_CLOCKS
    waits = WAIT_CLOCKS / config["STAGES"] + bk / deep * step + MMA_CLOCKS * bk / SIDE * (wm / SIDE) * (wn / SIDE)
    return max(busy * issued + waves * waits, busy * products)


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    granted = min(limits.registers_per_sm // (threads(config) * config["MIN_BLOCKS"]), MOST) * threads(config)
    return max(1, min(most, room, limits.registers_per_sm // max(granted, 1)))
