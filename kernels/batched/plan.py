"""The launch of batched: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import divider
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, registers_granted
from kernels.space import Config

# Registers beside sums and operands, as NVRTC 12.9 allots them: places of what is copied and read, sizes, counters.
ADDRESSES: Final = 40
GAPS: Final = 32  # between the aligned pairs that doubles live in


def product_threads(config: Config) -> int:
    """Threads of one product."""
    return config["BM"] // config["TM"] * (config["BN"] // config["TN"])


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["BATCH_PER_BLOCK"] * product_threads(config)


register_limit: Final = registers_granted(threads)


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the one-dimensional grid: one for each tile of C of BATCH_PER_BLOCK products."""
    tiles = -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])
    return -(-problem.batch // config["BATCH_PER_BLOCK"]) * tiles


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of BATCH_PER_BLOCK products."""
    stage = config["BATCH_PER_BLOCK"] * config["BK"] * (config["BM"] + config["BN"])
    return config["STAGES"] * stage * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    tm, tn, wide, words = config["TM"], config["TN"], vector(problem), problem.itemsize // 4
    read = tm * (1 if problem.trans_a else wide) + tn * (wide if problem.trans_b else 1)
    return words * (tm * tn + read) + ADDRESSES + GAPS * (words - 1)


def vector(problem: Problem) -> int:
    """Elements in 16 bytes."""
    return VECTOR_BYTES // problem.itemsize


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    grid, shared = blocks(config, problem), shared_bytes(config, problem)
    across, down = -(-problem.n // config["BN"]), -(-problem.m // config["BM"])
    scalars = problem.batch, divider(across * down), divider(across)
    return Plan(grid, (threads(config), 1), shared, scalars=scalars)
