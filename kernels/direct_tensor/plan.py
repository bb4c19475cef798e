"""The launch of direct_tensor: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import Plan
from kernels.packing import A, B
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config

# What k of a slice is a multiple of, so that rows of whole 16 bytes are that in each slice.
ALIGNED: Final = 8
# Elements from an aligned address to the first of a row.
MOST_EARLY: Final = 7


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of all batches, each a warp's, or a block's whose warps have a slice of k each."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["WARPS"] * WARP


def k_per_slice(config: Config, problem: Problem) -> int:
    """The k of a slice; the last one has the rest."""
    slices = config["SLICE_K"]
    return problem.k if slices == 1 else -(-problem.k // (slices * ALIGNED)) * ALIGNED


def pass_k(config: Config, problem: Problem) -> int:
    """The k that a slice multiplies at once: BK, with room for what is before a realigned row along k."""
    k_major = A * (not problem.trans_a) | B * problem.trans_b
    room = MOST_EARLY if config["SLICE_K"] == 1 else ALIGNED
    return config["BK"] - (room if config["REALIGN"] & k_major else 0)


def passes(config: Config, problem: Problem) -> int:
    """How often each slice loads and multiplies."""
    return -(-k_per_slice(config, problem) // pass_k(config, problem))


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    count = tiles(config, problem)
    grid = -(-count // (config["WARPS"] // config["SLICE_K"]))
    return Plan(grid, (threads(config), 1), scalars=(count, problem.batch, k_per_slice(config, problem)))
