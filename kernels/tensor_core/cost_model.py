"""tensor_core's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import occupancy
from kernels.device import Device
from kernels.packing import A, B, packed_k_major, ragged
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles_per_split
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    element_bytes,
    emulated,
    planes,
    realigned,
    registers,
    shared_bytes,
    threads,
)

# What an SM does in a clock: FMAs of 16-bit operands on tensor cores, and bytes that it gets from the L2 cache while
# all others do the same; and products that one of split operands takes.
FMAS: Final = 1024
CACHE_BYTES: Final = 32
SPLIT_PRODUCTS: Final = {1: 1, 2: 3}
# In clocks: what a block waits in a phase, and where its pieces are copied one element at a time; what a tile takes
# before its first product and after its last one, slices for each other, and a launch before.
PHASE_CLOCKS: Final = 250
NARROW_CLOCKS: Final = 1500
NARROW_READS: Final = 4
TILE_CLOCKS: Final = 2500
JOIN_CLOCKS: Final = 6000
LAUNCH_CLOCKS: Final = 4000
# Clocks of a second; of those estimated, as many are measured.
CLOCK: Final = 1.7e9
MEASURED: Final = 1.25
# The same where operands are realigned: figures that minimise the error over 883 times of 63 shapes on an H200. An mma
# step is 16 of k, and each pair of 2-byte elements is two loads of shared memory.
STEP_DEPTH: Final = 16
PAIR_CLOCKS: Final = 2.0
PRODUCT_CLOCKS: Final = 0.19
READ_CLOCKS: Final = 2.5
REALIGNED_PHASE: Final = 950
CLOCKS_OF_K: Final = 2.8
REALIGNED_TILE: Final = 2100
STORE_CLOCKS: Final = 0.24
REALIGNED_JOIN: Final = 2900
JOIN_READS: Final = 3.5
REALIGNED_LAUNCH: Final = 1.5e-6
OF_BANDWIDTH: Final = 0.24


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """An estimate of a launch with the steps before it."""
    if realigned(config, problem):
        return _of_realigned(config, problem, device)
    return MEASURED * _clocks(config, problem, device) / CLOCK


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products, their loads from the cache, or its waits."""
    bm, bn, splits, item = config["BM"], config["BN"], config["SPLIT_K"], element_bytes(problem)
    busy, waves = _turns(config, problem, device)
    count = k_tiles_per_split(config, problem)
    narrow = ragged(problem) != 0 and not config["PACK_K"] and not emulated(problem)
    products = bm * bn * SPLIT_PRODUCTS[planes(problem)] * item / (2 * FMAS)
    reads = planes(problem) * (bm + bn) * item * (NARROW_READS if narrow else 1) / CACHE_BYTES
    loop = max(
        busy * count * config["BK"] * max(products, reads), waves * count * (NARROW_CLOCKS if narrow else PHASE_CLOCKS)
    )
    joining = JOIN_CLOCKS + 2 * fan(splits) * bm * bn * ACCUMULATOR_BYTES / CACHE_BYTES if splits > 1 else 0
    lines = packed_k_major(problem, config["PACK_K"], 0).end
    copying = LAUNCH_CLOCKS + 2 * lines * LINE_BYTES * CLOCK / device.limits.bandwidth if lines else 0
    return loop + waves * TILE_CLOCKS + joining + copying


def _of_realigned(config: Config, problem: Problem, device: Device) -> float:
    area, splits = config["BM"] * config["BN"], config["SPLIT_K"]
    busy, waves = _turns(config, problem, device)
    count = k_tiles_per_split(config, problem)
    products = area * problem.itemsize / (2 * FMAS)
    reads = (config["BM"] + config["BN"]) * problem.itemsize / CACHE_BYTES
    each_k = max(PRODUCT_CLOCKS * products + PAIR_CLOCKS * _pair_loads(config), READ_CLOCKS * reads)
    loop = max(busy * config["BK"] * each_k, waves * (REALIGNED_PHASE + CLOCKS_OF_K * config["BK"])) * count
    tiles = waves * REALIGNED_TILE + busy * area * STORE_CLOCKS
    sums = 2 * fan(splits) * area * ACCUMULATOR_BYTES / CACHE_BYTES
    joining = REALIGNED_JOIN + JOIN_READS * sums if splits > 1 else 0
    moved = problem.itemsize * problem.batch * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
    moving = moved / (OF_BANDWIDTH * device.limits.bandwidth)
    return REALIGNED_LAUNCH + max((loop + tiles + joining) / CLOCK, moving)


def _turns(config: Config, problem: Problem, device: Device) -> tuple[int, int]:
    """Blocks of the busiest SM, and how often it begins as many as it runs at once."""
    limits = device.limits
    busy = -(-blocks(config, problem) * config["SPLIT_K"] // max(limits.sms, 1))
    resident = occupancy(limits, threads(config), shared_bytes(config, problem), registers(config, problem))
    return busy, -(-busy // max(resident.blocks_per_sm if resident else 1, 1))


def _pair_loads(config: Config) -> float:
    """Loads that a block's warps make of realigned fragments, for each k."""
    warps = threads(config) // (WARP * config["SLICE_K"])
    sides = config["WM"] * bool(config["REALIGN"] & A) + config["WN"] * bool(config["REALIGN"] & B)
    return warps * sides / (2 * STEP_DEPTH)
