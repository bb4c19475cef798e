"""tall's arithmetic: what a block and a warp cover, what they keep, and how many tiles a block takes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.device import Device
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import registers_granted
from kernels.space import Config

WARP: Final = 32
VECTOR_BYTES: Final = 16
# A launch may take so much longer than with the best runs of tiles, and have so many times the blocks that run at one
# time: each brings what is kept anew.
SLACK: Final = 1.1
WAVES: Final = 4
# What streams has a quarter of shared memory at least, and so many bytes: a few warps' phases.
STREAMED: Final = 40 * 1024
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters; more of them where the
# large operand does not lie along k (packs along k are used one element after the other, and so need less than is
# counted for them); more where what is kept is written crosswise; and what aligned pairs lose that doubles live in.
ADDRESSES: Final = 30
ACROSS: Final = 30
CROSSWISE: Final = 16
GAPS: Final = 8
DEPTHS: Final = (16, 32, 64, 128, 256, 512)
TILES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 256, 512, 1024)


def short_and_long(problem: Problem) -> tuple[int, int]:
    """C's shorter side and its longer one."""
    return min(problem.m, problem.n), max(problem.m, problem.n)


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["BM"] // config["TM"] * (config["BN"] // config["TN"])


# Registers that the compiler may give a thread so that an SM holds MIN_BLOCKS blocks; 0 where the device has none.
granted: Final = registers_granted(threads)


def sides(config: Config) -> tuple[int, int]:
    """A tile's short side and its long one."""
    return (config["BM"], config["BN"]) if config["KEEP_A"] else (config["BN"], config["BM"])


def span(config: Config) -> int:
    """How much of C's long side a warp covers, WARP_LONG of kernel.cu; 0 if it cannot cover the short one."""
    short, (ts, tl) = sides(config)[0], ("TM", "TN") if config["KEEP_A"] else ("TN", "TM")
    lanes = short // config[ts]
    return WARP // lanes * config[tl] if 0 < lanes <= WARP else 0


def is_deep(config: Config, problem: Problem) -> bool:
    """Whether the large operand lies along k in memory."""
    return problem.trans_b if config["KEEP_A"] else not problem.trans_a


def is_crossed(config: Config, problem: Problem) -> bool:
    """Whether the small operand lies along k in memory, and so is written crosswise."""
    return not problem.trans_a if config["KEEP_A"] else problem.trans_b


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of what is kept and of all warps' stages, with their padding."""
    short, long = sides(config)
    covered = span(config)
    vector = VECTOR_BYTES // problem.itemsize
    padding = 0 if not is_deep(config, problem) else covered if config["KEEP_A"] else covered * vector
    stages = config["STAGES"] * (long // covered) * (covered * config["BK"] + padding)
    return (config["DEPTH"] * (short + 4 * is_crossed(config, problem)) + stages) * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    words, deep = problem.itemsize // 4, is_deep(config, problem)
    ts, tl = (config["TM"], config["TN"]) if config["KEEP_A"] else (config["TN"], config["TM"])
    operands = words * ts + (tl * VECTOR_BYTES // 4 if deep else words * tl)
    others = ADDRESSES + ACROSS * (not deep) + CROSSWISE * is_crossed(config, problem) + GAPS * (words - 1)
    return words * ts * tl + (2 if config["STAGES"] > 1 else 1) * operands + others


def blocks(config: Config, problem: Problem, tiles: int) -> int:
    """Blocks of a launch where each takes so many tiles."""
    (short, long), (tile_short, tile_long) = short_and_long(problem), sides(config)
    if config["KEEP_A"] != (problem.m < problem.n):
        short, long = long, short
    return problem.batch * -(-short // tile_short) * -(-long // (tile_long * tiles))


@lru_cache(maxsize=4096)
def runs(tiles: int, others: int, room: int) -> tuple[int, ...]:
    """How many tiles a block may take of `tiles` in a row, `others` such rows and `room` for blocks; the best first."""
    counts = {each: others * -(-tiles // each) for each in TILES}
    turns = {each: -(-count // room) * each for each, count in counts.items()}
    good = [each for each in TILES if turns[each] <= SLACK * min(turns.values())]
    few = [each for each in good if counts[each] <= WAVES * room] or good[-1:]
    return tuple(sorted(few, key=lambda each: (counts[each] > room, turns[each], counts[each])))


def good_runs(config: Config, problem: Problem, device: Device) -> tuple[int, ...]:
    """The values of TILES that leave few SMs without work and bring what is kept seldom; the best first."""
    (short, long), (tile_short, tile_long) = short_and_long(problem), sides(config)
    room = max(device.limits.sms, 1) * config["MIN_BLOCKS"]
    return runs(-(-long // tile_long), problem.batch * -(-short // tile_short), room)


def depth(piece: int, problem: Problem, device: Device) -> int:
    """The least DEPTH that holds all of k, or else as much as leaves shared memory enough to what streams."""
    shared = device.limits.shared_bytes
    most = min(shared * 3 // 4, shared - STREAMED) // (piece * problem.itemsize)
    least = next((each for each in DEPTHS if each >= problem.k), DEPTHS[-1])
    return max((each for each in DEPTHS if each <= min(least, most)), default=DEPTHS[0])


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    tiles = config["TILES"]
    return Plan(blocks(config, problem, tiles), (threads(config), 1), shared_bytes(config, problem), numbers=(tiles,))
