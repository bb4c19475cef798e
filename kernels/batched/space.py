"""The space of batched: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.batched.plan import blocks, product_threads, register_limit, registers, shared_bytes, threads, vector
from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import MAX_GRID, WARP, blocks_fit, bound_binds, shared_fits, threads_fit
from kernels.space import Config, Space

# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
# A block of more threads waits for more copies before its first product, and for more threads at each barrier.
MOST_THREADS: Final = 256
# So many registers for sums leave too few beside them on some architecture: NVRTC spills.
LARGE: Final = 128


def fits_vectors(config: Mapping[str, int], problem: Problem) -> bool:
    """Whether a thread reads whole vectors of 16 bytes of B, and of a transposed A."""
    return config["TN"] >= vector(problem) and config["TM"] >= (vector(problem) if problem.trans_a else 1)


def _threads_down_and_across(config: Config, _: Problem, __: Device) -> bool:
    return config["BM"] >= 2 * config["TM"] and config["BN"] >= config["TN"]


def _vectors_divide(config: Config, problem: Problem, _: Device) -> bool:
    turn = product_threads(config) * vector(problem)
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _not_beyond(config: Config, problem: Problem, _: Device) -> bool:
    sides = {"BM": problem.m, "BN": problem.n, "BK": problem.k}
    return all(config[name] < 2 * max(side, 8) for name, side in sides.items())


def _one_tile(config: Config, problem: Problem, _: Device) -> bool:
    whole = config["BM"] >= problem.m and config["BN"] >= problem.n
    return config["BATCH_PER_BLOCK"] == 1 or (
        whole and (config["BATCH_PER_BLOCK"] < 2 * problem.batch or threads(config) <= WARP)
    )


def _stages(config: Config, problem: Problem, device: Device) -> bool:
    return config["STAGES"] == 1 or (
        (config["STAGES"] - 1) * config["BK"] < problem.k and device.capability >= COPIES_SINCE
    )


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem) <= MAX_GRID


def sums_and_registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    """Whether sums leave registers for the rest, and a thread has as many as it needs."""
    few = config["TM"] * config["TN"] * problem.itemsize // 4 < LARGE
    return not device.limits.registers_per_sm or (few and registers(config, problem) <= register_limit(config, device))


BOUND_BINDS: Final = bound_binds(threads)
ROOM_FOR_BLOCKS: Final = blocks_fit(threads, shared_bytes)
TILE: Final = ("BM", "BN", "TM", "TN")
SPACE: Final = Space(
    parameters={
        "BM": (8, 16, 32, 64, 128),
        "BN": (8, 16, 32, 64, 128),
        "TM": (2, 4, 8),
        "TN": (2, 4, 8, 16),
        "BK": (8, 16, 32, 64, 128),
        "BATCH_PER_BLOCK": (1, 2, 4, 8, 16, 32),
        "STAGES": (1, 2, 3, 4),
        "MIN_BLOCKS": (1, 2, 4, 8),
    },
    rules={
        "a tile or a k tile at least twice as large as the problem": _not_beyond,
        "a thread tile narrower than 16 bytes": lambda config, problem, _: fits_vectors(config, problem),
        "fewer than two threads down a tile, or none across": _threads_down_and_across,
        "more products a block than there are, or than one tile each": _one_tile,
        "fewer threads a block than a warp has, or more than synchronise well": threads_fit(
            threads, WARP, MOST_THREADS
        ),
        "copies of 16 bytes that do not divide evenly among the threads": _vectors_divide,
        "more stages than k tiles, or where copies are not asynchronous": _stages,
        "more shared memory a block than the device allows": shared_fits(shared_bytes),
        "more than 2^31 - 1 blocks": _grid_fits,
        "more registers a thread than there are": sums_and_registers_fit,
        "MIN_BLOCKS that does not limit registers": BOUND_BINDS,
        "more blocks on an SM than its threads and shared memory allow": ROOM_FOR_BLOCKS,
    },
    reads={
        "a tile or a k tile at least twice as large as the problem": ("BM", "BN", "BK"),
        "a thread tile narrower than 16 bytes": ("TM", "TN"),
        "fewer than two threads down a tile, or none across": TILE,
        "more products a block than there are, or than one tile each": (*TILE, "BATCH_PER_BLOCK"),
        "fewer threads a block than a warp has, or more than synchronise well": (*TILE, "BATCH_PER_BLOCK"),
        "copies of 16 bytes that do not divide evenly among the threads": (*TILE, "BK"),
        "more stages than k tiles, or where copies are not asynchronous": ("BK", "STAGES"),
        "more shared memory a block than the device allows": ("BM", "BN", "BK", "BATCH_PER_BLOCK", "STAGES"),
        "more than 2^31 - 1 blocks": ("BM", "BN", "BATCH_PER_BLOCK"),
        "more registers a thread than there are": (*TILE, "BATCH_PER_BLOCK", "MIN_BLOCKS"),
        "MIN_BLOCKS that does not limit registers": (*TILE, "BATCH_PER_BLOCK", "MIN_BLOCKS"),
        "more blocks on an SM than its threads and shared memory allow": (
            *TILE,
            "BK",
            "BATCH_PER_BLOCK",
            "STAGES",
            "MIN_BLOCKS",
        ),
    },
)
