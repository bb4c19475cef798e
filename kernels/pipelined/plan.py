"""The launch of pipelined: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import COUNTERS, Build, Plan, Step
from kernels.packing import LINE_BYTES, VECTOR_BYTES, pack_mn_major, packed_lines
from kernels.problem import Problem
from kernels.register_tiled.plan import shared_bytes, threads
from kernels.rules import blocks
from kernels.sources import source
from kernels.space import Config
from kernels.split_k import SUMS_BYTES, phases
from kernels.stream_k import Shares, parts_lines, shares, sums_lines

SPLIT_K_REDUCE: Final = "steps/split_k_reduce.cu"
REDUCE_THREADS: Final = 256
MOST_REDUCERS: Final = 8
# Registers beside sums and two steps' operands: addresses, counters, and which copies are inside C.
REST: Final = 28


def copies(config: Config, problem: Problem) -> tuple[int, int]:
    """Copies of A, and of B, that a thread makes in a phase, where each is of as much as its order allows."""
    along = not config["PACK_MN"]
    crosswise = (along and not problem.trans_a, along and problem.trans_b)
    width_a, width_b = (1 if cross else config["VECTOR"] for cross in crosswise)
    count = threads(config)
    return config["BM"] * config["BK"] // count // width_a, config["BN"] * config["BK"] // count // width_b


def registers(config: Config) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    tm, tn = config["TM"], config["TN"]
    return tm * tn + 2 * (tm + tn) + REST


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config, with copies before and the joining of slices after where it has these."""
    streamed = shares(config, problem) if config["STREAM_K_SMS"] else None
    whole = phases(config, problem)
    slices = min(config["SPLIT_K"], whole) if sums_fit(config, problem) and not streamed else 1
    phased, longer = divmod(whole, slices)
    lines_a, lines_b = packed_lines(problem) if config["PACK_MN"] else (0, 0)
    depth, at_c = problem.batch * problem.k, 4 * COUNTERS // LINE_BYTES
    at_a = at_c + _left_lines(config, problem, slices, streamed)
    at_b = at_a + depth * lines_a
    end = at_b + depth * lines_b
    own = streamed.numbers if streamed else (0, 0, longer, 0)
    return Plan(
        grid=streamed.blocks if streamed else blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=end * LINE_BYTES if end > at_c else 0,
        numbers=(slices, at_c, phased, config["GROUP_M"], at_a, lines_a, at_b, lines_b, *own),
        before=(pack_mn_major(problem),) if lines_a + lines_b else (),
        after=(_reduce(problem, slices),) if slices > 1 else (),
    )


def _left_lines(config: Config, problem: Problem, slices: int, streamed: Shares | None) -> int:
    if streamed:
        return parts_lines(config, problem, streamed)
    return sums_lines(problem, slices) if slices > 1 else 0


def _reduce(problem: Problem, slices: int) -> Step:
    """The launch that adds up slices: a block for each piece of C, REDUCERS threads for the slices of an element."""
    reducers = min(MOST_REDUCERS, 1 << (slices.bit_length() - 1))
    piece = REDUCE_THREADS // reducers * VECTOR_BYTES // problem.itemsize
    macros = (("DTYPE_" + problem.dtype.upper(), "1"), ("REDUCERS", str(reducers)))
    build = Build("split_k_reduce", source(SPLIT_K_REDUCE), "split_k_reduce", macros)
    return Step(build, problem.batch * -(-problem.m * problem.n // piece), (REDUCE_THREADS, 1))


def sums_fit(config: Config, problem: Problem) -> bool:
    """Whether the sums of all slices take at most 64 MiB."""
    return config["SPLIT_K"] == 1 or sums_lines(problem, config["SPLIT_K"]) * LINE_BYTES <= SUMS_BYTES
