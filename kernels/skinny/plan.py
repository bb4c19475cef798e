"""The launch of skinny: tile, threads, shared memory, registers, split k and its workspace."""

from __future__ import annotations

from math import isqrt
from typing import Final

from kernels.common.division import divider
from kernels.launch import COUNTERS, Plan
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, blocks, real_bytes, registers_granted
from kernels.space import Config

# Short sides of a tile, which a thread has whole in registers.
SHORT_SIDES: Final = (1, 2, 4, 8, 16, 24)
# Packs of accumulators of a block that are reduced in shared memory at once, as in reduce.h.
REDUCED_PACKS: Final = 2048
# Splits of which one block adds up the partial sums; more are reduced in groups first.
FAN: Final = 16
WORKSPACE_BYTES: Final = 2**26
# Registers beside sums and a step's packs, as NVRTC 12.9 allots them: addresses, sizes and what is read ahead; beside
# these one for each element along the long side, and of elements of 8 bytes one for each along the short side.
REST: Final = 40


def short_side(config: Config) -> int:
    """Elements of a tile along C's short side."""
    return min(config["BM"], config["BN"])


def long_side(config: Config) -> int:
    """Elements of a tile along C's long side."""
    return max(config["BM"], config["BN"])


def each_long(config: Config) -> int:
    """Elements of a thread along C's long side."""
    return config["TN"] if config["BM"] < config["BN"] else config["TM"]


def threads(config: Config) -> int:
    """Threads of a block: SLICE_K for each thread tile."""
    return long_side(config) // each_long(config) * config["SLICE_K"]


register_limit: Final = registers_granted(threads)


def has_ring(problem: Problem) -> bool:
    """Whether stages of the long operand are in shared memory: elements of 16 bits are converted on their way."""
    return problem.itemsize == real_bytes(problem)


def k_step(config: Config, problem: Problem) -> int:
    """The k of one step of a block: a vector for each slice."""
    return config["SLICE_K"] * vector(problem)


def k_in_flight(config: Config, problem: Problem) -> int:
    """The k of all stages."""
    return config["STAGES"] * k_step(config, problem)


def bytes_in_flight(config: Config, problem: Problem) -> int:
    """Bytes of the long operand that a block has in flight: all stages, or the next step where there is no ring."""
    stages = config["STAGES"] if has_ring(problem) else 1
    return stages * each_long(config) * threads(config) * vector(problem) * problem.itemsize


def vector(problem: Problem) -> int:
    """Elements in 16 bytes, as they are computed with."""
    return VECTOR_BYTES // real_bytes(problem)


def reduced_at_once(config: Config, problem: Problem) -> int:
    """The part of the short side that is reduced in shared memory at once: ROUND of reduce.h."""
    most = REDUCED_PACKS * vector(problem) // (threads(config) * each_long(config))
    return min(short_side(config), max(1, most))


def accumulator_packs(config: Config, problem: Problem) -> int:
    """Packs of C of a thread after the reduction: OUT_PACKS of reduce.h."""
    at_once = reduced_at_once(config, problem)
    packs = at_once * long_side(config) // vector(problem)
    return -(-short_side(config) // at_once) * -(-packs // threads(config))


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages and two k tiles of the short operand, or of one reduction; and of the epilogue's indices."""
    size = real_bytes(problem)
    k_tile = short_side(config) * (config["BK"] + 4) * size
    reduced = reduced_at_once(config, problem) * long_side(config) * (config["SLICE_K"] + 1) * size
    ring = bytes_in_flight(config, problem) if has_ring(problem) else 0
    return max(ring + 2 * k_tile, reduced) + 16 * size


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    words, short, each = real_bytes(problem) // 4, short_side(config), each_long(config)
    following = 0 if has_ring(problem) else each * vector(problem)
    return words * each * (short + vector(problem)) + following + REST + each + (words - 1) * short


def is_long_by_k(config: Config, problem: Problem) -> bool:
    """Whether the long operand is contiguous along k: LONG_BY_K of kernel.cu."""
    return problem.trans_b if config["BM"] < config["BN"] else not problem.trans_a


def loads_of_vector(config: Config, problem: Problem) -> int:
    """How many loads bring a vector of the long operand: as many as it has elements where its rows are ragged."""
    row = problem.k if is_long_by_k(config, problem) else max(problem.m, problem.n)
    return vector(problem) if row % vector(problem) else 1


def coalesced_bytes(config: Config, problem: Problem) -> int:
    """Contiguous bytes of the long operand that neighbouring threads read at once."""
    neighbours = config["SLICE_K"] if is_long_by_k(config, problem) else long_side(config) // each_long(config)
    return neighbours * vector(problem) * problem.itemsize


def split_k(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Splits of k that are not empty, their fan, and the k of each, in whole steps."""
    each = k_step(config, problem)
    steps = -(-problem.k // each)
    steps_per_split = -(-steps // config["SPLIT_K"])
    splits = -(-steps // steps_per_split)
    fan = splits if splits <= FAN else isqrt(splits - 1) + 1
    return splits, fan, steps_per_split * each


def workspace(config: Config, problem: Problem) -> tuple[int, int]:
    """Counters and bytes of partial sums of split k."""
    splits, fan, _ = split_k(config, problem)
    tiles = blocks(config, problem)
    each = threads(config) * accumulator_packs(config, problem) * VECTOR_BYTES
    return tiles * (-(-splits // fan) + 1), tiles * splits * each


def plan(config: Config, problem: Problem) -> Plan:
    """Blocks for tiles and splits; splits, fan and depth as scalars. One split if the workspace holds no more."""
    splits, fan, depth = split_k(config, problem)
    counters, left = workspace(config, problem)
    shorter, longer = (problem.m, problem.n) if config["BM"] < config["BN"] else (problem.n, problem.m)
    across, down = -(-shorter // short_side(config)), -(-longer // long_side(config))
    if counters > COUNTERS or left > WORKSPACE_BYTES:
        splits, fan, depth = 1, 1, problem.k
    return Plan(
        grid=blocks(config, problem) * splits,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=4 * COUNTERS + left if splits > 1 else 0,
        scalars=(splits, fan, depth, divider(across), divider(down), divider(splits)),
    )
