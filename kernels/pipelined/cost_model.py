"""What pipelined is estimated to take, with split-K, stream-K or neither."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.pipelined.plan import partials_lines
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, blocks
from kernels.space import Config
from kernels.split_k import k_tiles, k_tiles_per_split
from kernels.stream_k import stream_k_schedule

LAUNCH: Final = 2e-6  # seconds
# A tile's prologue and epilogue, and what operands' loads add to a product.
START: Final = 4e-6  # seconds
LOAD_COST: Final = 1.0
# How much slower the main loop is with stream-K, as measured; and if copies of one element also crowd the registers of
# large thread tiles.
SHARED_COST: Final = 0.08
CROWDED_COST: Final = 0.12
CROWDED: Final = 64  # sums of a thread


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds of the busiest SM: its products, prologues and epilogues of tiles, and reductions."""
    limits, size = device.limits, config["BM"] * config["BN"]
    loads = 1 + LOAD_COST * (1 / config["TM"] + 1 / config["TN"])
    k_tile = 2 * size * config["BK"] * loads * limits.sms / limits.peak
    tiles, whole = blocks(config, problem), k_tiles(config, problem)
    if config["STREAM_K_SMS"]:
        concurrent, found = config["MIN_BLOCKS"], stream_k_schedule(config, problem)
        k_tile *= 1 + SHARED_COST + CROWDED_COST * (config["VECTOR"] == 1 and config["TM"] * config["TN"] > CROWDED)
        parts = problem.itemsize * size * (2 + found.blocks / tiles) * found.blocks / limits.bandwidth
        return concurrent * (found.each + 1 + found.rounds * whole) * k_tile + START + parts
    waves, splits = -(-tiles * config["SPLIT_K"] // limits.sms), config["SPLIT_K"]
    joined = LAUNCH + 2 * LINE_BYTES * partials_lines(problem, splits) / limits.bandwidth if splits > 1 else 0
    return waves * (k_tiles_per_split(config, problem) * k_tile + START) + joined
