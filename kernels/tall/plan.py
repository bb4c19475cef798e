"""The launch of tall: tiles of blocks and warps, shared memory, registers and tiles a block."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.common.division import divider
from kernels.device import Device
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, WARP, registers_granted
from kernels.space import Config

# How much longer than with the best TILES a launch may take, and its most waves of blocks: each block loads the kept
# operand anew.
TIME_SLACK: Final = 1.1
WAVES: Final = 4
# The streamed operand has a quarter of shared memory, and at least these bytes.
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


register_limit: Final = registers_granted(threads)


def short_and_long_tile(config: Config) -> tuple[int, int]:
    """A tile's short side and its long one."""
    return (config["BM"], config["BN"]) if config["KEEP_A"] else (config["BN"], config["BM"])


def warp_long(config: Config) -> int:
    """Elements of a warp along C's long side, WARP_LONG of kernel.cu; 0 if it does not cover the short one."""
    short, (ts, tl) = short_and_long_tile(config)[0], ("TM", "TN") if config["KEEP_A"] else ("TN", "TM")
    lanes = short // config[ts]
    return WARP // lanes * config[tl] if 0 < lanes <= WARP else 0


def streams_k_major(config: Config, problem: Problem) -> bool:
    """Whether the streamed operand is K-major."""
    return problem.trans_b if config["KEEP_A"] else not problem.trans_a


def transposes_kept(config: Config, problem: Problem) -> bool:
    """Whether the kept operand is K-major, and so is transposed into shared memory."""
    return not problem.trans_a if config["KEEP_A"] else problem.trans_b


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of the kept operand and of all warps' stages, with their padding."""
    short, long = short_and_long_tile(config)
    covered = warp_long(config)
    vector = VECTOR_BYTES // problem.itemsize
    padding = 0 if not streams_k_major(config, problem) else covered if config["KEEP_A"] else covered * vector
    stages = config["STAGES"] * (long // covered) * (covered * config["BK"] + padding)
    return (config["DEPTH"] * (short + 4 * transposes_kept(config, problem)) + stages) * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    words, deep = problem.itemsize // 4, streams_k_major(config, problem)
    ts, tl = (config["TM"], config["TN"]) if config["KEEP_A"] else (config["TN"], config["TM"])
    operands = words * ts + (tl * VECTOR_BYTES // 4 if deep else words * tl)
    others = ADDRESSES + ACROSS * (not deep) + CROSSWISE * transposes_kept(config, problem) + GAPS * (words - 1)
    return words * ts * tl + (2 if config["STAGES"] > 1 else 1) * operands + others


def blocks(config: Config, problem: Problem, tiles: int) -> int:
    """Blocks of a launch with `tiles` tiles a block."""
    pieces, runs = pieces_and_runs(config, problem, tiles)
    return problem.batch * pieces * runs


def pieces_and_runs(config: Config, problem: Problem, tiles: int) -> tuple[int, int]:
    """Tiles along C's shorter side, and blocks of `tiles` tiles along the longer one."""
    (short, long), (tile_short, tile_long) = short_and_long(problem), short_and_long_tile(config)
    if config["KEEP_A"] != (problem.m < problem.n):
        short, long = long, short
    return -(-short // tile_short), -(-long // (tile_long * tiles))


@lru_cache(maxsize=4096)
def tiles_per_block(tiles: int, others: int, room: int) -> tuple[int, ...]:
    """The values of TILES for `others` rows of `tiles` tiles and `room` concurrent blocks, the best first."""
    counts = {each: others * -(-tiles // each) for each in TILES}
    turns = {each: -(-count // room) * each for each, count in counts.items()}
    good = [each for each in TILES if turns[each] <= TIME_SLACK * min(turns.values())]
    few = [each for each in good if counts[each] <= WAVES * room] or good[-1:]
    return tuple(sorted(few, key=lambda each: (counts[each] > room, turns[each], counts[each])))


def good_tiles_per_block(config: Config, problem: Problem, device: Device) -> tuple[int, ...]:
    """The values of TILES that leave few SMs idle and load the kept operand seldom, the best first."""
    (short, long), (tile_short, tile_long) = short_and_long(problem), short_and_long_tile(config)
    room = max(device.limits.sms, 1) * config["MIN_BLOCKS"]
    return tiles_per_block(-(-long // tile_long), problem.batch * -(-short // tile_short), room)


def depth(piece: int, problem: Problem, device: Device) -> int:
    """The least DEPTH that holds all of k, or the most that leaves shared memory for the streamed operand."""
    shared = device.limits.shared_bytes
    most = min(shared * 3 // 4, shared - STREAMED) // (piece * problem.itemsize)
    least = next((each for each in DEPTHS if each >= problem.k), DEPTHS[-1])
    return max((each for each in DEPTHS if each <= min(least, most)), default=DEPTHS[0])


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    tiles = config["TILES"]
    pieces, runs = pieces_and_runs(config, problem, tiles)
    return Plan(
        grid=problem.batch * pieces * runs,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scalars=(tiles, runs, divider(pieces), divider(runs)),
    )
