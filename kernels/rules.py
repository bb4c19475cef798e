"""Rules that several kernels have: what of a config fits a device, and how many blocks a grid has.

Most are made of a kernel's own count: of a block's threads, its bytes of shared memory, a thread's registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config, Rule

# Blocks of a grid's first dimension (CUDA C++ Programming Guide, "Technical Specifications").
MAX_GRID: Final = 2**31 - 1
WARP: Final = 32
# Registers are given to a thread in eights (CUDA Occupancy Calculator).
REGISTERS_AT_ONCE: Final = 8
Threads: TypeAlias = Callable[[Config], int]
Count: TypeAlias = Callable[[Config, Problem], int]


def blocks(config: Mapping[str, int], problem: Problem) -> int:
    """Blocks of the one-dimensional grid: one for each BM x BN tile of each batch's C."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether a grid with a block for each tile has at most 2^31 - 1 blocks."""
    return blocks(config, problem) <= MAX_GRID


def threads_fit(threads: Threads, least: int = 1, most: int = MAX_GRID) -> Rule:
    """Whether a block has at least and at most so many threads, and no more than the device allows."""
    return lambda config, _, device: least <= threads(config) <= min(most, device.limits.threads)


def shared_fits(shared_bytes: Count) -> Rule:
    """Whether a block's shared memory is within the device's limit."""
    return lambda config, problem, device: shared_bytes(config, problem) <= device.limits.shared_bytes


def registers_granted(threads: Threads) -> Callable[[Config, Device], int]:
    """Registers that a thread may have so that an SM holds MIN_BLOCKS blocks; 0 where the device has none."""

    def of(config: Config, device: Device) -> int:
        each = device.limits.registers_per_sm // (-(-threads(config) // WARP) * WARP * config["MIN_BLOCKS"])
        return min(each // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE, device.limits.registers_per_thread)

    return of


def registers_fit(registers: Count, threads: Threads) -> Rule:
    """Whether a thread has the registers that it needs; where the device has none, no one asks."""
    own = registers_granted(threads)

    def fit(config: Config, problem: Problem, device: Device) -> bool:
        return not device.limits.registers_per_sm or registers(config, problem) <= own(config, device)

    return fit


def bound_binds(threads: Threads) -> Rule:
    """Whether MIN_BLOCKS lowers the registers that a thread may have."""
    own = registers_granted(threads)
    return lambda config, _, device: (
        config["MIN_BLOCKS"] == 1 or 0 < own(config, device) < device.limits.registers_per_thread
    )


def blocks_fit(threads: Threads, shared_bytes: Count) -> Rule:
    """Whether an SM has the threads and the shared memory for MIN_BLOCKS blocks."""

    def fit(config: Config, problem: Problem, device: Device) -> bool:
        limits, held = device.limits, config["MIN_BLOCKS"]
        shared = held * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
        return held == 1 or (shared <= limits.shared_bytes_per_sm and held * threads(config) <= limits.threads_per_sm)

    return fit
