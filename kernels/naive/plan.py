"""The launch of naive: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import blocks
from kernels.space import Config


def threads(config: Config) -> int:
    """Threads of a block: one for each element of its tile."""
    return config["BM"] * config["BN"]


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    return Plan(blocks(config, problem), (config["BN"], config["BM"]))
