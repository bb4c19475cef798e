"""direct_double's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import hypot
from typing import Final

from kernels.cost_model import CLOCK, moved_bytes, turns
from kernels.device import Device
from kernels.direct_double.plan import grid, passes, shared_bytes, slices, sums, teams, tiles
from kernels.direct_double.space import BAND, FOUR, STRIP, elements, registers
from kernels.direct_tensor.plan import threads
from kernels.packing import A, B, is_c_ragged, ragged
from kernels.problem import Problem
from kernels.rules import CLUSTERED_SMS, LINE_BYTES
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 2,448 times of 129 shapes on an H200: seconds of a launch, and the share
# of memory's bandwidth that operands and stored sectors have.
LAUNCH: Final = 1.71e-06
OF_BANDWIDTH: Final = 0.935
# Clocks that a warp waits for each load of a thread and each of its stores, and in each round of passes but the first,
# of as many as have stages.
WAIT_LOAD: Final = 15.6
WAIT_STORE: Final = 0.838
PASS_CLOCKS: Final = 531
# Clocks of an SM for each load and store of a warp, for an instruction of 16 x 8 x 4, and for each line of 128 bytes
# that its tiles take from the cache, which has one for neighbours.
LOAD_CLOCKS: Final = 1.25
STORE_CLOCKS: Final = 8.57
MMA_CLOCKS: Final = 5.46
LINE_CLOCKS: Final = 1.96
# Clocks that a warp waits for the others' slices, for each sum that it adds, and for a cluster's blocks (by 61 times
# since these send sums by st.async).
JOIN_CLOCKS: Final = 503
SUM_CLOCKS: Final = 10.7
CLUSTER_CLOCKS: Final = 636
# Clocks of an SM until a block is there, and between one and the next where no other block runs beside it.
BLOCK_CLOCKS: Final = 76.3
ALONE_CLOCKS: Final = 946


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    return _seconds(config, problem, device, LINE_CLOCKS * _lines(config, problem))


def least_seconds(config: Config, problem: Problem, device: Device) -> float:
    """A lower bound of `seconds` with this GROUP_M or any more: the cache takes no time."""
    return _seconds(config, problem, device, 0)


def _seconds(config: Config, problem: Problem, device: Device, of_lines: float) -> float:
    limits, times = device.limits, passes(config, problem)
    granted = min(registers(config), limits.registers_per_thread)
    shared, blocks = shared_bytes(config, problem), grid(config, problem)
    share = CLUSTERED_SMS.get(config["CLUSTER_K"], 1)
    busy, waves = turns(limits, blocks, threads(config), shared, granted, share)
    products = config["BM"] * config["BN"] / (STRIP * BAND) * config["BK"] / FOUR
    loads, stores = _loads(config, problem), _stores(config, problem)
    issued = times * (LOAD_CLOCKS * loads + MMA_CLOCKS * products) + STORE_CLOCKS * stores
    rounds = -(-times // config["STAGES"])
    waits = times * WAIT_LOAD * loads + (rounds - 1) * PASS_CLOCKS + WAIT_STORE * stores + _joining(config)
    alone = ALONE_CLOCKS * (waves - 1) * (busy <= waves)
    clocks = busy * (max(config["WARPS"] * issued, of_lines / blocks) + BLOCK_CLOCKS) / CLOCK
    moved = moved_bytes(_run(config, problem), problem) / (OF_BANDWIDTH * limits.bandwidth)
    # What warps issue overlaps with what memory moves.
    return LAUNCH + (waves * waits + alone) / CLOCK + hypot(clocks, moved)


def _run(config: Config, problem: Problem) -> int:
    """Bytes of C's row that a warp stores at once: of four or eight lanes, pairs or elements."""
    lanes = 4 if problem.trans_a and problem.trans_b else 8
    return lanes * problem.itemsize * (2 if _is_paired(config, problem) else 1)


def _is_paired(config: Config, problem: Problem) -> bool:
    """Whether lanes store pairs: rows of C are aligned to 16 bytes, and tiles more than eight wide."""
    return not is_c_ragged(problem) and config["BN"] > BAND


def _loads(config: Config, problem: Problem) -> float:
    """Loads of a thread in a pass: of two elements where rows are aligned to 16 bytes."""
    which, found = ragged(problem), 0.0
    for operand, lines, k_major in ((A, config["BM"], not problem.trans_a), (B, config["BN"], problem.trans_b)):
        own = elements(config) * lines / (config["BM"] + config["BN"])
        paired = not which & operand and (k_major or lines > BAND)
        found += own / 2 if paired else own
    return found


def _stores(config: Config, problem: Problem) -> float:
    """Stores of a thread: its share of the tile's elements if k is sliced, else all by pairs or alone."""
    if slices(config) > 1:
        return -(-sums(config) // slices(config))
    return sums(config) / (2 if _is_paired(config, problem) else 1)


def _lines(config: Config, problem: Problem) -> float:
    """Lines of 128 bytes of both operands that all blocks take from the cache."""
    together = teams(config)
    down = min(config["GROUP_M"], together)
    of_k = config["BM"] * down + config["BN"] * together / down
    return tiles(config, problem) / together * of_k * problem.k * problem.itemsize / LINE_BYTES


def _joining(config: Config) -> float:
    """Clocks in which slices of k meet."""
    if slices(config) == 1:
        return 0.0
    own, of_cluster = -(-sums(config) // config["SLICE_K"]), -(-sums(config) // slices(config))
    added = own * config["SLICE_K"] + sums(config)
    if config["CLUSTER_K"] == 1:
        return JOIN_CLOCKS + SUM_CLOCKS * added
    return JOIN_CLOCKS + SUM_CLOCKS * (added + of_cluster * config["CLUSTER_K"]) + CLUSTER_CLOCKS
