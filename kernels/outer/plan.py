"""The launch of outer: blocks of neighbouring elements of C, and registers, for a config and a problem."""

from __future__ import annotations

from kernels.common.division import divider
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.space import Config


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["THREADS"]


def block_elements(config: Config) -> int:
    """Elements of C that a block stores."""
    return config["THREADS"] * config["PACKS"] * config["VECTOR"]


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the grid: of each product of the batch as many as cover it wherever its first vector begins."""
    return problem.batch * -(-(problem.m * problem.n + config["VECTOR"] - 1) // block_elements(config))


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config; its scalar divides by the length of C's rows."""
    return Plan(blocks(config, problem), (config["THREADS"], 1), scalars=(divider(problem.n),))
