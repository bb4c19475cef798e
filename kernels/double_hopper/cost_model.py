"""double_hopper's cost model: an estimate of a config's time, which its default has the least of.

Its terms are double_tensor's, without copies, which no thread makes here; until a GPU has told them, so are constants.
"""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK
from kernels.device import Device
from kernels.double_hopper.plan import consumers, shared_bytes, threads
from kernels.double_tensor.cost_model import (
    ALONE_CLOCKS,
    FMAS,
    LAUNCH,
    LOAD_CLOCKS,
    MMA_CLOCKS,
    OF_BANDWIDTH,
    PRODUCT_CLOCKS,
    SHALLOW,
    SHARED_BYTES,
    SIDE,
    STEP_CLOCKS,
    STORE_CLOCKS,
    TILE_CLOCKS,
    WAIT_CLOCKS,
)
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config
from kernels.split_k import k_tiles

# Of the registers that a block's threads are given.
MOST: Final = 255


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
    issued = PRODUCT_CLOCKS * products + LOAD_CLOCKS * loads
    steps = bk / deep * (1 - config["AHEAD"] / 2)
    instructions = bk / SHALLOW * (wm / SIDE) * (wn / SIDE)
    waits = WAIT_CLOCKS / config["STAGES"] + steps * STEP_CLOCKS + MMA_CLOCKS * instructions
    return max(busy * issued + waves * waits, busy * products)


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    granted = min(limits.registers_per_sm // (threads(config) * config["MIN_BLOCKS"]), MOST) * threads(config)
    return max(1, min(most, room, limits.registers_per_sm // max(granted, 1)))
