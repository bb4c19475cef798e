"""The launch of direct_tensor: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of all batches, each a warp's."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["WARPS"] * WARP


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    count = tiles(config, problem)
    return Plan(-(-count // config["WARPS"]), (threads(config), 1), scalars=(count, problem.batch))
