"""The launch of double_hopper: threads, shared memory and tensor maps, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import tile_order
from kernels.device import Device
from kernels.launch import COUNTERS, Plan, TensorMap
from kernels.problem import Problem, smaller
from kernels.rules import LINE_BYTES, REGISTERS_AT_ONCE, WARP
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split, partials_bytes, split_fits

# As in config.h: a block's producer, and the registers of its threads; the most of a consumer's.
PRODUCER: Final = 128
PRODUCER_REGISTERS: Final = 24
MOST_REGISTERS: Final = 240
# Elements of a box's row.
LINE: Final = 16
# A stage's two mbarriers.
BARRIER_BYTES: Final = 16
# Registers beside sums and operands, as NVRTC 12.9 allots them: fewer where operands are read ahead, all of which are
# counted then, else one side's and those of a round of instructions with as many rows.
ADDRESSES: Final = 41
ADDRESSES_AHEAD: Final = 31
ROUND: Final = 16


def consumers(config: Config) -> int:
    """Threads that multiply: a warp for each WM x WN of a tile."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


def threads(config: Config) -> int:
    """Threads of a block: its consumers and its producer."""
    return consumers(config) + PRODUCER


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both operands' boxes, and their mbarriers."""
    stage = (config["BM"] + config["BN"]) * config["BK"] * problem.itemsize
    return config["STAGES"] * (stage + BARRIER_BYTES)


def registers(config: Config) -> int:
    """The least registers of a consumer's thread that spills nothing, two for each double."""
    wm, wn = config["WM"], config["WN"]
    sides, beside = (2 * (wm + wn), ADDRESSES_AHEAD) if config["AHEAD"] else (min(wm, wn) + ROUND, ADDRESSES)
    return 2 * (wm * wn + config["MMA_K"] * sides) // WARP + beside


def register_limit(config: Config, device: Device) -> int:
    """The most registers of a consumer's thread, with those that the producer gives up."""
    limits = device.limits
    start = _whole(limits.registers_per_sm // (threads(config) * config["MIN_BLOCKS"]))
    if start >= MOST_REGISTERS:
        return min(start, limits.registers_per_thread)
    left = start * threads(config) - PRODUCER_REGISTERS * PRODUCER
    return min(MOST_REGISTERS, _whole(left // consumers(config)))


def _whole(registers: int) -> int:
    return registers // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE


def tiles(config: Config, problem: Problem) -> int:
    """Tiles, or clusters of tiles, of all batches."""
    return problem.batch * _down(config, problem) * -(-problem.n // config["BN"])


def _down(config: Config, problem: Problem) -> int:
    return -(-problem.m // (config["BM"] * config["CLUSTER"]))


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    cluster, split = config["CLUSTER"], config["SPLIT_K"] > 1 and split_fits(config, problem)
    count = k_tiles(config, problem)
    per_split = k_tiles_per_split(config, problem) if split else count
    splits = -(-count // per_split)
    work = tiles(config, problem) * splits
    staying = config["BLOCKS"] * config["MIN_BLOCKS"] // cluster
    partials = partials_bytes(config, problem, splits) if splits > 1 else 0
    down, across = _down(config, problem), -(-problem.n // config["BN"])
    dealt = smaller(config["GROUP_M"], down), work
    order = tile_order(down, across, splits, config["GROUP_M"])
    return Plan(
        grid=smaller(work, staying or work) * cluster,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=4 * COUNTERS + partials if partials else 0,
        scalars=(*dealt, count, splits, fan(splits), per_split, *order),
        maps=(
            _map("a", config["BM"], problem.m, not problem.trans_a, config, problem),
            _map("b", config["BN"] // (cluster if problem.trans_b else 1), problem.n, problem.trans_b, config, problem),
        ),
        cluster=cluster,
    )


def _map(operand: str, side: int, size: int, along_k: bool, config: Config, problem: Problem) -> TensorMap:
    """The tensor map of an operand of `size` rows (columns, of B), in boxes of 128 bytes along memory's lines.

    A box has `side` of them, or BK of k, across these.
    """
    sizes, box = ((problem.k, size), (LINE, side)) if along_k else ((size, problem.k), (LINE, config["BK"]))
    row = sizes[0] * problem.itemsize
    return TensorMap(operand, problem.dtype, (*sizes, problem.batch), (row, sizes[1] * row), (*box, 1), LINE_BYTES)
