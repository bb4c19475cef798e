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
from kernels.cost_model import SECTOR_BYTES
from kernels.device import Device
from kernels.hopper.plan import (
    WGMMA_M,
    TileOperand,
    clustered_sms,
    element_bytes,
    emulated,
    is_reduced_in_launch,
    k_tiles_per_block,
    partials_bytes,
    planes,
    sharers,
    stage_bytes,
    store_box_columns,
    swizzle_bytes,
    tile_operands,
)
from kernels.packing import HALF_BYTES
from kernels.problem import Problem
from kernels.rules import LINE_BYTES
from kernels.space import Config

# The figures below minimise, over 12,000 times of 144 shapes on H100s, the loss of taking what is estimated best; the
# least cycles of an instruction and those of starts, tiles, stores and exchanges are fitted to times of an H200, which
# tests keep.
# Cycles of one instruction for 64 rows: for each column, and at least; and products of float32's terms with promotion.
COLUMN_CYCLES: Final = 0.5
LEAST_CYCLES: Final = 46
STEPS: Final = 4  # instructions along a line of k
EMULATED_PRODUCTS: Final = 7.7
# Bytes a cycle that one SM reads and that L2 sends to all, and cycles that a multicast box adds.
SM_BYTES: Final = 72
L2_BYTES: Final = 2290
MULTICAST_CYCLES: Final = 150
# SMs of a GPC that run blocks of one launch side by side, and GPCs that clusters go to in turn.
GPC_SMS: Final = 16
GPCS: Final = 8
# Cycles until a launch's first k tile has come, between one tile and the next, and for each element on its way to C:
# where TMA stores it, in boxes that are as narrow as half a sector, and where threads store it by pairs or alone, of 4
# bytes (with SWAP_AB runs of C's rows are twice as long) or of 2.
START_CYCLES: Final = 2900
BETWEEN_CYCLES: Final = 740
STORE_CYCLES: Final = 0.29
NARROW_CYCLES: Final = 0.52
PAIR_CYCLES: Final = 0.42
SINGLE_CYCLES: Final = 0.52
SWAPPED_CYCLES: Final = 0.39
HALF_PAIR_CYCLES: Final = 0.25
HALF_SINGLE_CYCLES: Final = 0.34
# Cycles from the request of a k tile until it has come, while others' come too, and for each of its bytes.
FLIGHT_CYCLES: Final = 260
FLIGHT_BYTES: Final = 23
# Cycles of a cluster's barriers, and bytes a cycle of partial sums that a block leaves and reads of others'.
EXCHANGE_CYCLES: Final = 600
EXCHANGED_BYTES: Final = 40
# Cycles from one consumer's turn to the next, and what ping-pong costs beside sharing a tile.
PINGPONG_CYCLES: Final = 300
PINGPONG_COST: Final = 1.2
# What of the shorter the longer does not hide, which decides between configs that memory alone bounds.
UNHIDDEN: Final = 0.02
# Cycles until a block knows that it is the last one of a tile, and bytes a cycle of the partial sums that it leaves and
# reads; seconds of a launch that adds up splits, and bandwidth of their partial sums by that of memory.
ARRIVE_CYCLES: Final = 2410
SUMMED_BYTES: Final = 32
REDUCE_LAUNCH: Final = 2.45e-6
PARTIALS_SPEED: Final = 0.34
# Seconds of a launch that packs operands, bandwidth of packing by that of memory, and what tiles past C's edge cost
# memory.
LAUNCH: Final = 3e-6
PACKING_SPEED: Final = 0.65
EMPTY_COST: Final = 0.5
# With realigned operands, fitted to the times that tests keep: cycles of a k tile, and for each row or column of a tile
# that is shifted, of 4-byte elements, and of 2-byte ones along k and across; bytes a cycle that L2 sends to all, and
# cycles until the first k tile has come.
COPY_CYCLES: Final = 360
LINE_CYCLES: Final = 6.1
HALF_LINE_CYCLES: Final = 6.3
HALF_ACROSS_CYCLES: Final = 8
COPIED_L2_BYTES: Final = 2300
COPY_START_CYCLES: Final = 4280
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
    turns: int  # consumers that take tiles in turn

    @classmethod
    def of(cls, config: Config, problem: Problem) -> _Grid:
        """The grid of a config."""
        lhs, rhs = tile_operands(config, problem)
        cluster, parts, splits = config["CLUSTER"], config["CLUSTER_K"], config["SPLIT_K"]
        rows, columns = -(-lhs.size // (lhs.tile * cluster)), -(-rhs.size // rhs.tile)
        blocks = problem.batch * rows * columns * splits * cluster * parts
        k_tiles = k_tiles_per_block(config, problem)
        turns = config["CONSUMERS"] // sharers(config)
        return cls(lhs, rhs, rows, columns, cluster, parts, blocks, config["MIN_BLOCKS"], k_tiles, turns)


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds of the busiest SM or of memory, with packing, and with the reduction of split k."""
    grid = _Grid.of(config, problem)
    return _seconds(config, grid, problem, device, _l2_reads(config["GROUP_M"], grid, problem, device))


def least_seconds(config: Config, problem: Problem, device: Device) -> float:
    """A lower bound of `seconds` with any GROUP_M: L2 takes no time."""
    return _seconds(config, _Grid.of(config, problem), problem, device, 0)


def _seconds(config: Config, grid: _Grid, problem: Problem, device: Device, l2_reads: float) -> float:
    limits, lhs, rhs = device.limits, grid.lhs, grid.rhs
    cycle = FLOPS_A_CYCLE * limits.sms / limits.peak
    waves = -(-grid.blocks // (clustered_sms(grid.cluster * grid.parts, limits.sms) * grid.min_blocks))
    copied = _copies(grid, problem)
    k_tile = max(grid.min_blocks * max(_products(grid, problem), _sm_reads(grid, problem)), l2_reads, copied)
    tail = lhs.tile * rhs.tile * _store_cycles(config, problem, device) + _exchange(grid.parts, lhs.tile * rhs.tile)
    own = grid.k_tiles * k_tile + _awaited(config, grid, problem, k_tile)
    rest = grid.min_blocks * (BETWEEN_CYCLES + tail)
    tile = own + rest if grid.turns == 1 else PINGPONG_COST * max(own + PINGPONG_CYCLES, rest)
    memory = problem.bytes / limits.bandwidth
    shorter, longer = sorted((waves * tile * cycle, memory))
    start = (COPY_START_CYCLES if copied else START_CYCLES) * cycle
    busy = start + longer + UNHIDDEN * shorter + memory * EMPTY_COST * _empty(lhs, rhs)
    return busy + _reduction(config, grid, problem, device) + _packing(config, problem, device)


def _awaited(config: Config, grid: _Grid, problem: Problem, k_tile: float) -> float:
    """Cycles that consumers wait for k tiles which were not asked for early enough, since all stages were full.

    A stage is free again when the products of the next one have begun.
    """
    ahead = config["STAGES"] - 1
    flight = FLIGHT_CYCLES + stage_bytes(config, problem) / FLIGHT_BYTES
    return max(0, grid.k_tiles - ahead) * max(0.0, flight / ahead - k_tile)


def _products(grid: _Grid, problem: Problem) -> float:
    """Cycles of the products of a k tile."""
    each = max(COLUMN_CYCLES * grid.rhs.tile, LEAST_CYCLES)
    return grid.lhs.tile / WGMMA_M * STEPS * each * (EMULATED_PRODUCTS if emulated(problem) else 1)


def _sm_reads(grid: _Grid, problem: Problem) -> float:
    """Cycles until an SM has a k tile's boxes: each of their rows as long as a whole line."""
    lhs, rhs, cluster = grid.lhs, grid.rhs, grid.cluster
    lines = lhs.tile * _lines_a_row(lhs, problem) + rhs.tile * _lines_a_row(rhs, problem) / cluster
    return planes(problem) * LINE_BYTES * lines / SM_BYTES + (MULTICAST_CYCLES if cluster > 1 else 0)


def _copies(grid: _Grid, problem: Problem) -> float:
    """Cycles until a k tile of realigned operands is shifted; 0 where there are none."""
    sides = [side for side in (grid.lhs, grid.rhs) if side.realigned]
    along, across = (HALF_LINE_CYCLES, HALF_ACROSS_CYCLES) if problem.itemsize == HALF_BYTES else (LINE_CYCLES,) * 2
    return COPY_CYCLES + sum(side.tile * (along if side.k_major else across) for side in sides) if sides else 0


def _l2_reads(group_m: int, grid: _Grid, problem: Problem, device: Device) -> float:
    """Cycles until L2 has sent a k tile to all blocks that run at once: to each its own, where it is copied."""
    if _copies(grid, problem):
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


def _store_cycles(config: Config, problem: Problem, device: Device) -> float:
    """Cycles of an element of C: threads store two at once where its rows have an even count of them."""
    if config["TMA_STORE"]:
        row_bytes = LINE_BYTES if config["SWAP_AB"] else problem.itemsize * store_box_columns(config, problem)
        return STORE_CYCLES if row_bytes >= SECTOR_BYTES[device.platform] else NARROW_CYCLES
    if problem.itemsize == HALF_BYTES:
        return HALF_SINGLE_CYCLES if problem.n % 2 else HALF_PAIR_CYCLES
    if problem.n % 2 == 0:
        return PAIR_CYCLES
    return SWAPPED_CYCLES if config["SWAP_AB"] else SINGLE_CYCLES


def _exchange(blocks: int, elements: int) -> float:
    """Cycles until the blocks that share k have each other's partial sums."""
    return EXCHANGE_CYCLES + 4 * elements * (blocks - 1) / blocks / EXCHANGED_BYTES if blocks > 1 else 0


def _lines_a_row(side: TileOperand, problem: Problem) -> float:
    return 1 if side.k_major else LINE_BYTES / swizzle_bytes(side.tile, element_bytes(problem))


def _empty(lhs: TileOperand, rhs: TileOperand) -> float:
    """The excess of tiles over the operands, as a fraction."""
    useful = sum(side.size / -(-side.size // side.tile) for side in (lhs, rhs))
    return (lhs.tile + rhs.tile) / useful - 1


def _summed(config: Config, elements: int) -> float:
    """Cycles until the last block of a tile has added up the partial sums of all splits."""
    splits = config["SPLIT_K"]
    return ARRIVE_CYCLES + 4 * elements * (1 + splits) / SUMMED_BYTES if splits > 1 else 0


def _reduction(config: Config, grid: _Grid, problem: Problem, device: Device) -> float:
    """Seconds until split k is added up, by the last blocks or by a launch."""
    if config["SPLIT_K"] == 1:
        return 0
    if is_reduced_in_launch(config, problem, config["SPLIT_K"]):
        cycle = FLOPS_A_CYCLE * device.limits.sms / device.limits.peak
        return cycle * _summed(config, grid.lhs.tile * grid.rhs.tile)
    return REDUCE_LAUNCH + 2 * partials_bytes(config, problem, config["SPLIT_K"]) / (
        PARTIALS_SPEED * device.limits.bandwidth
    )


def _packing(config: Config, problem: Problem, device: Device) -> float:
    packed = problem.a_bytes * bool(config["PACK_K"] & packing.A) + problem.b_bytes * bool(config["PACK_K"] & packing.B)
    return LAUNCH + 2 * packed / (PACKING_SPEED * device.limits.bandwidth) if packed else 0
