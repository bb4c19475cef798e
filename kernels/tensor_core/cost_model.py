"""tensor_core's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import hypot
from typing import Final, NamedTuple

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import A, B, packed_k_major, ragged
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, VECTOR_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    STEP_BYTES,
    element_bytes,
    emulated,
    k_steps,
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
# Registers that compilers take beside those that a thread needs, if MIN_BLOCKS does not say otherwise.
TAKEN_BESIDE: Final = 4
# What a thread reads at once of partial sums, and of how many splits.
SUMS: Final = 4
SPLITS_AT_ONCE: Final = 8
# Fitted, as benchmarks/kernels/fit.py does, to 5,381 times of 468 shapes on an H200: seconds of a launch and of the one
# before that packs, and the shares of memory's bandwidth that packing and all traffic seem to have.
LAUNCH: Final = 5.8e-7
PACKING: Final = 2.25e-6
OF_BANDWIDTH_PACKING: Final = 0.714
OF_BANDWIDTH: Final = 1.77
# Clocks until a copy has come, and bytes of an SM's copies that come in a clock.
LATENCY: Final = 665
FILLED_BYTES: Final = 60.7
# Clocks of a k tile that a block's threads take if they are alone: for each of its warps, which meet; more where
# elements are realigned; for each piece of 16 bytes that a thread copies by 4 bytes; and for each mma step and
# instruction of a warp, of which so much is left where fragments are loaded ahead.
MEETING_CLOCKS: Final = 9.6
REALIGNED_CLOCKS: Final = 226
NARROW_CLOCKS: Final = 127
STEP_CLOCKS: Final = 8.6
MMA_CLOCKS: Final = 2.63
AHEAD_SHARE: Final = 0.49
# Clocks of an SM: for each one of its products; for each instruction of a warp that loads a word from shared memory,
# of a line along k that is realigned or else one element, and for each row or column that ldmatrix loads; for each copy
# and store of a warp; and for each line of 128 bytes that a k tile's copies begin.
PRODUCT_CLOCKS: Final = 0.303
WORD_CLOCKS: Final = 1.53
ELEMENT_CLOCKS: Final = 1.07
MATRIX_CLOCKS: Final = 0.018
COPY_CLOCKS: Final = 2.23
STORE_CLOCKS: Final = 7.05
LINE_CLOCKS: Final = 0.88
# Clocks for each block of the first on all SMs; until those of an SM have something to wait for, for each piece that a
# thread copies of a k tile that is not whole, and for each access of a warp to another slice's sums.
BEGUN_CLOCKS: Final = 7.92
TILE_CLOCKS: Final = 1530
PIECE_CLOCKS: Final = 115
SLICE_CLOCKS: Final = 3.44
# Clocks that splits take to meet, once or, in groups, twice; of a warp's access to partial sums; and until those that a
# thread reads at once have come.
JOIN_CLOCKS: Final = 1820
SUM_CLOCKS: Final = 2.46
SUM_LATENCY: Final = 533
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
    narrow: bool

    def pieces(self, threads: int) -> int:
        """Copies of a thread, of 16 bytes; of realigned lines one more."""
        return -(-self.lines * self.line_bytes // (VECTOR_BYTES * threads)) + self.realigned * -(-self.lines // threads)

    @property
    def begun(self) -> float:
        """Lines of 128 bytes of memory: a realigned line begins anywhere in one."""
        return self.lines * max(1.0, self.line_bytes / LINE_BYTES + 0.5 * self.realigned)

    def loads(self, itemsize: int) -> float:
        """Clocks of a warp's loads for an mma step."""
        if itemsize == ACCUMULATOR_BYTES and (self.realigned or not self.k_major):
            return self.side / 4 * ELEMENT_CLOCKS
        if self.realigned:
            return self.side / 2 * (WORD_CLOCKS if self.k_major else ELEMENT_CLOCKS)
        return self.side * MATRIX_CLOCKS


def _operands(config: Config, problem: Problem) -> tuple[_StagedOperand, _StagedOperand]:
    """Both operands."""
    narrow, bk, found = _narrow(config, problem), config["BK"], []
    for operand, side, own, stored in (
        (A, config["BM"], config["WM"], not problem.trans_a),
        (B, config["BN"], config["WN"], problem.trans_b),
    ):
        k_major = stored or config["PACK_K"] & operand > 0
        lines, length = (side, bk) if k_major else (bk, side)
        realign = config["REALIGN"] & operand > 0
        found.append(_StagedOperand(lines, length * problem.itemsize, own, k_major, realign, narrow & operand > 0))
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
    taken = min(registers(config, problem) + TAKEN_BESIDE, register_limit(config, device))
    busy, waves = _turns(config, problem, device, taken)
    together = busy / waves
    operands = _operands(config, problem)
    count, filled = k_tiles_per_split(config, problem), stage_bytes(config, problem) / FILLED_BYTES
    products = area * config["BK"] * problem.itemsize / (2 * FMAS)
    issued = PRODUCT_CLOCKS * products + _issued(config, problem, operands)
    waited = (LATENCY + filled) / (config["STAGES"] - 1)
    k_tile = max(hypot(_alone(config, problem, operands) + together * issued, waited), together * products)
    broken = config["PACK_K"] != A | B and (problem.k % config["BK"] > 0 or config["REALIGN"] > 0)
    pieces = sum(each.pieces(own) for each in operands if not each.narrow)
    begun = TILE_CLOCKS + together * filled + PIECE_CLOCKS * pieces * broken
    slices = SLICE_CLOCKS * (config["SLICE_K"] - 1) * area / WARP
    ends = busy * (STORE_CLOCKS * _stores(config, problem) + slices) + _joined(config, problem)
    first = BEGUN_CLOCKS * min(blocks(config, problem) * config["SPLIT_K"], device.limits.sms)
    return first + waves * (begun + count * k_tile) + ends


def _turns(config: Config, problem: Problem, device: Device, taken: int) -> tuple[int, int]:
    """Blocks of the busiest SM, and how often it begins as many as it runs at once, with so many registers a thread."""
    grid = blocks(config, problem) * config["SPLIT_K"]
    return turns(device.limits, grid, threads(config), shared_bytes(config, problem), taken)


def _alone(config: Config, problem: Problem, operands: tuple[_StagedOperand, _StagedOperand]) -> float:
    """Clocks of a k tile that a block's threads take if they are alone."""
    own = threads(config)
    steps = k_steps(config, problem) * (STEP_CLOCKS + MMA_CLOCKS * config["WM"] * config["WN"] / MMA_AREA)
    narrow = sum(each.pieces(own) for each in operands if each.narrow)
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
    return loads + COPY_CLOCKS * _copies(config, problem) + LINE_CLOCKS * sum(each.begun for each in operands)


def _joined(config: Config, problem: Problem) -> float:
    """Clocks until the last block of a tile has added up its splits: in groups, whose sums another one adds up."""
    count = k_tiles(config, problem)
    splits = -(-count // k_tiles_per_split(config, problem))
    if splits == 1:
        return 0
    members, area = fan(splits), config["BM"] * config["BN"]
    groups = -(-splits // members)
    levels = [members] if groups == 1 else [members, groups]
    rounds = -(-area // (SUMS * threads(config)))
    return sum(
        JOIN_CLOCKS
        + SUM_CLOCKS * read * area * ACCUMULATOR_BYTES / WARP
        + SUM_LATENCY * rounds * -(-read // SPLITS_AT_ONCE)
        for read in levels
    )


def _narrow(config: Config, problem: Problem) -> int:
    """The operands that are copied by 4 bytes, as bits."""
    return ragged(problem) & ~config["PACK_K"] & ~config["REALIGN"]


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
    busy, waves = _turns(config, problem, device, registers(config, problem))
    count = k_tiles_per_split(config, problem)
    products = bm * bn * SPLIT_PRODUCTS * item / (2 * FMAS)
    reads = planes(problem) * (bm + bn) * item / CACHE_BYTES
    loop = max(busy * count * config["BK"] * max(products, reads), waves * count * EMULATED_PHASE)
    sums = 2 * fan(splits) * bm * bn * ACCUMULATOR_BYTES / CACHE_BYTES
    return loop + waves * EMULATED_TILE + (EMULATED_JOIN + sums) * (splits > 1)
