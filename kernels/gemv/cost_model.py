"""gemv's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import ceil
from typing import Final

from kernels.cost_model import CLOCK
from kernels.device import Device
from kernels.gemv.plan import (
    depth,
    grid,
    loads,
    loads_short,
    registers,
    shared_bytes,
    short_side,
    step,
    threads,
    warps_of_k,
)
from kernels.problem import Problem
from kernels.rules import blocks
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 186 times of 30 shapes on an H200, but for MEMORY, which larger ones
# told: seconds of a launch whose loads are all in flight together, of loads that wait for others, of a wave of blocks,
# of warps and of a cluster's blocks that add up their sums, and of each of a thread's sums.
LAUNCH: Final = 1.42e-6
ROUND: Final = 0.38e-6
WAVE: Final = 1.3e-6
JOINED_WARPS: Final = 0.13e-6
JOINED_BLOCKS: Final = 0.56e-6
SUM: Final = 0.053e-6
# Instructions of a load of the long operand and of one of the short, and of each product and each element, as they are
# issued: a warp's in a cycle of each of an SM's four parts.
LOAD: Final = 3.0
LOAD_SHORT: Final = 3.1
PRODUCT: Final = 0.91
ELEMENT: Final = 2.2
# Clocks that a thread takes for each of its loads and of its products, however few others there are.
WAIT_LOAD: Final = 4.4
WAIT_PRODUCT: Final = 0.95
# Of memory's bandwidth, that the long operand comes by, and the short one, which blocks after the first find in the
# cache. What takes no longest costs so much of its time.
MEMORY: Final = 1.26
CACHE: Final = 4.9
BESIDE: Final = 0.61
# What an SM holds at once, if its limits are not known.
HELD: Final = 2


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch: memory, instructions, loads that wait for others, and sums that meet."""
    sms, clusters = max(device.limits.sms, 1), config["CLUSTER_K"]
    rounds = ceil(-(-problem.k // clusters) / (step(config, problem) * config["UNROLL"]))
    waves = ceil(grid(config, problem) / (sms * _held(config, problem, device)))
    parts = (
        _reading(config, problem, device),
        _issuing(config, problem, device) * rounds * config["UNROLL"],
        waves * (rounds - 1) * ROUND + (waves - 1) * WAVE,
    )
    meeting = JOINED_WARPS * (warps_of_k(config, problem) > 1) + JOINED_BLOCKS * (clusters > 1)
    meeting += SUM * short_side(config) * config["EACH_LONG"]
    alone = waves * rounds * config["UNROLL"] * _waits(config, problem) / CLOCK
    return LAUNCH + meeting + alone + (1 - BESIDE) * max(parts) + BESIDE * sum(parts)


def _reading(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which the operands come, the short one to each block anew."""
    long = problem.batch * max(problem.m, problem.n) / MEMORY
    short = blocks(config, problem) * min(problem.m, problem.n) / CACHE
    return problem.k * problem.itemsize * (long + short) / device.limits.bandwidth


def _issuing(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which an SM's part issues what a step of all its blocks' threads takes."""
    of_x, deep, short = loads(config, problem), depth(config, problem), short_side(config)
    elements = of_x * config["VECTOR"]
    instructions = of_x * LOAD + loads_short(config, problem) * LOAD_SHORT
    instructions += elements * short * PRODUCT + (elements + short * deep) * ELEMENT
    sms = max(device.limits.sms, 1)
    lanes = threads(config) * ceil(grid(config, problem) / sms)
    return instructions * lanes * sms / (device.limits.peak / 2)


def _waits(config: Config, problem: Problem) -> float:
    """Clocks of a thread in a step if it is alone."""
    of_x = loads(config, problem)
    products = of_x * config["VECTOR"] * short_side(config)
    return WAIT_LOAD * (of_x + loads_short(config, problem)) + WAIT_PRODUCT * products


def _held(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that an SM holds at once."""
    limits, count, shared = device.limits, threads(config), shared_bytes(config, problem)
    if not limits.threads_per_sm:
        return HELD
    own = min(registers(config, problem), limits.registers_per_thread, limits.registers_per_sm // count)
    by_shared = limits.shared_bytes_per_sm // (shared + limits.shared_bytes_reserved or 1)
    return max(1, min(limits.threads_per_sm // count, limits.registers_per_sm // (own * count), by_shared))
