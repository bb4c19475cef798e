"""The launch of double_tensor: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import tile_order
from kernels.launch import COUNTERS, Plan
from kernels.problem import Problem, smaller
from kernels.rules import LINE_BYTES, WARP, blocks, registers_granted
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split, partials_bytes, received_bytes, split_fits
from kernels.stream_k import stream_k_lines, stream_k_schedule

# Rows of an instruction's accumulators.
MMA_M: Final = 16
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters.
ADDRESSES: Final = 80
# More with stream-K: what is left of its shares.
SHARES: Final = 28
# Copies of 16 bytes that a thread makes for a k tile before their addresses take more registers, half as many if a
# warp's tile is wider than high, or beside a cluster's sums, and the registers of each further copy.
FEW_COPIES: Final = 16
A_COPY: Final = 8


def threads(config: Config) -> int:
    """Threads of a block: a warp for each WM x WN of its tile."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


register_limit: Final = registers_granted(threads)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles, and of a cluster's sums."""
    row_bytes = config["BM"] * config["BN"] // (config["WM"] // MMA_M) * problem.itemsize
    received = received_bytes(config["CLUSTER_K"], config["WM"] // MMA_M, row_bytes)
    return config["STAGES"] * (config["BM"] + config["BN"]) * config["BK"] * problem.itemsize + received


def registers(config: Config) -> int:
    """The least registers of a thread that spills nothing, two for each double."""
    wm, wn = config["WM"], config["WN"]
    operands = (1 + config["AHEAD"]) * config["MMA_K"] * (wm + wn)
    copies = (config["BM"] + config["BN"]) * config["BK"] // 2 // threads(config)
    few = FEW_COPIES // ((1 if wm >= wn else 2) * (1 if config["CLUSTER_K"] == 1 else 2))
    more = max(0, copies - few)
    shares = SHARES if config["STREAM_K_SMS"] else 0
    return 2 * (wm * wn + operands) // WARP + ADDRESSES + shares + A_COPY * more


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    streamed = stream_k_schedule(config, problem) if config["STREAM_K_SMS"] else None
    split = config["SPLIT_K"] > 1 and not streamed and split_fits(config, problem)
    parts, count = config["CLUSTER_K"], k_tiles(config, problem)
    per_split = k_tiles_per_split(config, problem) if split else -(-count // parts)
    splits = -(-count // (per_split * parts))
    partials = partials_bytes(config, problem, splits) if splits > 1 else 0
    if streamed:
        partials = LINE_BYTES * stream_k_lines(config, problem, streamed)
    down, across = -(-problem.m // config["BM"]), -(-problem.n // config["BN"])
    order = tile_order(down, across, splits, config["GROUP_M"])
    split_k = (smaller(config["GROUP_M"], down), splits, fan(splits), per_split)
    return Plan(
        grid=streamed.blocks if streamed else blocks(config, problem) * splits * parts,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=4 * COUNTERS + partials if partials else 0,
        scalars=(*split_k, *(streamed.scalars if streamed else (0, 0, 0, 0)), *order),
        cluster=parts,
    )
