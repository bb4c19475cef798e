"""The launch of wmma: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config

# An instruction's tile of A, of B and of C, and the threads that have one (PTX ISA, "wmma").
SIDE: Final = 16
# What the lines of shared tiles are longer by, as LD_A and LD_B of kernel.cu, and bytes of a sum.
PAD: Final = 8
SUM_BYTES: Final = 4


def threads(config: Config) -> int:
    """Threads of a block: a warp for each 16 x 16 of its tile."""
    return config["BM"] // SIDE * (config["BN"] // SIDE) * WARP


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both shared tiles with their padding, and of the epilogue tile."""
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    of_a = bk * (bm + PAD) if problem.trans_a else bm * (bk + PAD)
    of_b = bn * (bk + PAD) if problem.trans_b else bk * (bn + PAD)
    return (of_a + of_b) * problem.itemsize + bm * bn * SUM_BYTES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    return Plan(blocks(config, problem), (threads(config), 1), shared_bytes(config, problem))
