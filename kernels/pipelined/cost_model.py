"""pipelined's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import is_c_ragged, packed_bytes
from kernels.pipelined.plan import copies, partials_fit, partials_lines, registers, shared_bytes
from kernels.problem import Problem
from kernels.register_tiled.plan import threads
from kernels.rules import CLUSTERED_SMS, LINE_BYTES, VECTOR_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import k_tiles
from kernels.stream_k import stream_k_schedule

# FMAs of an SM in a clock, and its parts, of which each has its own warps.
FMAS: Final = 128
PARTS: Final = 4
# Fitted, as benchmarks/kernels/fit.py does, to 5,120 times of 305 shapes on an H200: seconds of a launch, of one
# that reduces and of one that packs; and the shares of memory's bandwidth that traffic seems to have.
LAUNCH: Final = 1.57e-06
REDUCING: Final = 1.8e-06
PACKING: Final = 2.72e-06
OF_BANDWIDTH: Final = 0.971
OF_BANDWIDTH_SUMS: Final = 1.38
OF_BANDWIDTH_PACKING: Final = 0.789
# Clocks of a k tile that a block waits: for copies, shared by the stages ahead, for a thread's own copies, and for each
# FMA of a thread.
WAIT_CLOCKS: Final = 73.9
OWN_COPY_CLOCKS: Final = 0.324
FMA_CLOCKS: Final = 0.623
# Clocks of an SM for each element of a step that a warp loads, and each of its copies; and the exponent p of the p-norm
# of these and of products, which overlap but for the end.
LOAD_CLOCKS: Final = 0.637
COPY_CLOCKS: Final = 1.26
# Clocks of an SM in which a warp's copy of single elements of B, which are turned on their way, is issued in place of
# products.
TURNED_CLOCKS: Final = 2.12
SHARP: Final = 6
BLUNT: Final = 1.5
# Of memory's bandwidth, what the cache has for the blocks of all SMs.
OF_BANDWIDTH_CACHE: Final = 1.02
# Bytes of first k tiles that an SM gets in a clock.
FILL_BYTES: Final = 65.7
# Clocks of a tile before its first product and after its last one; of a warp's stores of C, for each of the lines that
# it has open at once, in parts that are to be merged, what it takes through shared memory, and what each further slice
# does.
TILE_CLOCKS: Final = 1200
STORE_CLOCKS: Final = 3.45
LINE_CLOCKS: Final = 0.878
STAGED_CLOCKS: Final = 3.49
SLICE_CLOCKS: Final = 5.08
# Clocks in which a cluster's blocks meet, and of a warp's access to each other's sums, by 124 times.
CLUSTER_CLOCKS: Final = 50
SENT_CLOCKS: Final = 6.89
# Columns that a thread has side by side.
RUN: Final = 4
# Registers beside the least that a thread has without spilling.
MORE_REGISTERS: Final = 10


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch with the steps before and after it."""
    bandwidth = device.limits.bandwidth
    k_tiles_each, parts, found, partials = _shares(config, problem, device)
    loop = _overlapped(k_tiles_each * _k_tile_clocks(config, problem, found), _reading_clocks(config, problem, device))
    clocks = loop + parts * (_tile_clocks(config, problem, found) + _fill_clocks(config, problem, found))
    clocks += found[0] * _cluster_clocks(config)
    packing = PACKING + 2 * packed_bytes(problem) / (OF_BANDWIDTH_PACKING * bandwidth) if config["PACK_MN"] else 0
    reducing = REDUCING * (config["SPLIT_K"] > 1) + partials / (OF_BANDWIDTH_SUMS * bandwidth)
    streamed = problem.bytes / (OF_BANDWIDTH * bandwidth)
    together: float = ((clocks / CLOCK) ** BLUNT + streamed**BLUNT) ** (1 / BLUNT)
    return LAUNCH + together + packing + reducing


def _shares(config: Config, problem: Problem, device: Device) -> tuple[float, float, tuple[int, int], float]:
    """Of a block its k tiles and parts of tiles; blocks of the busiest SM and its turns; bytes of partial sums."""
    limits, whole = device.limits, k_tiles(config, problem)
    if config["STREAM_K_SMS"]:
        shared, size = stream_k_schedule(config, problem), config["BM"] * config["BN"]
        busy = min(config["MIN_BLOCKS"], -(-shared.blocks // max(limits.sms, 1)))
        moved = problem.itemsize * size * (2 + shared.blocks / blocks(config, problem)) * shared.blocks
        deep = shared.each + (shared.more > 0) + shared.rounds * whole
        return deep, shared.rounds + 1 + shared.each / whole, (busy, 1), moved
    splits = min(config["SPLIT_K"], whole) if partials_fit(config, problem) else 1
    granted, of_cluster = min(registers(config) + MORE_REGISTERS, limits.registers_per_thread), config["CLUSTER_K"]
    grid, share = blocks(config, problem) * splits * of_cluster, CLUSTERED_SMS.get(of_cluster, 1)
    found = turns(limits, grid, threads(config), shared_bytes(config, problem), granted, share)
    summed = 2 * LINE_BYTES * partials_lines(problem, splits) if splits > 1 else 0
    return -(-whole // (splits * of_cluster)), 1, found, summed


def _k_tile_clocks(config: Config, problem: Problem, found: tuple[int, int]) -> float:
    """Clocks of the busiest SM for one k tile of each of its blocks: what they issue, and what one waits."""
    busy, waves = found
    own, steps, warps = sum(copies(config, problem)), config["BK"] / config["SLICE_K"], threads(config) // WARP
    is_turned = problem.trans_b and not config["PACK_MN"] and not config["K_MAJOR"]
    turned = copies(config, problem)[1] if is_turned else 0
    products = config["BM"] * config["BN"] * config["BK"] / FMAS + TURNED_CLOCKS * warps * turned
    uneven = -(-busy * warps // PARTS) * PARTS / (busy * warps)
    issued = warps * (LOAD_CLOCKS * steps * (config["TM"] + config["TN"]) + COPY_CLOCKS * own)
    waits = WAIT_CLOCKS / (config["STAGES"] - 2) + FMA_CLOCKS * steps * config["TM"] * config["TN"]
    besides = busy * issued + waves * (waits + OWN_COPY_CLOCKS * own)
    return _overlapped(besides, busy * uneven * products)


def _reading_clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks in which the cache sends all blocks their tiles of both operands."""
    lines = blocks(config, problem) * (config["BM"] + config["BN"])
    return CLOCK * lines * problem.k * problem.itemsize / (OF_BANDWIDTH_CACHE * device.limits.bandwidth)


def _fill_clocks(config: Config, problem: Problem, found: tuple[int, int]) -> float:
    """Clocks until the first k tile of all blocks of the busiest SM is there, which no product hides."""
    busy, waves = found
    return waves * busy * (config["BM"] + config["BN"]) * config["BK"] * problem.itemsize / FILL_BYTES


def _overlapped(one: float, other: float) -> float:
    """Clocks of two that overlap but for the end."""
    both: float = (one**SHARP + other**SHARP) ** (1 / SHARP)
    return both


def _cluster_clocks(config: Config) -> float:
    """Clocks in which a cluster's blocks meet, send each other sums, and add those of their own rows."""
    parts = config["CLUSTER_K"]
    if parts == 1:
        return 0
    sent = (parts - 1) / parts * config["BM"] * config["BN"] / WARP
    return CLUSTER_CLOCKS + 2 * SENT_CLOCKS * sent


def _tile_clocks(config: Config, problem: Problem, found: tuple[int, int]) -> float:
    """Clocks of the busiest SM before and after the loop over k."""
    busy, waves = found
    single = is_c_ragged(problem) and not config["STAGE_C"]
    together = 1 if single else VECTOR_BYTES // problem.itemsize
    lines = 0 if config["STAGE_C"] else WARP * config["TN"] / config["WN"] * config["TN"] / RUN
    each = (STORE_CLOCKS + LINE_CLOCKS * lines) / together + STAGED_CLOCKS * config["STAGE_C"]
    each += SLICE_CLOCKS * (config["SLICE_K"] - 1)
    return waves * TILE_CLOCKS + busy * each * config["BM"] * config["BN"] / WARP
