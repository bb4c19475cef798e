"""How a config of skinny meets a problem: tile, threads, shared memory, registers, slices of k and their scratch."""

from __future__ import annotations

from math import isqrt
from typing import Final

from kernels.launch import COUNTERS, Plan
from kernels.problem import Problem
from kernels.rules import blocks, registers_granted
from kernels.space import Config

VECTOR_BYTES: Final = 16
# C's short side in tiles: a thread has all of it in registers.
SHORTEST: Final = (1, 2, 4, 8, 16, 24)
# Packs of sums of a block that meet in shared memory at once, as reduce.h has it.
MEETING: Final = 2048
# One block adds up what so many slices left; of more, groups' last blocks do so first.
FAN: Final = 16
SCRATCH_BYTES: Final = 2**26
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
    """Elements along C's long side that a thread has."""
    return config["TN"] if config["BM"] < config["BN"] else config["TM"]


def threads(config: Config) -> int:
    """Threads of a block: for each share of the tile as many as share out k."""
    return long_side(config) // each_long(config) * config["SLICE_K"]


# Registers that the compiler may give a thread so that an SM holds MIN_BLOCKS blocks; 0 where the device has none.
granted: Final = registers_granted(threads)


def step(config: Config, problem: Problem) -> int:
    """How much of k the threads of a block add at a time."""
    return config["SLICE_K"] * VECTOR_BYTES // problem.itemsize


def turn(config: Config, problem: Problem) -> int:
    """How much of k the threads of a block have under way."""
    return config["STAGES"] * step(config, problem)


def under_way(config: Config) -> int:
    """Bytes of the long operand that a block has under way."""
    return config["STAGES"] * each_long(config) * threads(config) * VECTOR_BYTES


def wide(problem: Problem) -> int:
    """Elements in 16 bytes."""
    return VECTOR_BYTES // problem.itemsize


def meeting(config: Config, problem: Problem) -> int:
    """How much of the short side meets in shared memory at once, as ROUND of reduce.h."""
    most = MEETING * wide(problem) // (threads(config) * each_long(config))
    return min(short_side(config), max(1, most))


def sums(config: Config, problem: Problem) -> int:
    """Packs of sums that a thread has in the end, as OUT_PACKS of reduce.h."""
    at_once = meeting(config, problem)
    packs = at_once * long_side(config) // wide(problem)
    return -(-short_side(config) // at_once) * -(-packs // threads(config))


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of the ring and two phases of the short operand, or of a round of sums, and of what the end wants."""
    phase = short_side(config) * (config["BK"] + 4) * problem.itemsize
    sums = meeting(config, problem) * long_side(config) * (config["SLICE_K"] + 1) * problem.itemsize
    return max(under_way(config) + 2 * phase, sums) + 16 * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    words, short, each = problem.itemsize // 4, short_side(config), each_long(config)
    return words * each * (short + wide(problem)) + REST + each + (words - 1) * short


def covering(side: int) -> int:
    """The short side of the fewest tiles that cover one, and of these the shortest."""
    part = -(-side // -(-side // SHORTEST[-1]))
    return next(each for each in SHORTEST if each >= part)


def together(config: Config, problem: Problem) -> int:
    """Bytes of a row or column of the long operand that neighbouring threads read at once."""
    by_k = problem.trans_b if config["BM"] < config["BN"] else not problem.trans_a
    return (config["SLICE_K"] if by_k else long_side(config) // each_long(config)) * VECTOR_BYTES


def slicing(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Slices of k that have something, how many one block adds up, and how much of k each has, in whole steps."""
    each = step(config, problem)
    steps = -(-problem.k // each)
    share = -(-steps // config["SPLIT_K"])
    slices = -(-steps // share)
    fan = slices if slices <= FAN else isqrt(slices - 1) + 1
    return slices, fan, share * each


def scratch(config: Config, problem: Problem) -> tuple[int, int]:
    """Counters and bytes of sums that slicing takes."""
    slices, fan, _ = slicing(config, problem)
    tiles = blocks(config, problem)
    each = threads(config) * sums(config, problem) * VECTOR_BYTES
    return tiles * (-(-slices // fan) + 1), tiles * slices * each


def plan(config: Config, problem: Problem) -> Plan:
    """Blocks for tiles and slices, and slices, fan and depth as numbers; one slice where scratch holds no more."""
    slices, fan, depth = slicing(config, problem)
    counters, left = scratch(config, problem)
    if counters > COUNTERS or left > SCRATCH_BYTES:
        slices, fan, depth = 1, 1, problem.k
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=4 * COUNTERS + left if slices > 1 else 0,
        numbers=(slices, fan, depth),
    )
