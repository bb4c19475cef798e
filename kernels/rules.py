"""Rules that several kernels share: whether a config fits a device's limits.

Most take the kernel's own functions: threads of a block, bytes of shared memory, registers of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config, Rule

# Blocks of a grid's first dimension (CUDA C++ Programming Guide, "Technical Specifications").
MAX_GRID: Final = 2**31 - 1
# Bytes of shared memory that a binary may declare (as above).
DECLARED_BYTES: Final = 48 * 1024
WARP: Final = 32
# The widest load of a thread, and the line of the cache by which places in a workspace are counted.
VECTOR_BYTES: Final = 16
LINE_BYTES: Final = 128
# Registers are given to a thread in eights (CUDA Occupancy Calculator).
REGISTERS_AT_ONCE: Final = 8
FLOAT_BYTES: Final = 4
# The share of SMs that clusters of so many blocks occupy at once, each within one GPC, whose SMs are not as many on all
# GPUs of a kind: of five H200s some took longer from the 31st cluster of four blocks and from the 15th of eight.
CLUSTERED_SMS: Final = {4: 0.91, 8: 0.85}
# What a side of three times a power of two covers at most of what the power of two below it does.
MOST_PAST: Final = 1.05
Threads: TypeAlias = Callable[[Config], int]
Count: TypeAlias = Callable[[Config, Problem], int]


def blocks(config: Mapping[str, int], problem: Problem) -> int:
    """Blocks of the one-dimensional grid: one for each BM x BN tile of each batch's C."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def real_bytes(problem: Problem) -> int:
    """Bytes of an element as it is added up: those of 16 bits are float32 then (common/dtype.h)."""
    return max(problem.itemsize, FLOAT_BYTES)


def covering_tile(side: int, tiles: Sequence[int]) -> int:
    """The shortest of the ascending `tiles` of which the fewest cover a side of C."""
    part = -(-side // -(-side // tiles[-1]))
    return next(each for each in tiles if each >= part)


def holds_all_of_k(depths: Sequence[int]) -> Rule:
    """Whether BK is the least of the ascending `depths` that holds all of k."""
    return lambda config, problem, _: config["BK"] == next((depth for depth in depths if depth >= problem.k), None)


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether a grid with a block for each tile has at most 2^31 - 1 blocks."""
    return blocks(config, problem) <= MAX_GRID


def warps_divide(config: Config, _: Problem, __: Device) -> bool:
    """Whether a tile is a multiple of its warps' tiles, WM x WN."""
    return config["BM"] % config["WM"] == 0 and config["BN"] % config["WN"] == 0


def sides_cover(config: Config, problem: Problem, _: Device) -> bool:
    """Whether sides of 48, 96 or 192 cover C about as closely as the powers of two below them."""
    return _covers(config["BM"], problem.m) and _covers(config["BN"], problem.n)


def _covers(side: int, size: int) -> bool:
    if side & (side - 1) == 0:
        return True
    below = side // 3 * 2
    return -(-size // side) * side <= MOST_PAST * (-(-size // below) * below)


def threads_fit(threads: Threads, least: int = 1, most: int = MAX_GRID) -> Rule:
    """Whether a block has `least` to `most` threads, and no more than the device allows."""
    return lambda config, _, device: least <= threads(config) <= min(most, device.limits.threads)


def shared_fits(shared_bytes: Count) -> Rule:
    """Whether a block's shared memory is within the device's limit."""
    return lambda config, problem, device: shared_bytes(config, problem) <= device.limits.shared_bytes


def registers_granted(threads: Threads) -> Callable[[Config, Device], int]:
    """The most registers of a thread if MIN_BLOCKS blocks are to fit on an SM; 0 if the device has no registers.

    A kernel without MIN_BLOCKS wants one.
    """

    def of(config: Config, device: Device) -> int:
        each = device.limits.registers_per_sm // (-(-threads(config) // WARP) * WARP * config.get("MIN_BLOCKS", 1))
        return min(each // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE, device.limits.registers_per_thread)

    return of


def registers_fit(registers: Count, threads: Threads) -> Rule:
    """Whether a thread has the registers that it needs, or the device has none."""
    own = registers_granted(threads)

    def fit(config: Config, problem: Problem, device: Device) -> bool:
        return not device.limits.registers_per_sm or registers(config, problem) <= own(config, device)

    return fit


def bound_binds(threads: Threads) -> Rule:
    """Whether MIN_BLOCKS is 1 or limits the registers of a thread."""
    own = registers_granted(threads)
    return lambda config, _, device: (
        config["MIN_BLOCKS"] == 1 or 0 < own(config, device) < device.limits.registers_per_thread
    )


def blocks_fit(threads: Threads, shared_bytes: Count) -> Rule:
    """Whether MIN_BLOCKS blocks fit on an SM by threads and shared memory."""

    def fit(config: Config, problem: Problem, device: Device) -> bool:
        limits, min_blocks = device.limits, config["MIN_BLOCKS"]
        shared = min_blocks * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
        return min_blocks == 1 or (
            shared <= limits.shared_bytes_per_sm and min_blocks * threads(config) <= limits.threads_per_sm
        )

    return fit


def depth(config: Config, _: Problem) -> int:
    """The most of k that a tile has, where it has all of it at once: its BK."""
    return config["BK"]
