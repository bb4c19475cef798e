"""The space of rank_k: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.rank_k.plan import registers, shared_bytes, threads, warp_tile
from kernels.rules import (
    VECTOR_BYTES,
    WARP,
    blocks_fit,
    bound_binds,
    grid_fits,
    holds_all_of_k,
    real_bytes,
    registers_granted,
    shared_fits,
    threads_fit,
)
from kernels.space import Config, Space

# Threads of a block; fewer than two warps, and more than sixteen, were not tried.
MOST_THREADS: Final = 512
LEAST_SIDE: Final = 32
DEPTHS: Final = (4, 8, 16, 24, 32, 48, 64, 96, 128)
# Registers more that ptxas takes for sm_120, and whatever follows it, where a thread stores four elements at once.
LATEST: Final = 120
FOUR: Final = 4
FOR_FOUR: Final = 9
# Sums of a thread: fewer are not worth its reads, more leave no registers.
SUMS: Final = (8, 64)


def widest_run(columns: int, problem: Problem) -> int:
    """The most of a thread's columns that it may have side by side and store at once, whatever row they are of."""
    most = min(columns, VECTOR_BYTES // real_bytes(problem))
    return max(run for run in (1, 2, 4) if run <= most and problem.n % run == 0)


def _run(config: Config, problem: Problem, _: Device) -> bool:
    return config["RUN_N"] in {1, widest_run(config["TN"], problem)}


def _warps_divide(config: Config, _: Problem, __: Device) -> bool:
    rows, columns = warp_tile(config)
    return config["BM"] % rows == 0 and config["BN"] % columns == 0


def _sums(config: Config, _: Problem, __: Device) -> bool:
    return SUMS[0] <= config["TM"] * config["TN"] <= SUMS[1]


def _registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    more = FOR_FOUR if device.capability >= LATEST and config["RUN_N"] == FOUR else 0
    most = registers_granted(threads)(config, device)
    return not device.limits.registers_per_sm or registers(config, problem) + more <= most


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] == LEAST_SIDE or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] == LEAST_SIDE or config["BN"] < 2 * problem.n


_TILE: Final = ("BM", "BN", "TM", "TN")
SPACE: Final = Space(
    parameters={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128, 256),
        "BK": DEPTHS,
        "TM": (4, 8, 16),
        "TN": (2, 4, 8),
        "LANES_N": (8, 16, 32),
        "RUN_N": (1, 2, 4),
        "MIN_BLOCKS": (1, 2, 4),
    },
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 blocks": grid_fits,
        "a BK other than the least that holds all of k": holds_all_of_k(DEPTHS),
        "fewer sums of a thread than its reads are worth, or more than leave registers": _sums,
        "fewer threads a block than two warps have, or more than 512": threads_fit(threads, 2 * WARP, MOST_THREADS),
        "a tile that is no multiple of its warps' tiles": _warps_divide,
        "a RUN_N of neither one nor as many elements as C's rows let a thread store at once": _run,
        "MIN_BLOCKS that limit no registers": bound_binds(threads),
        "more shared memory a block than the device allows": shared_fits(shared_bytes),
        "more registers a thread than there are": _registers_fit,
        "more blocks on an SM than its threads and shared memory allow": blocks_fit(threads, shared_bytes),
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 blocks": ("BM", "BN"),
        "a BK other than the least that holds all of k": ("BK",),
        "fewer sums of a thread than its reads are worth, or more than leave registers": ("TM", "TN"),
        "fewer threads a block than two warps have, or more than 512": _TILE,
        "a tile that is no multiple of its warps' tiles": (*_TILE, "LANES_N"),
        "a RUN_N of neither one nor as many elements as C's rows let a thread store at once": ("TN", "RUN_N"),
        "MIN_BLOCKS that limit no registers": (*_TILE, "MIN_BLOCKS"),
        "more shared memory a block than the device allows": ("BM", "BN", "BK"),
        "more registers a thread than there are": (*_TILE, "RUN_N", "MIN_BLOCKS"),
        "more blocks on an SM than its threads and shared memory allow": (*_TILE, "BK", "MIN_BLOCKS"),
    },
)
