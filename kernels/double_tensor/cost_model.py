"""double_tensor's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import hypot
from typing import Final

from kernels.cost_model import CLOCK, sectors_touched
from kernels.device import Device
from kernels.double_tensor.plan import MMA_M, registers, shared_bytes, threads
from kernels.packing import A, B, is_c_ragged, ragged
from kernels.problem import Problem
from kernels.rules import CLUSTERED_SMS, WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split, received_rows
from kernels.stream_k import stream_k_schedule

# What an SM does in a clock: float64 FMAs on tensor cores, and bytes of shared memory.
FMAS: Final = 128
SHARED_BYTES: Final = 128
# An instruction's rows or columns, the k of the least one and of the deepest.
SIDE: Final = 8
SHALLOW, DEEPEST = 4, 16
# Bytes of C's row that a warp stores at once: of four lanes, pairs or single elements.
PAIRS, SINGLE = 64, 32
# Fitted, as benchmarks/kernels/fit.py does, to 1,824 times of 96 shapes on an H200: seconds of a launch, and the share
# of memory's bandwidth that traffic seems to have.
LAUNCH: Final = 2.24e-6
OF_BANDWIDTH: Final = 1.21
# Clocks of a k tile that a block waits: for its copies, shared by the stages ahead; for each mma step of a warp and
# instruction of it; and for each of loads from shared memory by bytes, where these are not read ahead: behind a barrier
# all warps load before any multiplies.
WAIT_CLOCKS: Final = 132
STEP_CLOCKS: Final = 11
MMA_CLOCKS: Final = 2.37
BEHIND_CLOCKS: Final = 0.254
# Clocks of an SM: for each one of its products, more where instructions are deepest or shallow; for each one of loads
# from shared memory by bytes; and each copy of a warp.
PRODUCT_CLOCKS: Final = 0.672
DEEPEST_CLOCKS: Final = 0.0788
SHALLOW_CLOCKS: Final = 0.0628
LOAD_CLOCKS: Final = 0.932
COPY_CLOCKS: Final = 2.28
# Clocks of a tile before its first product and after its last one, and of each further one of an SM where no other
# block runs beside it; of each sector that its stores touch; of splits for each other, of a block for each other that
# has a share of its tile, which it adds in turn, and for each 128 bytes of partial sums; in which a cluster's blocks
# meet, and of a warp's access to each other's sums. Splits' and clusters' are by 4 and 5 times only.
TILE_CLOCKS: Final = 153
ALONE_CLOCKS: Final = 2770
SECTOR_CLOCKS: Final = 1.63
JOIN_CLOCKS: Final = 2940
PARTNER_CLOCKS: Final = 553
SUM_CLOCKS: Final = 2.87
CLUSTER_CLOCKS: Final = 400
SENT_CLOCKS: Final = 4
# Registers of a thread that reads ahead beyond the least, where nothing limits them.
FREE_REGISTERS: Final = 60


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    moving = problem.bytes / (OF_BANDWIDTH * device.limits.bandwidth)
    return LAUNCH + hypot(_clocks(config, problem, device) / CLOCK, moving)


def _sectors(config: Config, problem: Problem) -> float:
    """Sectors that a tile's stores touch, of what it has of C."""
    run = SINGLE if is_c_ragged(problem) else PAIRS
    rows, columns = min(config["BM"], problem.m), min(config["BN"], problem.n)
    return rows * columns * problem.itemsize / run * sectors_touched(run, problem)


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM, whose blocks have tiles of their own or with stream-K equal shares."""
    size, splits, sms = config["BM"] * config["BN"], config["SPLIT_K"], max(device.limits.sms, 1)
    if config["STREAM_K_SMS"]:
        found, whole = stream_k_schedule(config, problem), k_tiles(config, problem)
        busy = resident = min(config["MIN_BLOCKS"], -(-found.blocks // config["STREAM_K_SMS"]))
        deep = found.each + (found.more > 0) + found.rounds * whole
        partners = whole / found.each if found.each else 0
        parts, waves, sums = found.rounds + 1 + found.each / whole, 1, (2 * busy + partners) * size
    else:
        of_cluster = config["CLUSTER_K"]
        reached = int(sms * CLUSTERED_SMS.get(of_cluster, 1))
        busy = -(-blocks(config, problem) * splits * of_cluster // reached)
        resident = _resident(config, problem, device, busy)
        deep, parts, waves, partners = -(-k_tiles_per_split(config, problem) // of_cluster), 1, -(-busy // resident), 0
        sums = 2 * fan(splits) * size if splits > 1 else 0
    alone = ALONE_CLOCKS * (waves - 1) * (resident == 1)
    tile = waves * TILE_CLOCKS + alone + busy * SECTOR_CLOCKS * _sectors(config, problem)
    joining = JOIN_CLOCKS * (sums > 0) + PARTNER_CLOCKS * partners + SUM_CLOCKS * sums * problem.itemsize / SHARED_BYTES
    joining += _cluster_clocks(config)
    return deep * _k_tile_clocks(config, problem, busy, waves) + parts * tile + joining


def _cluster_clocks(config: Config) -> float:
    """Clocks in which a cluster's blocks meet, send each other sums, and add those of their own rows."""
    parts, rows = config["CLUSTER_K"], config["WM"] // MMA_M
    if parts == 1:
        return 0
    share = received_rows(parts, rows) / rows
    return CLUSTER_CLOCKS + 2 * SENT_CLOCKS * share * config["BM"] * config["BN"] / WARP


def _k_tile_clocks(config: Config, problem: Problem, busy: int, waves: int) -> float:
    """Clocks of the busiest SM for one k tile of each of its blocks: what they issue, and what one waits.

    Products overlap with what warps load and copy.
    """
    wm, wn, bk, deep = config["WM"], config["WN"], config["BK"], config["MMA_K"]
    steps, products = bk / deep, config["BM"] * config["BN"] * bk / FMAS
    each = PRODUCT_CLOCKS + DEEPEST_CLOCKS * (deep == DEEPEST) + SHALLOW_CLOCKS * (deep == SHALLOW)
    loads = threads(config) / WARP * (wm + wn) * bk * problem.itemsize / SHARED_BYTES
    issued = hypot(each * products, LOAD_CLOCKS * loads + COPY_CLOCKS * _copies(config, problem))
    instructions = steps * (wm / SIDE) * (wn / SIDE) * deep / SHALLOW
    waits = WAIT_CLOCKS / (config["STAGES"] - 1) + BEHIND_CLOCKS * loads * (1 - config["AHEAD"])
    return max(busy * issued + waves * (waits + steps * STEP_CLOCKS + MMA_CLOCKS * instructions), busy * products)


def _copies(config: Config, problem: Problem) -> float:
    """Copies that a block's warps issue for a k tile: of two elements, or one where rows are odd."""
    which = ragged(problem)
    rows, columns = config["BM"] / (1 if which & A else 2), config["BN"] / (1 if which & B else 2)
    return (rows + columns) * config["BK"] / WARP


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    free = FREE_REGISTERS * config["AHEAD"] * (config["MIN_BLOCKS"] == 1)
    granted = min(registers(config) + free, limits.registers_per_thread) * threads(config)
    return max(1, min(most, room, max(config["MIN_BLOCKS"], limits.registers_per_sm // granted)))
