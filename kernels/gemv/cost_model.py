"""gemv's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import ceil, log2
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
from kernels.rules import CLUSTERED_SMS, FLOAT_BYTES, WARP, blocks, real_bytes
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 2,771 times of 176 shapes on an H200. Seconds: of a launch whose loads
# are all in flight together, of loads that wait for others, of a wave of blocks, of each warp of a block, which begin
# and meet one after another, of a cluster's blocks that add up their sums (by 139 times since they send them by
# st.async), and of each word of sums that is written or added to another lane's.
LAUNCH: Final = 1.47e-6
ROUND: Final = 3.95e-7
WAVE: Final = 1.11e-6
STARTED: Final = 2.5e-8
JOINED_BLOCKS: Final = 2.73e-7
SUM: Final = 3.74e-9
# Seconds of a thread for each load and each product, which it issues one after another.
ALONE_LOAD: Final = 3.33e-9
ALONE_PRODUCT: Final = 8.34e-10
# Instructions of a load of the long operand and of one of the short, and of each product and each element, as they are
# issued: a warp's in a cycle of each of an SM's four parts.
LOAD: Final = 2.55
LOAD_SHORT: Final = 5.67
PRODUCT: Final = 1.52
ELEMENT: Final = 2.4
# What both operands seem to be read at, of memory's bandwidth, as some of them is in the cache; what one SM gets of
# that where others are done, beside an equal share; and what the caches send all blocks at.
OF_BANDWIDTH: Final = 1.23
OF_ONE: Final = 9.2
OF_CACHE: Final = 3.33
# What takes no longest costs so much of its time.
BESIDE: Final = 0.448
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
        waves * ((rounds - 1) * ROUND + rounds * _alone(config, problem)) + (waves - 1) * WAVE,
    )
    meeting = STARTED * threads(config) / WARP + JOINED_BLOCKS * (clusters > 1) + SUM * _sums(config, problem)
    return LAUNCH + meeting + (1 - BESIDE) * max(parts) + BESIDE * sum(parts)


def _sums(config: Config, problem: Problem) -> float:
    """Words of sums that a thread writes, and that it adds to other lanes' before it does and afterwards."""
    words, warps = real_bytes(problem) / FLOAT_BYTES, warps_of_k(config, problem)
    own, lanes = short_side(config) * config["EACH_LONG"], config["SLICE_K"] // warps
    taken = ceil(config["BM"] * config["BN"] * warps / threads(config))
    return words * (own * (1 + log2(lanes)) + taken * (1 + log2(warps)))


def _alone(config: Config, problem: Problem) -> float:
    """Seconds in which a thread issues its loads and products of a round, however few others there are."""
    own, each = loads(config, problem) + loads_short(config, problem), config["EACH_LONG"] * short_side(config)
    return config["UNROLL"] * (ALONE_LOAD * own + ALONE_PRODUCT * each * depth(config, problem))


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
