"""tensor_core's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import hypot
from typing import Final, NamedTuple

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import A, B, packed_k_major
from kernels.problem import Problem
from kernels.rules import CLUSTERED_SMS, LINE_BYTES, VECTOR_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles, received_rows
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    MMA_M,
    STEP_BYTES,
    element_bytes,
    emulated,
    k_steps,
    k_tiles_per_block,
    planes,
    register_limit,
    registers,
    shared_bytes,
    slice_threads,
    stage_bytes,
    threads,
)

# What an SM does in a clock: FMAs of 16-bit operands by mma.
FMAS: Final = 1024
MMA_AREA: Final = 16 * 8  # of C, an instruction's
# Registers that compilers take beside those that a thread needs, if MIN_BLOCKS does not say otherwise: more for loads
# ahead, for each operand that is realigned and each that is copied by fewer than 16 bytes, and fewer for slices of k.
TAKEN_BESIDE: Final = 8
TAKEN_AHEAD: Final = 6
TAKEN_REALIGNED: Final = 13
TAKEN_NARROW: Final = 9
NOT_TAKEN_SLICES: Final = 20
# What a thread reads at once of partial sums, and of how many splits.
SUMS: Final = 4
SPLITS_AT_ONCE: Final = 8
# Fitted, as benchmarks/kernels/fit.py does, to 10,612 times of 1,047 shapes on an H200: seconds of a launch and of the
# one before that packs, and the shares of memory's bandwidth that packing and all traffic seem to have.
LAUNCH: Final = 7.37e-7
PACKING: Final = 2.19e-6
OF_BANDWIDTH_PACKING: Final = 0.685
OF_BANDWIDTH: Final = 1.86
# Clocks until a copy has come, and bytes of an SM's copies that come in a clock.
LATENCY: Final = 505
FILLED_BYTES: Final = 55.2
# Clocks of a k tile that a block's threads take if they are alone: for each of its warps, which meet; more where
# elements are realigned; for each copy of a thread of less than 16 bytes; and for each mma step and
# instruction of a warp, of which so much is left where fragments are loaded ahead.
MEETING_CLOCKS: Final = 9.92
REALIGNED_CLOCKS: Final = 229
NARROW_CLOCKS: Final = 16.3
STEP_CLOCKS: Final = 3.02
MMA_CLOCKS: Final = 4.08
AHEAD_SHARE: Final = 0.593
# Clocks of an SM: for each one of its products; for each instruction of a warp that loads a word from shared memory,
# of a line along k that is realigned or else one element, and for each row or column that ldmatrix loads; for each copy
# and store of a warp; and for each line of 128 bytes that a k tile's copies begin.
PRODUCT_CLOCKS: Final = 0.167
WORD_CLOCKS: Final = 1.3
ELEMENT_CLOCKS: Final = 1.12
MATRIX_CLOCKS: Final = 0.062
COPY_CLOCKS: Final = 0.997
STORE_CLOCKS: Final = 6.53
LINE_CLOCKS: Final = 1.02
# Clocks for each block of the first on all SMs; until those of an SM have something to wait for, for each piece that a
# thread copies of a k tile that is not whole, and for each access of a warp to another slice's sums.
BEGUN_CLOCKS: Final = 8.67
TILE_CLOCKS: Final = 1510
PIECE_CLOCKS: Final = 93.4
SLICE_CLOCKS: Final = 4.04
# Clocks that splits take to meet, once or, in groups, twice; of a warp's access to partial sums; until those that a
# thread reads at once have come; and in which a cluster's blocks meet, and access each other's sums.
JOIN_CLOCKS: Final = 1790
SUM_CLOCKS: Final = 2.19
SUM_LATENCY: Final = 557
CLUSTER_CLOCKS: Final = 450
SENT_CLOCKS: Final = 1.53
# Of emulated float32: products that one of split operands takes, bytes that an SM gets from the L2 cache in a clock
# while all others do the same, clocks of a phase, a tile and a join; and how much of the estimate is measured.
SPLIT_PRODUCTS: Final = 3
CACHE_BYTES: Final = 32
EMULATED_PHASE: Final = 250
EMULATED_TILE: Final = 2500
EMULATED_JOIN: Final = 6000
MEASURED: Final = 1.25


class _StagedOperand(NamedTuple):
    """An operand's k tile: lines of it in memory, bytes of each, and how it is copied and loaded."""

    lines: int
    line_bytes: int
    side: int  # of a warp's rows or columns
    k_major: bool
    realigned: bool
    cp_size: int

    @property
    def is_narrow(self) -> bool:
        """Whether it is copied by fewer than 16 bytes."""
        return self.cp_size < VECTOR_BYTES

    @property
    def copies(self) -> int:
        """Copies of a block; of realigned lines one more each."""
        return self.lines * self.line_bytes // self.cp_size + self.realigned * self.lines

    def pieces(self, threads: int) -> int:
        """Copies of a thread; of realigned lines one more."""
        return -(-self.lines * self.line_bytes // (self.cp_size * threads)) + self.realigned * -(-self.lines // threads)

    @property
    def begun(self) -> float:
        """Lines of 128 bytes of memory: a ragged line begins anywhere in one."""
        return self.lines * max(1.0, self.line_bytes / LINE_BYTES + 0.5 * (self.realigned or self.is_narrow))

    def loads(self, itemsize: int) -> float:
        """Clocks of a warp's loads for an mma step."""
        if itemsize == ACCUMULATOR_BYTES and (self.realigned or not self.k_major):
            return self.side / 4 * ELEMENT_CLOCKS
        if self.realigned:
            return self.side / 2 * (WORD_CLOCKS if self.k_major else ELEMENT_CLOCKS)
        return self.side * MATRIX_CLOCKS


def _operands(config: Config, problem: Problem) -> tuple[_StagedOperand, _StagedOperand]:
    """Both operands."""
    bk, found = config["BK"], []
    for operand, side, own, stored, cp_size in (
        (A, config["BM"], config["WM"], not problem.trans_a, config["CP_SIZE_A"]),
        (B, config["BN"], config["WN"], problem.trans_b, config["CP_SIZE_B"]),
    ):
        k_major = stored or config["PACK_K"] & operand > 0
        lines, length = (side, bk) if k_major else (bk, side)
        realign = config["REALIGN"] & operand > 0
        found.append(_StagedOperand(lines, length * problem.itemsize, own, k_major, realign, cp_size))
    return found[0], found[1]


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
    area, own = config["BM"] * config["BN"], threads(config)
    busy, waves = _turns(config, problem, device, _taken(config, problem, device))
    together = busy / waves
    operands = _operands(config, problem)
    count, filled = k_tiles_per_block(config, problem), stage_bytes(config, problem) / FILLED_BYTES
    products = area * config["BK"] * problem.itemsize / (2 * FMAS)
    issued = PRODUCT_CLOCKS * products + _issued(config, problem, operands)
    waited = (LATENCY + filled) / (config["STAGES"] - 1)
    k_tile = max(hypot(_alone(config, problem, operands) + together * issued, waited), together * products)
    broken = config["PACK_K"] != A | B and (problem.k % config["BK"] > 0 or config["REALIGN"] > 0)
    pieces = sum(each.pieces(own) for each in operands)
    begun = TILE_CLOCKS + together * filled + PIECE_CLOCKS * pieces * broken
    slices = SLICE_CLOCKS * (config["SLICE_K"] - 1) * area / WARP
    met = _joined(config, problem) + _cluster_clocks(config)
    ends = busy * (STORE_CLOCKS * _stores(config, problem) + slices) + met
    first = BEGUN_CLOCKS * min(_grid(config, problem), device.limits.sms)
    return first + waves * (begun + count * k_tile) + ends


def blocks_at_once(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that an SM is estimated to run at once."""
    if emulated(problem):
        return 1
    busy, waves = _turns(config, problem, device, _taken(config, problem, device))
    return -(-busy // waves)


def _taken(config: Config, problem: Problem, device: Device) -> int:
    """Registers of a thread, as compiled."""
    narrow = (config["CP_SIZE_A"] < VECTOR_BYTES) + (config["CP_SIZE_B"] < VECTOR_BYTES)
    more = TAKEN_AHEAD * config["AHEAD"] + TAKEN_REALIGNED * config["REALIGN"].bit_count() + TAKEN_NARROW * narrow
    more += TAKEN_BESIDE - NOT_TAKEN_SLICES * (config["SLICE_K"] > 1)
    return min(registers(config, problem) + more, register_limit(config, device))


def _turns(config: Config, problem: Problem, device: Device, taken: int) -> tuple[int, int]:
    """Blocks of the busiest SM, and how often it begins as many as it runs at once, with so many registers a thread."""
    grid, share = _grid(config, problem), CLUSTERED_SMS.get(config["CLUSTER_K"], 1)
    return turns(device.limits, grid, threads(config), shared_bytes(config, problem), taken, share)


def _grid(config: Config, problem: Problem) -> int:
    return blocks(config, problem) * config["SPLIT_K"] * config["CLUSTER_K"]


def _alone(config: Config, problem: Problem, operands: tuple[_StagedOperand, _StagedOperand]) -> float:
    """Clocks of a k tile that a block's threads take if they are alone."""
    own = threads(config)
    steps = k_steps(config, problem) * (STEP_CLOCKS + MMA_CLOCKS * config["WM"] * config["WN"] / MMA_AREA)
    narrow = sum(each.pieces(own) for each in operands if each.is_narrow)
    return (
        MEETING_CLOCKS * own / WARP
        + steps * (AHEAD_SHARE if config["AHEAD"] else 1)
        + REALIGNED_CLOCKS * (config["REALIGN"] > 0)
        + NARROW_CLOCKS * narrow
    )


def _issued(config: Config, problem: Problem, operands: tuple[_StagedOperand, _StagedOperand]) -> float:
    """Clocks of an SM in which a block's loads from shared memory and its copies are issued, for a k tile."""
    warp_steps = slice_threads(config) // WARP * config["BK"] * problem.itemsize / STEP_BYTES
    loads = warp_steps * sum(each.loads(problem.itemsize) for each in operands)
    return (
        loads
        + COPY_CLOCKS * sum(each.copies for each in operands) / WARP
        + LINE_CLOCKS * sum(each.begun for each in operands)
    )


def _joined(config: Config, problem: Problem) -> float:
    """Clocks until the last block of a tile has added up its splits: in groups, whose sums another one adds up."""
    count = k_tiles(config, problem)
    splits = -(-count // (k_tiles_per_block(config, problem) * config["CLUSTER_K"]))
    if splits == 1:
        return 0
    rows, parts = config["WM"] // MMA_M, config["CLUSTER_K"]
    members, area = fan(splits), config["BM"] * config["BN"] * -(-rows // parts) // rows
    groups = -(-splits // members)
    levels = [members] if groups == 1 else [members, groups]
    rounds = -(-area // (SUMS * threads(config)))
    return sum(
        JOIN_CLOCKS
        + SUM_CLOCKS * read * area * ACCUMULATOR_BYTES / WARP
        + SUM_LATENCY * rounds * -(-read // SPLITS_AT_ONCE)
        for read in levels
    )


def _cluster_clocks(config: Config) -> float:
    """Clocks in which a cluster's blocks meet, send each other sums, and add those of their own rows."""
    parts = config["CLUSTER_K"]
    if parts == 1:
        return 0
    rows = config["WM"] // MMA_M
    share = received_rows(parts, rows) / rows
    return CLUSTER_CLOCKS + 2 * SENT_CLOCKS * share * config["SLICE_K"] * config["BM"] * config["BN"] / WARP


def _stores(config: Config, problem: Problem) -> float:
    """Stores of C that a block's warps issue: of as many elements, up to four, as divide its rows."""
    together = next(count for count in (4, 2, 1) if problem.n % count == 0)
    return config["BM"] * config["BN"] / (together * WARP)


def _emulated_clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products of split operands, their loads from the cache, or its waits."""
    bm, bn, splits, item = config["BM"], config["BN"], config["SPLIT_K"], element_bytes(problem)
    busy, waves = _turns(config, problem, device, registers(config, problem))
    count = k_tiles_per_block(config, problem)
    products = bm * bn * SPLIT_PRODUCTS * item / (2 * FMAS)
    reads = planes(problem) * (bm + bn) * item / CACHE_BYTES
    loop = max(busy * count * config["BK"] * max(products, reads), waves * count * EMULATED_PHASE)
    sums = 2 * fan(splits) * bm * bn * ACCUMULATOR_BYTES / CACHE_BYTES
    return loop + waves * EMULATED_TILE + (EMULATED_JOIN + sums) * (splits > 1)
