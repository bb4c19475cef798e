"""The launch of outer: blocks of neighbouring elements of C, and registers, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.space import Config

# Registers beside sums, operands and their addresses, as NVRTC 12.9 allots them.
ADDRESSES: Final = 40
FLOAT_BYTES: Final = 4


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["THREADS"]


def block_elements(config: Config) -> int:
    """Elements of C that a block stores."""
    return config["THREADS"] * config["PACKS"] * config["VECTOR"]


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the grid: of each product of the batch as many as cover it wherever its first vector begins."""
    return problem.batch * -(-(problem.m * problem.n + config["VECTOR"] - 1) // block_elements(config))


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    words = max(problem.itemsize, FLOAT_BYTES) // FLOAT_BYTES
    return words * (config["VECTOR"] + 2) * 2 + ADDRESSES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    return Plan(blocks(config, problem), (config["THREADS"], 1))
