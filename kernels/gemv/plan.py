"""The launch of gemv: its tile, threads, shared memory and registers, for a config and a problem."""

from __future__ import annotations

from math import ceil
from typing import Final

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import FLOAT_BYTES, WARP, blocks, real_bytes
from kernels.space import Config
from kernels.split_k import MBARRIER_BYTES

# Short sides of a tile, which a thread has whole in registers.
SHORT_SIDES: Final = (1, 2, 3, 4, 6, 8)
# Elements of C that a cluster's block adds at least: a sector of float32.
SECTOR_FLOATS: Final = 8
# Registers beside sums, the steps in flight and the addresses of loads, as NVRTC 12.9 allots them.
ADDRESSES: Final = 48


def short_side(config: Config) -> int:
    """Elements of a tile along C's short side."""
    return config["BM"] if config["LONG_N"] else config["BN"]


def long_side(config: Config) -> int:
    """Elements of a tile along C's long side."""
    return config["BN"] if config["LONG_N"] else config["BM"]


def long_threads(config: Config) -> int:
    """Threads along C's long side."""
    return long_side(config) // config["EACH_LONG"]


def threads(config: Config) -> int:
    """Threads of a block."""
    return long_threads(config) * config["SLICE_K"]


def is_long_n(problem: Problem) -> bool:
    """Whether C's long side is n, or both are as long."""
    return problem.m <= problem.n


def is_long_by_k(config: Config, problem: Problem) -> bool:
    """Whether the long operand is contiguous along k: LONG_BY_K of kernel.cu."""
    return problem.trans_b if config["LONG_N"] else not problem.trans_a


def warps_of_k(config: Config, problem: Problem) -> int:
    """Warps that share the k of an element: WARPS_K of reduce.h."""
    apart = 1 if is_long_by_k(config, problem) else long_threads(config)
    return config["SLICE_K"] // max(1, min(config["SLICE_K"], WARP // apart))


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of the sums of all warps, and with a cluster of its blocks' for the elements that one adds.

    These are counted at an mbarrier.
    """
    elements, warps = config["BM"] * config["BN"], warps_of_k(config, problem)
    line = 1 if warps == 1 else warps + 1
    of_cluster, own = config["CLUSTER_K"], max(-(-elements // config["CLUSTER_K"]), SECTOR_FLOATS)
    received = of_cluster * own * real_bytes(problem) + MBARRIER_BYTES if of_cluster > 1 else 0
    return elements * line * real_bytes(problem) + received


def loads(config: Config, problem: Problem) -> int:
    """Loads of the long operand by a thread at a step."""
    return config["EACH_LONG"] if is_long_by_k(config, problem) else config["EACH_LONG"] // config["VECTOR"]


def depth(config: Config, problem: Problem) -> int:
    """The k of a thread's step: a vector where the long operand is contiguous along k."""
    return config["VECTOR"] if is_long_by_k(config, problem) else 1


def step(config: Config, problem: Problem) -> int:
    """The k of a block's step."""
    return config["SLICE_K"] * depth(config, problem)


def loads_short(config: Config, problem: Problem) -> int:
    """Loads of the short operand by a thread at a step: vectors where it is contiguous along k."""
    is_by_k = not problem.trans_a if config["LONG_N"] else problem.trans_b
    short = short_side(config)
    return short if is_by_k or short == 1 else short * depth(config, problem)


def registers_of_step(config: Config, problem: Problem) -> int:
    """Registers of what a thread loads at a step: at least one a load."""
    word, of_short = problem.itemsize / FLOAT_BYTES, loads_short(config, problem)
    of_x = loads(config, problem) * ceil(config["VECTOR"] * word)
    elements = short_side(config) * depth(config, problem)
    return of_x + max(of_short, ceil(elements * word))


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing: its sums, the steps in flight, and addresses.

    Where the long operand is not contiguous along k every load has an address of its own.
    """
    words, short, own = real_bytes(problem) // FLOAT_BYTES, short_side(config), config["EACH_LONG"]
    apart = 0 if is_long_by_k(config, problem) else loads(config, problem)
    in_flight = config["UNROLL"] * (registers_of_step(config, problem) + apart)
    return words * short * own + in_flight + 2 * (short + own) + ADDRESSES


def grid(config: Config, problem: Problem) -> int:
    """Blocks of the launch: a cluster for each tile."""
    return blocks(config, problem) * config["CLUSTER_K"]


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    block = threads(config), 1
    return Plan(grid(config, problem), block, shared_bytes(config, problem), cluster=config["CLUSTER_K"])
