"""double_hopper's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK, sectors_touched
from kernels.device import Device
from kernels.double_hopper.plan import consumers, shared_bytes, threads, tiles
from kernels.packing import is_c_ragged
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config
from kernels.split_k import fan, k_tiles_per_split

# What an SM does in a clock: float64 FMAs on tensor cores, and bytes of shared memory.
FMAS: Final = 128
SHARED_BYTES: Final = 128
# An instruction's rows or columns, and the k of the deepest.
SIDE: Final = 8
DEEPEST: Final = 16
# Of the registers that a block's threads are given.
MOST: Final = 255
# Bytes of C's row that a warp stores at once: of eight lanes with pairs of neighbours where instructions make C
# transposed, else of four, and of four with single elements where its rows are not aligned to 16 bytes.
EIGHT_PAIRS, FOUR_PAIRS, FOUR_SINGLE = 128, 64, 32
# Seconds of a launch, as other kernels' are: the fit cannot tell it from a tile's clocks, and would take half of it.
LAUNCH: Final = 1.8e-06
# Fitted, as benchmarks/kernels/fit.py does, to 1,439 times of 98 shapes on an H200, 1,364 of them each 2.6 us less than
# between its events, which take so much more than a graph of launches. Clocks of a k tile that a block waits: for its
# loads, shared by the stages ahead; for each step of a warp whose
# fragments are not read ahead; and for each instruction of it.
WAIT_CLOCKS: Final = 360
STEP_CLOCKS: Final = 7.48
MMA_CLOCKS: Final = 4.42
# The same of blocks that wait for each other.
CLUSTER_CLOCKS: Final = 38.6
# Clocks of an SM: for each one of its products, more where instructions are deepest; for each one of loads from shared
# memory by bytes, and for each of what the TMA unit brings.
PRODUCT_CLOCKS: Final = 0.633
DEEPEST_CLOCKS: Final = 0.0368
LOAD_CLOCKS: Final = 0.0211
TMA_CLOCKS: Final = 0.497
# Bytes that the cache sends in a clock for each SM, where all read; chosen by what picks lose.
CACHE_BYTES: Final = 27
# Clocks of a tile before its first product and after its last one; of each further one of an SM where no other block
# runs beside it, and it is no persistent block's; and of each sector that its stores touch.
TILE_CLOCKS: Final = 598
ALONE_CLOCKS: Final = 3870
SECTOR_CLOCKS: Final = 2.66
# Of splits for each other, and for each 128 bytes of partial sums.
JOIN_CLOCKS: Final = 4320
SUM_CLOCKS: Final = 7.6


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    return LAUNCH + max(
        _clocks(config, problem, device) / CLOCK,
        problem.bytes / device.limits.bandwidth,
        _read_bytes(config, problem) / (CACHE_BYTES * max(device.limits.sms, 1)) / CLOCK,
    )


def _read_bytes(config: Config, problem: Problem) -> int:
    """Bytes that the cache sends: of both operands' tiles, B's once for a cluster."""
    lines = tiles(config, problem) * (config["BM"] * config["CLUSTER"] + config["BN"])
    return lines * problem.k * problem.itemsize


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM; the first loads of a persistent block's next tile come while it stores the last.

    Stores leave the SM while it multiplies its next tiles: of these the longer counts, and the last one's stores. A
    split's partial sums are whole lines.
    """
    splits = config["SPLIT_K"]
    busy = -(-tiles(config, problem) * config["CLUSTER"] * splits // max(device.limits.sms, 1))
    resident = _resident(config, problem, device, busy)
    waves = -(-busy // resident)
    alone = ALONE_CLOCKS * (waves - 1) * (resident == 1) * (config["BLOCKS"] == 0)
    sums = 2 * fan(splits) * config["BM"] * config["BN"] * problem.itemsize / SHARED_BYTES
    joining = JOIN_CLOCKS + SUM_CLOCKS * sums if splits > 1 else 0
    each = k_tiles_per_split(config, problem) * _k_tile_clocks(config, problem, busy, waves)
    products = each + waves * TILE_CLOCKS + alone
    if splits > 1:
        return products + joining
    stored = busy * SECTOR_CLOCKS * _sectors(config, problem) / waves
    return products + stored + max(0, (waves - 1) * (stored - products / waves))


def _sectors(config: Config, problem: Problem) -> float:
    """Sectors that a tile's stores touch, of what it has of C."""
    run = FOUR_SINGLE if is_c_ragged(problem) else FOUR_PAIRS if problem.trans_b else EIGHT_PAIRS
    rows, columns = min(config["BM"], problem.m), min(config["BN"], problem.n)
    return rows * columns * problem.itemsize / run * sectors_touched(run, problem)


def _k_tile_clocks(config: Config, problem: Problem, busy: int, waves: int) -> float:
    """Clocks of the busiest SM for one k tile of each of its blocks: what they issue, and what one waits."""
    wm, wn, bk, deep = config["WM"], config["WN"], config["BK"], config["MMA_K"]
    products = config["BM"] * config["BN"] * bk / FMAS
    loads = consumers(config) / WARP * (wm + wn) * bk * problem.itemsize / SHARED_BYTES
    brought = (config["BM"] + config["BN"] / config["CLUSTER"]) * bk * problem.itemsize / SHARED_BYTES
    each = PRODUCT_CLOCKS + DEEPEST_CLOCKS * (deep == DEEPEST)
    issued = each * products + LOAD_CLOCKS * loads + TMA_CLOCKS * brought
    waits = WAIT_CLOCKS / config["STAGES"] + CLUSTER_CLOCKS * (config["CLUSTER"] > 1)
    steps = bk / deep * STEP_CLOCKS * (1 - config["AHEAD"]) + MMA_CLOCKS * bk / SIDE * (wm / SIDE) * (wn / SIDE)
    return max(busy * issued + waves * (waits + steps), busy * products)


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    granted = min(limits.registers_per_sm // (threads(config) * config["MIN_BLOCKS"]), MOST) * threads(config)
    return max(1, min(most, room, limits.registers_per_sm // max(granted, 1)))
