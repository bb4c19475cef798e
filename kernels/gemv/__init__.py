"""gemv: C with a side of a few elements; both operands go straight into registers, and threads share k."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Final

from kernels.device import Device
from kernels.direct_double import DIRECT_DOUBLE
from kernels.direct_double import untuned_seconds as direct_double_seconds
from kernels.direct_tensor import DIRECT_TENSOR
from kernels.direct_tensor import untuned_seconds as direct_seconds
from kernels.gemv.plan import (
    SHORT_SIDES,
    depth,
    grid,
    loads,
    loads_short,
    plan,
    registers,
    shared_bytes,
    short_side,
    step,
    threads,
    warps_of_k,
)
from kernels.gemv.space import SPACE
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.rules import blocks
from kernels.space import Config

# What memory is read with the long operand, up to which it is the fastest untuned choice, each element of C's short
# side counted anew; a C of so few rows or columns is read as fast whatever its length.
READ_BYTES: Final = 40 * 10**6
FEWEST: Final = 2
# Seconds: of a launch whose loads are all in flight together, of loads that wait for others, of a wave of blocks, of
# warps and of a cluster's blocks that add up their sums, and of each of a thread's sums.
_LAUNCH: Final = 1.65e-6
_ROUND: Final = 0.42e-6
_WAVE: Final = 2.6e-6
_WARPS: Final = 0.27e-6
_CLUSTER: Final = 0.4e-6
_SUM: Final = 0.021e-6
# Instructions of a load of the long operand and of one of the short, and of each product and each element, as they are
# issued: a warp's in a cycle of each of an SM's four parts.
_LOAD: Final = 9.9
_LOAD_SHORT: Final = 3.5
_PRODUCT: Final = 2.2
_ELEMENT: Final = 2.4
# The caches give so much more than memory. What takes no longest costs so much of its time.
_CACHE: Final = 1.26
_BESIDE: Final = 0.45
# What an SM holds at once, if its limits are not known.
_HELD: Final = 2


def _held(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that an SM holds at once."""
    limits, count, shared = device.limits, threads(config), shared_bytes(config, problem)
    if not limits.threads_per_sm:
        return _HELD
    own = min(registers(config, problem), limits.registers_per_thread, limits.registers_per_sm // count)
    by_shared = limits.shared_bytes_per_sm // (shared + limits.shared_bytes_reserved or 1)
    return max(1, min(limits.threads_per_sm // count, limits.registers_per_sm // (own * count), by_shared))


def _issuing(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which an SM's part issues what a step of all its blocks' threads takes."""
    of_x, deep, short = loads(config, problem), depth(config, problem), short_side(config)
    elements = of_x * config["VECTOR"]
    instructions = of_x * _LOAD + loads_short(config, problem) * _LOAD_SHORT
    instructions += elements * short * _PRODUCT + (elements + short * deep) * _ELEMENT
    sms = max(device.limits.sms, 1)
    lanes = threads(config) * ceil(grid(config, problem) / sms)
    return instructions * lanes * sms / (device.limits.peak / 2)


def _seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch: memory, instructions, loads that wait for others, and sums that meet."""
    limits = device.limits
    long, short, clusters = max(problem.m, problem.n), min(problem.m, problem.n), config["CLUSTER_K"]
    rounds = ceil(-(-problem.k // clusters) / (step(config, problem) * config["UNROLL"]))
    waves = ceil(grid(config, problem) / (max(limits.sms, 1) * _held(config, problem, device)))
    read = problem.k * problem.itemsize * (problem.batch * long + blocks(config, problem) * short)
    parts = (
        read / (limits.bandwidth * _CACHE),
        _issuing(config, problem, device) * rounds * config["UNROLL"],
        waves * (rounds - 1) * _ROUND + (waves - 1) * _WAVE,
    )
    meeting = _WARPS * (warps_of_k(config, problem) > 1) + _CLUSTER * (clusters > 1)
    meeting += _SUM * short_side(config) * config["EACH_LONG"]
    return _LAUNCH + meeting + (1 - _BESIDE) * max(parts) + _BESIDE * sum(parts)


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """The legal config of the least seconds, or the space's first, which `launch` refuses."""
    legal = SPACE.legal(problem, device)
    return min(legal, key=lambda each: _seconds(each, problem, device), default=next(iter(SPACE)))


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether C has so few rows or columns that instructions do not count; or little to read, not for tensor cores."""
    short, long = min(problem.m, problem.n), max(problem.m, problem.n)
    if short <= FEWEST:
        return True
    if problem.batch * problem.k * long * problem.itemsize * short > READ_BYTES:
        return False
    own = _seconds(_default(problem, device), problem, device)
    if DIRECT_DOUBLE.covers(problem, device):
        return own <= direct_double_seconds(problem, device)
    return not DIRECT_TENSOR.covers(problem, device) or own <= direct_seconds(problem, device)


GEMV: Final = Kernel(
    name="gemv",
    summary="C with a side of a few elements: both operands straight into registers, k shared out among threads.",
    file="gemv/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=_seconds,
    dynamic_smem=True,
    sizes=Sizes(short_most=SHORT_SIDES[-1]),
    preferred_untuned=_preferred_untuned,
    shapes=f"a C with a side of at most {SHORT_SIDES[-1]}",
)
