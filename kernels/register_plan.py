"""How register_tiled is launched: threads, shared memory, k in slices, and copies of operands made before."""

from __future__ import annotations

from math import isqrt
from typing import Final

from kernels.kernel import COUNTERS, Build, Plan, Step, dtype_macros, source
from kernels.naive import blocks
from kernels.problem import Problem
from kernels.space import Config

REPACKED: Final = "repack.cu"
# Bytes that a row of a copy is a multiple of, as IN_SCRATCH of register_tiled.cu, and the square that a block copies.
LINE_BYTES: Final = 128
SIDE: Final = 64
REPACK_THREADS: Final = 256
VECTOR_BYTES: Final = 16
SUMS_BYTES: Final = 2**26


def threads(config: Config) -> int:
    """Threads of a block: those of all its teams."""
    return config["SLICES"] * (config["BM"] // config["TM"]) * (config["BN"] // config["TN"])


def lines(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements from one k to the next of A's and of B's shared tile, as LINE_A and LINE_B of register_tiled.cu."""
    along = not config["REPACK"]
    return config["BM"] + 4 * (along and not problem.trans_a), config["BN"] + 4 * (along and problem.trans_b)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles with their padding, or of all teams' sums where these are more."""
    tiles = config["STAGES"] * config["BK"] * sum(lines(config, problem))
    sums = config["SLICES"] * config["BM"] * config["BN"] if config["SLICES"] > 1 else 0
    return max(tiles, sums) * problem.itemsize


def phases(config: Config, problem: Problem) -> int:
    """Steps of BK along all of k."""
    return -(-problem.k // config["BK"])


def share(config: Config, problem: Problem) -> int:
    """Phases of a slice of k; the last slice may have fewer."""
    return -(-phases(config, problem) // config["SPLIT_K"])


def fan(slices: int) -> int:
    """Slices whose sums one block adds up, so that these and their groups together are fewest."""
    return isqrt(slices - 1) + 1


def counters(config: Config, problem: Problem) -> int:
    """Counters of all tiles: one for each group of slices, and one for the groups."""
    slices = config["SPLIT_K"]
    return blocks(config, problem) * (-(-slices // fan(slices)) + 1)


def sums_bytes(config: Config, problem: Problem, slices: int) -> int:
    """Scratch that the sums of so many slices take."""
    return blocks(config, problem) * slices * config["BM"] * config["BN"] * problem.itemsize


def split_fits(config: Config, problem: Problem) -> bool:
    """Whether there are counters enough, and at most 64 MiB of sums."""
    return config["SPLIT_K"] == 1 or (
        counters(config, problem) <= COUNTERS and sums_bytes(config, problem, config["SPLIT_K"]) <= SUMS_BYTES
    )


def repacked(problem: Problem) -> tuple[bool, bool]:
    """Whether REPACK copies A, and B: where it is stored along k, or its rows are not whole 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return not problem.trans_a or problem.m % wide > 0, problem.trans_b or problem.n % wide > 0


def copied_bytes(problem: Problem) -> int:
    """Bytes of all that REPACK writes."""
    return problem.batch * problem.k * LINE_BYTES * sum(copied_lines(problem))


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config; of one that is not, on a neighbour of its shape, a correct one."""
    phased = share(config, problem) if split_fits(config, problem) else phases(config, problem)
    slices = -(-phases(config, problem) // phased)
    bare = 4 * COUNTERS + sums_bytes(config, problem, slices) if slices > 1 else 0
    lines_a, lines_b = copied_lines(problem) if config["REPACK"] else (0, 0)
    depth, at_a = problem.batch * problem.k, -(-max(bare, 4 * COUNTERS) // LINE_BYTES)
    at_b = at_a + depth * lines_a
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=(at_b + depth * lines_b) * LINE_BYTES if lines_a + lines_b else bare,
        numbers=(slices, fan(slices), phased, config["GROUP"], at_a, lines_a, at_b, lines_b),
        before=(repack(problem),) if lines_a + lines_b else (),
    )


def copied_lines(problem: Problem) -> tuple[int, int]:
    """Lines of 128 bytes that each k takes in the copy of A, and of B; 0 where there is none."""
    line = LINE_BYTES // problem.itemsize
    packed_a, packed_b = repacked(problem)
    return -(-problem.m // line) * packed_a, -(-problem.n // line) * packed_b


def repack(problem: Problem) -> Step:
    """The launch that makes the copies: a block for each square of each operand."""
    packed_a, packed_b = repacked(problem)
    squares = -(-problem.m // SIDE) * packed_a + -(-problem.n // SIDE) * packed_b
    build = Build("repack", source(REPACKED), "repack", dtype_macros(problem))
    return Step(build, problem.batch * -(-problem.k // SIDE) * squares, (REPACK_THREADS, 1))
