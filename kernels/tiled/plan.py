"""The launch of tiled: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, blocks
from kernels.space import Config

BANK_BYTES: Final = 128
FLOAT_BYTES: Final = 4


def element_bytes(problem: Problem) -> int:
    """Bytes of an element in a shared tile, where those of 16 bits are floats."""
    return max(problem.itemsize, FLOAT_BYTES)


def threads(config: Config) -> int:
    """Threads of a block: one for each element of its tile."""
    return config["BM"] * config["BN"]


def strides(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements from one row to the next of A's and of B's shared tile, as LD_A and LD_B of kernel.cu."""
    bn, bk = config["BN"], config["BK"]
    lanes, vector = BANK_BYTES // element_bytes(problem), VECTOR_BYTES // element_bytes(problem)
    pads_a = bk > vector and (problem.trans_a or bk > bn)
    pads_b = problem.trans_b and bn * bk > lanes
    return bk + pads_a * vector, bn + pads_b * max(lanes // bk, 1)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both shared tiles with their padding."""
    stride_a, stride_b = strides(config, problem)
    return (config["BM"] * stride_a + config["BK"] * stride_b) * element_bytes(problem)


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    return Plan(blocks(config, problem), (config["BN"], config["BM"]), shared_bytes(config, problem))
