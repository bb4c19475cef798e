"""The space of gemv: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.gemv.plan import (
    SHORT_SIDES,
    is_long_by_k,
    is_long_n,
    long_side,
    long_threads,
    registers,
    registers_of_step,
    shared_bytes,
    short_side,
    step,
    threads,
)
from kernels.problem import Problem
from kernels.rules import MAX_GRID, VECTOR_BYTES, blocks, covering_tile, registers_fit, shared_fits, threads_fit
from kernels.space import Config, Space
from kernels.split_k import CLUSTERS, CLUSTERS_SINCE

FEWEST, MOST = 64, 1024
LONG_SIDES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# What neighbouring threads read at once of a long operand that is not contiguous along k: a sector.
SECTOR_BYTES: Final = 32
# Registers of the steps that a thread has in flight at most.
IN_FLIGHT: Final = 72


def _lies(config: Config, problem: Problem, _: Device) -> bool:
    return config["LONG_N"] == is_long_n(problem)


def _covers_short(config: Config, problem: Problem, _: Device) -> bool:
    return short_side(config) == covering_tile(min(problem.m, problem.n), SHORT_SIDES)


def _long_fits(config: Config, problem: Problem, _: Device) -> bool:
    long = long_side(config)
    return long in LONG_SIDES and (long == 1 or long < 2 * max(problem.m, problem.n))


def widest(config: Config, problem: Problem) -> int:
    """Elements of the long operand that a thread can load at once, whatever row they are of."""
    row = problem.k if is_long_by_k(config, problem) else max(problem.m, problem.n)
    return next(each for each in (8, 4, 2, 1) if each * problem.itemsize <= VECTOR_BYTES and row % each == 0)


def _vectors(config: Config, problem: Problem, _: Device) -> bool:
    vector, own = config["VECTOR"], config["EACH_LONG"]
    return vector in {1, widest(config, problem)} and (is_long_by_k(config, problem) or own % vector == 0)


def _thread_tile(config: Config, problem: Problem, _: Device) -> bool:
    in_flight = config["UNROLL"] * registers_of_step(config, problem)
    return config["EACH_LONG"] <= long_side(config) and (config["UNROLL"] == 1 or in_flight <= IN_FLIGHT)


def _coalesced(config: Config, problem: Problem, _: Device) -> bool:
    if is_long_by_k(config, problem):
        return step(config, problem) * problem.itemsize >= SECTOR_BYTES
    together = long_threads(config) * config["VECTOR"] * problem.itemsize
    return together >= SECTOR_BYTES or long_side(config) >= max(problem.m, problem.n)


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    """Half of the threads at least have work, and at that more than one step where they unroll several."""
    k = -(-problem.k // config["CLUSTER_K"])
    alone = threads(config) == FEWEST or config["SLICE_K"] == 1
    return (alone or step(config, problem) < 2 * k) and (
        config["UNROLL"] == 1 or step(config, problem) * config["UNROLL"] < 2 * k
    )


def _cluster(config: Config, problem: Problem, device: Device) -> bool:
    if config["CLUSTER_K"] == 1:
        return True
    few = blocks(config, problem) * config["CLUSTER_K"] <= 4 * max(device.limits.sms, 1)
    return device.capability >= CLUSTERS_SINCE and few


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem) * config["CLUSTER_K"] <= MAX_GRID


_TILE: Final = ("LONG_N", "BM", "BN", "EACH_LONG")
_RULES: Final = {
    "a tile that lies along C's short side": (_lies, ("LONG_N",)),
    "a tile whose short side is not C's, or the least that covers it": (_covers_short, ("LONG_N", "BM", "BN")),
    "a tile at least twice as long as C, or of no power of two": (_long_fits, ("LONG_N", "BM", "BN")),
    "vectors that are neither single elements nor as long as rows allow": (_vectors, ("LONG_N", "EACH_LONG", "VECTOR")),
    "a thread tile longer than the tile, or more loads in flight than registers hold": (
        _thread_tile,
        (*_TILE, "VECTOR", "UNROLL"),
    ),
    "fewer threads a block than 64, or more than 1,024": (threads_fit(threads, FEWEST, MOST), (*_TILE, "SLICE_K")),
    "coalesced reads of less than a sector": (_coalesced, (*_TILE, "SLICE_K", "VECTOR")),
    "more threads or steps along k than k fills": (
        _k_fills,
        (*_TILE, "SLICE_K", "VECTOR", "UNROLL", "CLUSTER_K"),
    ),
    "clusters before sm_90, or of more blocks than two waves": (_cluster, ("BM", "BN", "CLUSTER_K")),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        (*_TILE, "SLICE_K", "CLUSTER_K"),
    ),
    "more registers a thread than there are": (
        registers_fit(registers, threads),
        (*_TILE, "SLICE_K", "VECTOR", "UNROLL"),
    ),
    "more than 2^31 - 1 blocks": (_grid_fits, ("BM", "BN", "CLUSTER_K")),
}
_SIDES: Final = tuple(sorted({*SHORT_SIDES, *LONG_SIDES}))
SPACE: Final = Space(
    parameters={
        "LONG_N": (0, 1),
        "BM": _SIDES,
        "BN": _SIDES,
        "EACH_LONG": (1, 2, 4, 8),
        "SLICE_K": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        "VECTOR": (1, 2, 4, 8),
        "UNROLL": (1, 2, 4, 8, 16),
        "CLUSTER_K": CLUSTERS,
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
