"""The launch of direct_double: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import divider
from kernels.direct_tensor.plan import threads
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config
from kernels.split_k import DECLARED_MBARRIER_BYTES

# What k of a slice is a multiple of: 16 bytes of a row, in each slice where in all.
ALIGNED: Final = 2


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of all batches, in whole groups of rows of them."""
    down = -(-problem.m // (config["BM"] * config["GROUP_M"])) * config["GROUP_M"]
    return problem.batch * down * -(-problem.n // config["BN"])


def teams(config: Config) -> int:
    """Tiles of a block: of each, its SLICE_K warps have slices."""
    return config["WARPS"] // config["SLICE_K"]


def slices(config: Config) -> int:
    """Slices of k of a tile: the warps of a block, or of all blocks of a cluster."""
    return config["SLICE_K"] * config["CLUSTER_K"]


def k_per_slice(config: Config, problem: Problem) -> int:
    """The k of a slice; the last one has the rest."""
    parts = slices(config)
    return problem.k if parts == 1 else -(-problem.k // (parts * ALIGNED)) * ALIGNED


def passes(config: Config, problem: Problem) -> int:
    """How often each slice loads and multiplies."""
    return -(-k_per_slice(config, problem) // config["BK"])


def grid(config: Config, problem: Problem) -> int:
    """Blocks of the launch."""
    return -(-tiles(config, problem) // teams(config)) * config["CLUSTER_K"]


def sums(config: Config) -> int:
    """Elements of C that a thread adds up."""
    return config["BM"] * config["BN"] // WARP


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes that a block declares: all slices' sums; of a cluster those that it receives, too, and an mbarrier."""
    of_cluster, line = config["CLUSTER_K"], WARP * problem.itemsize
    if slices(config) == 1:
        return 0
    own = config["WARPS"] * sums(config) * line
    if of_cluster == 1:
        return own
    received = -(-sums(config) // of_cluster) * of_cluster * line
    return own + teams(config) * received + DECLARED_MBARRIER_BYTES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    across, down = -(-problem.n // config["BN"]), -(-problem.m // (config["BM"] * config["GROUP_M"]))
    scalars = problem.batch, k_per_slice(config, problem), divider(across), divider(down)
    shared = shared_bytes(config, problem)
    return Plan(grid(config, problem), (threads(config), 1), shared, scalars=scalars, cluster=config["CLUSTER_K"])
