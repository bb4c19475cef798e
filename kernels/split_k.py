"""Split-K: several blocks or launches share the k of a tile; their partial sums are added up in a fixed order."""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS, Build, Launch, Step, dtype_macros
from kernels.problem import Problem
from kernels.rules import MAX_GRID, VECTOR_BYTES, blocks
from kernels.sources import source
from kernels.space import Config

# Of tensor cores' kernels: the fewest k tiles of a split, the part of SPLIT_K splits that must not be empty, and the
# waves of blocks beyond which k is not split.
FEWEST_K_TILES: Final = 4
NOT_EMPTY: Final = 0.95
WAVES: Final = 2
# Blocks of a cluster that share k, through each other's shared memory; since when there are clusters (PTX ISA, "Cluster
# of Cooperative Thread Arrays"); the fewest k tiles of a block; and what the mbarrier takes that counts received bytes,
# in dynamic shared memory and declared (PTX ISA, "Size and alignment of mbarrier object").
CLUSTERS: Final = (1, 2, 4, 8)
CLUSTERS_SINCE: Final = 90
FEWEST_IN_CLUSTER: Final = 2
MBARRIER_BYTES: Final = 16
DECLARED_MBARRIER_BYTES: Final = 8
# The most workspace for partial sums.
PARTIALS_BYTES: Final = 2**26
# As in common/split_k_reduce.h.
REDUCE_THREADS: Final = 256
ACCUMULATE: Final = "steps/accumulate.cu"
MOST_REDUCERS: Final = 8
# Bytes of C that a block of steps/accumulate.cu adds to: its PACKS of 16 for each thread.
ACCUMULATED_BYTES: Final = 4 * REDUCE_THREADS * VECTOR_BYTES


def k_tiles(config: Config, problem: Problem) -> int:
    """Steps of BK that cover k."""
    return -(-problem.k // config["BK"])


def k_tiles_per_split(config: Config, problem: Problem) -> int:
    """K tiles of a split; the last split may have fewer."""
    return -(-k_tiles(config, problem) // config["SPLIT_K"])


def fan(splits: int) -> int:
    """Splits of a group, whose partial sums one block adds up: groups and their splits are about equally many."""
    return isqrt(splits - 1) + 1


def counters(config: Config, problem: Problem) -> int:
    """Counters of all tiles: one for each group of splits, and one for the groups."""
    splits = config["SPLIT_K"]
    return blocks(config, problem) * (-(-splits // fan(splits)) + 1)


def partials_bytes(config: Config, problem: Problem, splits: int) -> int:
    """Workspace for the partial sums of the splits."""
    return blocks(config, problem) * splits * config["BM"] * config["BN"] * problem.itemsize


def split_fits(config: Config, problem: Problem) -> bool:
    """Whether the counters suffice and the partial sums are at most 64 MiB."""
    return config["SPLIT_K"] == 1 or (
        counters(config, problem) <= COUNTERS and partials_bytes(config, problem, config["SPLIT_K"]) <= PARTIALS_BYTES
    )


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether a grid can have a block for each split of each tile."""
    return blocks(config, problem) * config["SPLIT_K"] <= MAX_GRID


def order_matters(config: Config, problem: Problem, device: Device) -> bool:
    """Whether tiles are not grouped, or more than run at once."""
    return config["GROUP_M"] == 1 or blocks(config, problem) > 2 * device.limits.sms


def splits_needed(config: Config, problem: Problem, device: Device) -> bool:
    """Whether k is not split, or its blocks are few waves."""
    split = config["SPLIT_K"]
    return split == 1 or blocks(config, problem) * split <= WAVES * config["MIN_BLOCKS"] * device.limits.sms


def splits_even(config: Config, problem: Problem, _: Device) -> bool:
    """Whether SPLIT_K splits a config's k tiles evenly."""
    return is_even_split(k_tiles(config, problem), config["SPLIT_K"])


@cache
def is_even_split(count: int, split: int) -> bool:
    """Whether `count` k tiles make `split` splits that are hardly ever empty and not too short, or one."""
    per_split = -(-count // split)
    return split == 1 or (per_split >= FEWEST_K_TILES and -(-count // per_split) >= NOT_EMPTY * split)


def cluster_exists(config: Config, problem: Problem, device: Device) -> bool:
    """Whether no cluster shares k, or the device has clusters and room for the blocks of all tiles'."""
    shares = config["CLUSTER_K"] * config["SPLIT_K"]
    has_room = blocks(config, problem) * shares <= WAVES * device.limits.sms
    return config["CLUSTER_K"] == 1 or (has_room and device.capability >= CLUSTERS_SINCE)


def cluster_divides(config: Config, problem: Problem, _: Device) -> bool:
    """Whether each block of a cluster has enough k tiles."""
    shares = config["CLUSTER_K"] * config["SPLIT_K"]
    return config["CLUSTER_K"] == 1 or is_shared_evenly(k_tiles(config, problem), shares)


@cache
def is_shared_evenly(count: int, blocks: int) -> bool:
    """Whether hardly any of the blocks of clusters has no k tile of `count`, and the others have enough."""
    own = -(-count // blocks)
    return own >= FEWEST_IN_CLUSTER and -(-count // own) >= NOT_EMPTY * blocks


def shared_once(config: Config, _: Problem, __: Device) -> bool:
    """Whether k is not shared in clusters, or neither in splits nor by stream-K."""
    return config["CLUSTER_K"] == 1 or (config["SPLIT_K"] == 1 and config["STREAM_K_SMS"] == 0)


def received_rows(parts: int, rows: int) -> int:
    """Of `rows` rows of partial sums, those that a cluster's other blocks send to the one with most of them to add."""
    return -(-rows // parts) * (parts - 1)


def received_bytes(parts: int, rows: int, row_bytes: int) -> int:
    """Bytes that a cluster's blocks send to one of them, rows of all its threads, with the mbarrier that counts them.

    As in common/cluster_reduce.h.
    """
    return received_rows(parts, rows) * row_bytes + MBARRIER_BYTES if parts > 1 else 0


def reduce_step(file: str, problem: Problem, splits: int, each_bytes: int, macros: tuple[tuple[str, str], ...]) -> Step:
    """The launch that sums the partial sums of all splits, of `each_bytes` for each batch and split."""
    reducers = min(MOST_REDUCERS, 1 << (splits.bit_length() - 1))
    build = Build("split_k_reduce", source(file), "split_k_reduce", (*macros, ("REDUCERS", str(reducers))))
    grid = problem.batch * -(-each_bytes // (REDUCE_THREADS // reducers * VECTOR_BYTES))
    return Step(build, grid, (REDUCE_THREADS, 1))


def accumulation(problem: Problem) -> Launch:
    """The launch that adds a buffer of C's sizes, its A, to C of a float32 or float64 problem without a batch."""
    alone = Problem(problem.m, problem.n, 1, dtype=problem.dtype)
    build = Build("accumulate", source(ACCUMULATE), "accumulate", dtype_macros(alone))
    grid = -(-alone.c_bytes // ACCUMULATED_BYTES)
    return Launch("accumulate", Config(()), alone, build, grid, (REDUCE_THREADS, 1), 0)
