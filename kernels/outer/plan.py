"""The launch of outer: blocks of neighbouring elements of C, and registers, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import Plan
from kernels.problem import Problem
from kernels.space import Config

_BITS: Final = 31  # of what is divided


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["THREADS"]


def block_elements(config: Config) -> int:
    """Elements of C that a block stores."""
    return config["THREADS"] * config["PACKS"] * config["VECTOR"]


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the grid: of each product of the batch as many as cover it wherever its first vector begins."""
    return problem.batch * -(-(problem.m * problem.n + config["VECTOR"] - 1) // block_elements(config))


def division_by(divisor: int) -> tuple[int, int]:
    """A multiplier and a shift: x times the one, shifted right by the other, is x // divisor for all x below 2^31.

    Both factors have 32 bits (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
    """
    shift = _BITS + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config; its scalars divide by the length of C's rows."""
    return Plan(blocks(config, problem), (config["THREADS"], 1), scalars=division_by(problem.n))
