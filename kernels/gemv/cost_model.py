"""gemv's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import ceil
from typing import Final

from kernels.device import Device
from kernels.gemv.plan import (
    depth,
    grid,
    loads,
    loads_short,
    long_side,
    registers,
    shared_bytes,
    short_side,
    step,
    threads,
    warps_of_k,
)
from kernels.problem import Problem
from kernels.rules import CLUSTERED_SMS, blocks
from kernels.space import Config

# Seconds: of a launch whose loads are all in flight together, of loads that wait for others, of a wave of blocks, of
# warps and of a cluster's blocks that add up their sums, and of each of a thread's sums.
LAUNCH: Final = 1.65e-6
ROUND: Final = 0.42e-6
WAVE: Final = 2.6e-6
JOINED_WARPS: Final = 0.27e-6
JOINED_BLOCKS: Final = 0.4e-6
SUM: Final = 0.021e-6
# Instructions of a load of the long operand and of one of the short, and of each product and each element, as they are
# issued: a warp's in a cycle of each of an SM's four parts.
LOAD: Final = 9.9
LOAD_SHORT: Final = 3.5
PRODUCT: Final = 2.2
ELEMENT: Final = 2.4
# What both operands seem to be read at, of memory's bandwidth, as some of them is in the cache; what one SM gets of
# that where others are done, beside an equal share; and what the caches send all blocks at.
OF_BANDWIDTH: Final = 1.26
OF_ONE: Final = 2.0
OF_CACHE: Final = 5.0
# What takes no longest costs so much of its time.
BESIDE: Final = 0.45
# What an SM holds at once, if its limits are not known.
HELD: Final = 2


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch: memory, caches, instructions, loads that wait for others, and sums that meet."""
    clusters = config["CLUSTER_K"]
    rounds = ceil(-(-problem.k // clusters) / (step(config, problem) * config["UNROLL"]))
    waves = ceil(grid(config, problem) / _together(config, problem, device))
    sent = problem.k * problem.itemsize * blocks(config, problem) * (short_side(config) + long_side(config))
    parts = (
        _reading(config, problem, device),
        sent / (device.limits.bandwidth * OF_CACHE),
        _issuing(config, problem, device) * rounds * config["UNROLL"],
        waves * (rounds - 1) * ROUND + (waves - 1) * WAVE,
    )
    meeting = JOINED_WARPS * (warps_of_k(config, problem) > 1) + JOINED_BLOCKS * (clusters > 1)
    meeting += SUM * short_side(config) * config["EACH_LONG"]
    return LAUNCH + meeting + (1 - BESIDE) * max(parts) + BESIDE * sum(parts)


def _reading(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which operands are read: at an SM's own bandwidth where the last wave's blocks are on few of them."""
    read = problem.batch * problem.k * problem.itemsize * (problem.m + problem.n)
    count, together = grid(config, problem), _together(config, problem, device)
    last = count % together
    share = min(1, OF_ONE * last / max(device.limits.sms, 1)) if last else 1
    return read * (count - last + last / share) / count / (device.limits.bandwidth * OF_BANDWIDTH)


def _together(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that are resident on all SMs at once."""
    sms = int(device.limits.sms * CLUSTERED_SMS.get(config["CLUSTER_K"], 1))
    return max(sms, 1) * _held(config, problem, device)


def _issuing(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which an SM's part issues what a step of all its blocks' threads takes."""
    of_x, deep, short = loads(config, problem), depth(config, problem), short_side(config)
    elements = of_x * config["VECTOR"]
    instructions = of_x * LOAD + loads_short(config, problem) * LOAD_SHORT
    instructions += elements * short * PRODUCT + (elements + short * deep) * ELEMENT
    sms = max(device.limits.sms, 1)
    lanes = threads(config) * ceil(grid(config, problem) / sms)
    return instructions * lanes * sms / (device.limits.peak / 2)


def _held(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that an SM holds at once."""
    limits, count, shared = device.limits, threads(config), shared_bytes(config, problem)
    if not limits.threads_per_sm:
        return HELD
    own = min(registers(config, problem), limits.registers_per_thread, limits.registers_per_sm // count)
    by_shared = limits.shared_bytes_per_sm // (shared + limits.shared_bytes_reserved or 1)
    return max(1, min(limits.threads_per_sm // count, limits.registers_per_sm // (own * count), by_shared))
