"""How register_tiled is launched: threads, shared memory, k in slices, and copies of operands made before."""

from __future__ import annotations

from typing import Final

from kernels.launch import COUNTERS, Plan
from kernels.packing import LINE_BYTES, pack_mn_major, packed_lines
from kernels.problem import Problem
from kernels.rules import blocks, registers_granted
from kernels.space import Config
from kernels.split_k import fan, phases, share, split_fits, sums_bytes


def threads(config: Config) -> int:
    """Threads of a block: those of all its teams."""
    return config["SLICE_K"] * (config["BM"] // config["TM"]) * (config["BN"] // config["TN"])


# Registers that the compiler may give a thread so that an SM holds MIN_BLOCKS blocks; 0 where the device has none.
granted: Final = registers_granted(threads)


def lines(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements from one k to the next of A's and of B's shared tile, as LD_A and LD_B of kernel.cu."""
    along = not config["PACK_MN"]
    return config["BM"] + 4 * (along and not problem.trans_a), config["BN"] + 4 * (along and problem.trans_b)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles with their padding, or of all teams' sums where these are more."""
    tiles = config["STAGES"] * config["BK"] * sum(lines(config, problem))
    sums = config["SLICE_K"] * config["BM"] * config["BN"] if config["SLICE_K"] > 1 else 0
    return max(tiles, sums) * problem.itemsize


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config; of one that is not, on a neighbour of its shape, a correct one."""
    phased = share(config, problem) if split_fits(config, problem) else phases(config, problem)
    slices = -(-phases(config, problem) // phased)
    bare = 4 * COUNTERS + sums_bytes(config, problem, slices) if slices > 1 else 0
    lines_a, lines_b = packed_lines(problem) if config["PACK_MN"] else (0, 0)
    depth, at_a = problem.batch * problem.k, -(-max(bare, 4 * COUNTERS) // LINE_BYTES)
    at_b = at_a + depth * lines_a
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=(at_b + depth * lines_b) * LINE_BYTES if lines_a + lines_b else bare,
        numbers=(slices, fan(slices), phased, config["GROUP_M"], at_a, lines_a, at_b, lines_b),
        before=(pack_mn_major(problem),) if lines_a + lines_b else (),
    )


BUFFERED: Final = 2
# Registers beside sums, operands and what is under way, as NVRTC 12.9 allots them: addresses, sizes, counters; and
# what is lost between the aligned pairs that doubles live in.
ADDRESSES: Final = 44
GAPS: Final = 40
TEAMS: Final = 8  # where C's part of a team is, beside where the tile is


def registers(config: Config, problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    tm, tn, words = config["TM"], config["TN"], problem.itemsize // 4
    held = (config["BM"] + config["BN"]) * config["BK"] // threads(config) if config["STAGES"] <= BUFFERED else 0
    return words * (tm * tn + tm + tn + held) + ADDRESSES + GAPS * (words - 1) + TEAMS * (config["SLICE_K"] > 1)
