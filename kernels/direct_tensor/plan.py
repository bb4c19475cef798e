"""The launch of direct_tensor: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import divider
from kernels.launch import Plan
from kernels.packing import A, B
from kernels.problem import Problem
from kernels.rules import FLOAT_BYTES, WARP
from kernels.space import Config
from kernels.split_k import DECLARED_MBARRIER_BYTES

# Rows of an instruction's tile that a warp stores at once, a band; elements by which a row of these is longer in shared
# memory, so that stores fall on different banks; and REALIGN's bit for C.
BAND: Final = 8
STAGED_BESIDE: Final = 8
REALIGN_C: Final = 4
# What k of a slice is a multiple of, so that rows of whole 16 bytes are that in each slice.
ALIGNED: Final = 8
# Elements from an aligned address to the first of a row.
MOST_EARLY: Final = 7


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of all batches, each a warp's, or a block's or cluster's whose warps have a slice of k each."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["WARPS"] * WARP


def slices(config: Config) -> int:
    """Slices of k of a tile: the warps of a block, or of all blocks of a cluster."""
    return config["SLICE_K"] * config["CLUSTER_K"]


def k_per_slice(config: Config, problem: Problem) -> int:
    """The k of a slice; the last one has the rest."""
    parts = slices(config)
    return problem.k if parts == 1 else -(-problem.k // (parts * ALIGNED)) * ALIGNED


def pass_k(config: Config, problem: Problem) -> int:
    """The k that a slice multiplies at once: BK, with room for what is before a realigned row along k."""
    k_major = A * (not problem.trans_a) | B * problem.trans_b
    room = MOST_EARLY if config["SLICE_K"] == 1 else ALIGNED
    return config["BK"] - (room if config["REALIGN"] & k_major else 0)


def passes(config: Config, problem: Problem) -> int:
    """How often each slice loads and multiplies."""
    return -(-k_per_slice(config, problem) // pass_k(config, problem))


def grid(config: Config, problem: Problem) -> int:
    """Blocks of the launch."""
    return -(-tiles(config, problem) // (config["WARPS"] // config["SLICE_K"])) * config["CLUSTER_K"]


def shared_bytes(config: Config) -> int:
    """Bytes that a block declares: its slices' sums, or a band of float32 for each warp whose C is realigned."""
    if config["SLICE_K"] > 1:
        return slices_bytes(config)
    row = config["BN"] + STAGED_BESIDE
    return config["WARPS"] * BAND * row * FLOAT_BYTES if config["REALIGN"] & REALIGN_C else 0


def slices_bytes(config: Config) -> int:
    """Bytes of the sums of a block's slices, and of a cluster's blocks' for the bands that one adds.

    These are counted at an mbarrier.
    """
    if config["SLICE_K"] == 1:
        return 0
    bands, of_cluster = config["BM"] // BAND, config["CLUSTER_K"]
    received = -(-bands // of_cluster) * of_cluster if of_cluster > 1 else 0
    sums = (config["SLICE_K"] * bands + received) * BAND * config["BN"] * FLOAT_BYTES
    return sums + DECLARED_MBARRIER_BYTES * (of_cluster > 1)


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    across, down = (-(-side // tile) for side, tile in ((problem.n, config["BN"]), (problem.m, config["BM"])))
    sizes = tiles(config, problem), problem.batch, k_per_slice(config, problem)
    scalars = *sizes, divider(across), divider(down)
    block = threads(config), 1
    return Plan(grid(config, problem), block, shared_bytes(config), scalars=scalars, cluster=config["CLUSTER_K"])
