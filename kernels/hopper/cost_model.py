"""hopper's cost model: an estimate of a config's time from what tensor cores, shared memory and the L2 cache bear.

Blocks that follow each other in a launch run in one GPC, some 16 of its SMs at a time, and what several of them read of
an operand in the same turn crosses from L2 to that GPC once. Which tiles lie together, as GROUP_M orders them, so
decides how much is read: on an H100 up to twice the time of a launch in which all blocks run at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from kernels import packing
from kernels.device import Device
from kernels.hopper.plan import (
    WGMMA_M,
    TileOperand,
    clustered_sms,
    element_bytes,
    emulated,
    k_tiles_per_block,
    partials_bytes,
    planes,
    swizzle_bytes,
    tile_operands,
)
from kernels.problem import Problem
from kernels.rules import LINE_BYTES
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 1,884 times of 221 shapes on an H200, but for what L2 sends, which is
# between what these tell and the 2290 that 12,000 times of 144 shapes on H100s told: seconds of a launch, of one that
# packs operands and of one that adds up splits; bandwidth of packing and of partial sums by that of memory, what tiles
# past C's edge cost memory, and how often C is written once more where its rows start anywhere.
START: Final = 1.8e-6
LAUNCH: Final = 2.3e-6
REDUCE_LAUNCH: Final = 1.5e-6
PACKING_SPEED: Final = 0.7
PARTIALS_SPEED: Final = 0.58
EMPTY_COST: Final = 0.48
STORED_AGAIN: Final = 1.5
# Cycles of one instruction for 64 rows: for each column, and at least; and products of float32's terms with promotion.
COLUMN_CYCLES: Final = 0.5
LEAST_CYCLES: Final = 27
STEPS: Final = 4  # instructions along a line of k
EMULATED_PRODUCTS: Final = 5.1
# Cycles of a k tile that a block waits for, shared by the stages; bytes a cycle that one SM reads and that L2 sends to
# all, and cycles that a multicast box adds.
WAIT_CYCLES: Final = 990
SM_BYTES: Final = 87
L2_BYTES: Final = 3500
MULTICAST_CYCLES: Final = 86
# SMs of a GPC that run blocks of one launch side by side, and GPCs that clusters go to in turn.
GPC_SMS: Final = 16
GPCS: Final = 8
# Cycles between one tile and the next, and for each element on its way to C; more where a consumer's threads store it.
BETWEEN_CYCLES: Final = 1000
STORE_CYCLES: Final = 0.16
THREADS_STORE_CYCLES: Final = 0.075
# Cycles of a cluster's barriers, and bytes a cycle of partial sums that a block leaves and reads of others'.
EXCHANGE_CYCLES: Final = 1050
EXCHANGED_BYTES: Final = 23
# The exponent p of the p-norm of what SMs take and of what memory takes, which overlap but for the first and last tile.
SHARP: Final = 3
# With realigned operands: cycles of a k tile and of each of its copied lines, bytes a cycle that L2 sends to all, and
# cycles until the first k tile has come.
COPY_CYCLES: Final = 435
LINE_CYCLES: Final = 4.1
COPIED_L2_BYTES: Final = 3620
COPY_START_CYCLES: Final = 420
# What of the float32 units' flop/s a cycle of an SM is.
FLOPS_A_CYCLE: Final = 256


@dataclass(frozen=True, slots=True)
class TilesRead:
    """LHS and RHS tiles that all GPCs read in a turn, each counted once a GPC."""

    lhs: int
    rhs: int


class _Grid(NamedTuple):
    """The tiles of a launch: read once from a config, since the model is asked of thousands."""

    lhs: TileOperand
    rhs: TileOperand
    rows: int  # of clusters of tiles
    columns: int
    cluster: int  # blocks that share the RHS
    parts: int  # blocks that share k
    blocks: int
    min_blocks: int
    k_tiles: int  # of a block

    @classmethod
    def of(cls, config: Config, problem: Problem) -> _Grid:
        """The grid of a config."""
        lhs, rhs = tile_operands(config, problem)
        cluster, parts, splits = config["CLUSTER"], config["CLUSTER_K"], config["SPLIT_K"]
        rows, columns = -(-lhs.size // (lhs.tile * cluster)), -(-rhs.size // rhs.tile)
        blocks = problem.batch * rows * columns * splits * cluster * parts
        k_tiles = k_tiles_per_block(config, problem)
        return cls(lhs, rhs, rows, columns, cluster, parts, blocks, config["MIN_BLOCKS"], k_tiles)


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds of the busiest SM or of memory, with packing, and with the reduction of split k."""
    grid = _Grid.of(config, problem)
    return _seconds(config, grid, problem, device, _l2_reads(config["GROUP_M"], grid, problem, device))


def least_seconds(config: Config, problem: Problem, device: Device) -> float:
    """A lower bound of `seconds` with any GROUP_M, and with no more stages: L2 takes no time."""
    return _seconds(config, _Grid.of(config, problem), problem, device, 0)


def _seconds(config: Config, grid: _Grid, problem: Problem, device: Device, l2_reads: float) -> float:
    limits, lhs, rhs = device.limits, grid.lhs, grid.rhs
    cycle = FLOPS_A_CYCLE * limits.sms / limits.peak
    waves = -(-grid.blocks // (clustered_sms(grid.cluster * grid.parts, limits.sms) * grid.min_blocks))
    copied = _copies(grid)
    k_tile = max(grid.min_blocks * max(_products(grid, problem), _sm_reads(grid, problem)), l2_reads, copied)
    store = STORE_CYCLES + (0 if config["TMA_STORE"] else THREADS_STORE_CYCLES / config["CONSUMERS"])
    tail = lhs.tile * rhs.tile * store + _exchange(grid.parts, lhs.tile * rhs.tile)
    tile = grid.k_tiles * (k_tile + WAIT_CYCLES / config["STAGES"]) + BETWEEN_CYCLES + grid.min_blocks * tail
    start = START + (COPY_START_CYCLES * cycle if copied else 0)
    memory = (problem.bytes + (0 if config["TMA_STORE"] else STORED_AGAIN * problem.c_bytes)) / limits.bandwidth
    both: float = ((waves * tile * cycle) ** SHARP + memory**SHARP) ** (1 / SHARP)
    busy = start + both + memory * EMPTY_COST * _empty(lhs, rhs)
    return busy + _reduction(config, problem, device) + _packing(config, problem, device)


def _products(grid: _Grid, problem: Problem) -> float:
    """Cycles of the products of a k tile."""
    each = max(COLUMN_CYCLES * grid.rhs.tile, LEAST_CYCLES)
    return grid.lhs.tile / WGMMA_M * STEPS * each * (EMULATED_PRODUCTS if emulated(problem) else 1)


def _sm_reads(grid: _Grid, problem: Problem) -> float:
    """Cycles until an SM has a k tile's boxes: each of their rows as long as a whole line."""
    lhs, rhs, cluster = grid.lhs, grid.rhs, grid.cluster
    lines = lhs.tile * _lines_a_row(lhs, problem) + rhs.tile * _lines_a_row(rhs, problem) / cluster
    return planes(problem) * LINE_BYTES * lines / SM_BYTES + (MULTICAST_CYCLES if cluster > 1 else 0)


def _copies(grid: _Grid) -> float:
    """Cycles until a k tile of realigned operands is shifted; 0 where there are none."""
    lines = sum(side.tile for side in (grid.lhs, grid.rhs) if side.realigned)
    return COPY_CYCLES + LINE_CYCLES * lines if lines else 0


def _l2_reads(group_m: int, grid: _Grid, problem: Problem, device: Device) -> float:
    """Cycles until L2 has sent a k tile to all blocks that run at once: to each its own, where it is copied."""
    if _copies(grid):
        rows = min(grid.lhs.tile, grid.lhs.size) + min(grid.rhs.tile, grid.rhs.size)
        return min(grid.blocks, device.limits.sms) * LINE_BYTES * rows / COPIED_L2_BYTES
    size = grid.cluster * grid.parts
    at_once = min(grid.blocks, device.limits.sms * grid.min_blocks) // size
    gpc = max(1, GPC_SMS * grid.min_blocks // size)
    read = tiles_read(grid.rows, grid.columns, min(group_m, grid.rows), max(at_once, 1), 0 if size > 1 else gpc)
    of_lhs = grid.cluster * grid.lhs.tile * _lines_a_row(grid.lhs, problem)
    of_rhs = grid.rhs.tile * _lines_a_row(grid.rhs, problem)
    return planes(problem) * grid.parts * LINE_BYTES * (read.lhs * of_lhs + read.rhs * of_rhs) / L2_BYTES


@lru_cache(65536)
def tiles_read(rows: int, columns: int, group_m: int, count: int, gpc: int) -> TilesRead:
    """What the first `count` blocks or clusters read of rows and columns of tiles, ordered as in tile_scheduler.h.

    `gpc` of them run in one GPC, where they follow each other; 0 for clusters, which go to the GPCs in turn.
    """
    of_gpc: dict[int, tuple[set[int], set[int]]] = {}
    for block in range(count):
        split, at = divmod(block, rows * columns)
        wave, rest = divmod(at, group_m * columns)
        column, row = divmod(rest, min(group_m, rows - wave * group_m))
        lhs, rhs = of_gpc.setdefault((block + gpc // 2) // gpc if gpc else block % GPCS, (set(), set()))
        lhs.add(split * rows + wave * group_m + row)
        rhs.add(split * columns + column)
    return TilesRead(sum(len(lhs) for lhs, _ in of_gpc.values()), sum(len(rhs) for _, rhs in of_gpc.values()))


def _exchange(blocks: int, elements: int) -> float:
    """Cycles until the blocks that share k have each other's partial sums."""
    return EXCHANGE_CYCLES + 4 * elements * (blocks - 1) / blocks / EXCHANGED_BYTES if blocks > 1 else 0


def _lines_a_row(side: TileOperand, problem: Problem) -> float:
    return 1 if side.k_major else LINE_BYTES / swizzle_bytes(side.tile, element_bytes(problem))


def _empty(lhs: TileOperand, rhs: TileOperand) -> float:
    """The excess of tiles over the operands, as a fraction."""
    useful = sum(side.size / -(-side.size // side.tile) for side in (lhs, rhs))
    return (lhs.tile + rhs.tile) / useful - 1


def _reduction(config: Config, problem: Problem, device: Device) -> float:
    if config["SPLIT_K"] == 1:
        return 0
    return REDUCE_LAUNCH + 2 * partials_bytes(config, problem, config["SPLIT_K"]) / (
        PARTIALS_SPEED * device.limits.bandwidth
    )


def _packing(config: Config, problem: Problem, device: Device) -> float:
    packed = problem.a_bytes * bool(config["PACK_K"] & packing.A) + problem.b_bytes * bool(config["PACK_K"] & packing.B)
    return LAUNCH + 2 * packed / (PACKING_SPEED * device.limits.bandwidth) if packed else 0
