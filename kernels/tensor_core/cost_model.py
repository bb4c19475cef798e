"""tensor_core's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import HALF_BYTES, A, B, packed_k_major, ragged
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, VECTOR_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles_per_split
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    element_bytes,
    emulated,
    k_steps,
    planes,
    realigned,
    registers,
    shared_bytes,
    slice_threads,
    threads,
)

# What an SM does in a clock: FMAs of 16-bit operands by mma, and bytes of shared memory.
FMAS: Final = 1024
SHARED_BYTES: Final = 128
MMA_AREA: Final = 16 * 8  # of C, an instruction's
# Fitted, as benchmarks/kernels/fit.py does, to 3,309 times of 134 shapes on an H200: seconds of a launch and of the one
# before that packs, and the shares of memory's bandwidth that packing and all traffic seem to have.
LAUNCH: Final = 0.9e-6
PACKING: Final = 2e-6
OF_BANDWIDTH_PACKING: Final = 0.67
OF_BANDWIDTH: Final = 1.6
# Clocks of a k tile that a block waits: for its copies, shared by the stages ahead; more where elements are realigned
# or copied by 4 bytes; and for each mma step and instruction of a warp.
WAIT_CLOCKS: Final = 550
REALIGNED_CLOCKS: Final = 190
NARROW_CLOCKS: Final = 230
STEP_CLOCKS: Final = 14
MMA_CLOCKS: Final = 4.8
# Clocks of an SM: for each one of its products and of its loads from shared memory by bytes, for each load of a word of
# realigned elements, each copy and each store of a warp.
PRODUCT_CLOCKS: Final = 0.11
LOAD_CLOCKS: Final = 0.19
PAIR_CLOCKS: Final = 1.6
COPY_CLOCKS: Final = 5.3
STORE_CLOCKS: Final = 7.8
# Clocks of a tile before its first product and after its last one; of slices of a block for each warp's access, and of
# splits for each other and for each partial sum that a warp reads.
TILE_CLOCKS: Final = 2000
SLICE_CLOCKS: Final = 4.7
JOIN_CLOCKS: Final = 3700
SUM_CLOCKS: Final = 8.5
# Of emulated float32: products that one of split operands takes, bytes that an SM gets from the L2 cache in a clock
# while all others do the same, clocks of a phase, a tile and a join; and how much of the estimate is measured.
SPLIT_PRODUCTS: Final = 3
CACHE_BYTES: Final = 32
EMULATED_PHASE: Final = 250
EMULATED_TILE: Final = 2500
EMULATED_JOIN: Final = 6000
MEASURED: Final = 1.25


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch with the steps before it."""
    if emulated(problem):
        return MEASURED * _emulated_clocks(config, problem, device) / CLOCK
    bandwidth = device.limits.bandwidth
    packed = packed_k_major(problem, config["PACK_K"], 0).end * LINE_BYTES
    packing = PACKING + 2 * packed / (OF_BANDWIDTH_PACKING * bandwidth) if packed else 0
    return LAUNCH + packing + _clocks(config, problem, device) / CLOCK + problem.bytes / (OF_BANDWIDTH * bandwidth)


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: what its blocks issue, and what those that run at once wait for."""
    splits, area = config["SPLIT_K"], config["BM"] * config["BN"]
    busy, waves = _turns(config, problem, device)
    products = area * config["BK"] * problem.itemsize / (2 * FMAS)
    issued = PRODUCT_CLOCKS * products + _loads(config, problem) + COPY_CLOCKS * _copies(config, problem)
    count = k_tiles_per_split(config, problem)
    loop = count * max(busy * issued + waves * _waits(config, problem), busy * products)
    slices = SLICE_CLOCKS * (config["SLICE_K"] - 1) * area / WARP
    tiles = waves * TILE_CLOCKS + busy * (STORE_CLOCKS * _stores(config, problem) + slices)
    return loop + tiles + (JOIN_CLOCKS + SUM_CLOCKS * fan(splits) * area * ACCUMULATOR_BYTES / WARP) * (splits > 1)


def _turns(config: Config, problem: Problem, device: Device) -> tuple[int, int]:
    """Blocks of the busiest SM, and how often it begins as many as it runs at once."""
    grid = blocks(config, problem) * config["SPLIT_K"]
    return turns(device.limits, grid, threads(config), shared_bytes(config, problem), registers(config, problem))


def _waits(config: Config, problem: Problem) -> float:
    """Clocks that a block waits in a k tile if it is alone."""
    step = STEP_CLOCKS + MMA_CLOCKS * config["WM"] * config["WN"] / MMA_AREA
    copied = REALIGNED_CLOCKS * (realigned(config, problem) > 0) + NARROW_CLOCKS * (_narrow(config, problem) > 0)
    return WAIT_CLOCKS / (config["STAGES"] - 1) + copied + k_steps(config, problem) * step


def _narrow(config: Config, problem: Problem) -> int:
    """The operands that are copied by 4 bytes, as bits."""
    return ragged(problem) & ~config["PACK_K"] & ~config["REALIGN"]


def _loads(config: Config, problem: Problem) -> float:
    """Clocks of a block's loads from shared memory, for a k tile: by ldmatrix, or words of realigned elements."""
    which, deep = config["REALIGN"], slice_threads(config) / WARP * config["BK"] * problem.itemsize
    words = config["WM"] * bool(which & A) + config["WN"] * bool(which & B)
    others = config["WM"] + config["WN"] - words
    each = 2 if problem.itemsize == HALF_BYTES else 1  # loads of a pair of elements, or of one
    return deep * (LOAD_CLOCKS * others + PAIR_CLOCKS * words * each) / SHARED_BYTES


def _copies(config: Config, problem: Problem) -> float:
    """Copies that a block's warps issue for a k tile: of 16 bytes or 4, and of each realigned line one more."""
    narrow, which = _narrow(config, problem), config["REALIGN"]
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    wide = VECTOR_BYTES // problem.itemsize
    rows, columns = (bm * (wide if narrow & A else 1), bn * (wide if narrow & B else 1))
    more_a = (bk if problem.trans_a else bm) * bool(which & A)
    more_b = (bn if problem.trans_b else bk) * bool(which & B)
    return ((rows + columns) * bk / wide + more_a + more_b) / WARP


def _stores(config: Config, problem: Problem) -> float:
    """Stores of C that a block's warps issue: of as many elements, up to four, as divide its rows."""
    together = next(count for count in (4, 2, 1) if problem.n % count == 0)
    return config["BM"] * config["BN"] / (together * WARP)


def _emulated_clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products of split operands, their loads from the cache, or its waits."""
    bm, bn, splits, item = config["BM"], config["BN"], config["SPLIT_K"], element_bytes(problem)
    busy, waves = _turns(config, problem, device)
    count = k_tiles_per_split(config, problem)
    products = bm * bn * SPLIT_PRODUCTS * item / (2 * FMAS)
    reads = planes(problem) * (bm + bn) * item / CACHE_BYTES
    loop = max(busy * count * config["BK"] * max(products, reads), waves * count * EMULATED_PHASE)
    sums = 2 * fan(splits) * bm * bn * ACCUMULATOR_BYTES / CACHE_BYTES
    return loop + waves * EMULATED_TILE + (EMULATED_JOIN + sums) * (splits > 1)
