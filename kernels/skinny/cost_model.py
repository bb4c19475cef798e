"""skinny's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from math import ceil
from typing import Final

from kernels.cost_model import CLOCK
from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import FLOAT_BYTES, VECTOR_BYTES, blocks
from kernels.skinny.plan import (
    accumulator_packs,
    bytes_in_flight,
    coalesced_bytes,
    each_long,
    has_ring,
    is_long_by_k,
    k_in_flight,
    k_step,
    loads_of_vector,
    long_side,
    plan,
    short_side,
    threads,
    vector,
)
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 1,865 times of 273 shapes on an H200. Seconds: first loads and last
# stores of the blocks that run at once, what sums of slices take to the cache and back, once or twice, an access to
# shared memory that waits for none before it, and one in its turn.
STARTING: Final = 2e-6
LEAVING: Final = 1.38e-6
MEETING: Final = 3.22e-10
TAKING: Final = 3.98e-9
# Of what memory gives, one SM gets so much, and of all SMs so many get all.
ONE_GETS: Final = 0.0113
BUSY: Final = 0.273
# Memory gives so much where less than a whole line is read at once. It is kept half as busy as it can be by so many
# bytes under way on an SM.
PARTS: Final = 0.746
HALF_BUSY: Final = 5830
LINE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
# Instructions of a step beside FMAs: one for each pack of either operand that is read, so many for each copy of the
# long operand and of the short one, for each product where elements are converted, and in all. So many warps of a
# scheduler issue half of what they could. What is not the longest costs so much.
COPYING: Final = 5.34
SHORT_COPYING: Final = 19.3
CONVERTED: Final = 2.76
AROUND: Final = 0.457
HALF_ISSUED: Final = 0.308
BESIDE: Final = 0.405
# Clocks that a thread takes for each copy of the first k tile of the short operand, for a step, and in it for each
# product and each load, however few others there are.
FILL_CLOCKS: Final = 70.2
STEP_CLOCKS: Final = 8.38
FMA_CLOCKS: Final = 1.02
LOAD_CLOCKS: Final = 12.9


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch: bytes of memory, instructions, and the reduction of split k."""
    limits, planned, size = device.limits, plan(config, problem), problem.itemsize
    reads = problem.batch * problem.k * size * max(problem.m, problem.n)
    at_once = min(max(planned.grid / max(limits.sms, 1), 1), config["MIN_BLOCKS"])
    together = coalesced_bytes(config, problem) / loads_of_vector(config, problem)
    bandwidth = limits.bandwidth * (1 if together >= LINE_BYTES else PARTS) / _sectors(config, problem, together)
    # A step that is being added is no longer under way: half of one on average.
    ahead = at_once * bytes_in_flight(config, problem) * (1 - 1 / (2 * config["STAGES"]))
    bandwidth *= min(1.0, planned.grid / max(limits.sms, 1) / BUSY)
    waves = ceil(planned.grid / (max(limits.sms, 1) * config["MIN_BLOCKS"]))
    starting = STARTING * waves
    parts = (
        reads / bandwidth * (1 + HALF_BUSY / ahead),
        _issuing(config, problem, device, at_once, planned.grid),
    )
    splits, fan, _ = planned.scalars[:3]
    starting += waves * _alone(config, problem, splits) / CLOCK
    ending = _ending(config, problem, device, splits, fan, waves)
    return starting + ending + (1 - BESIDE) * max(parts) + BESIDE * sum(parts)


def _issuing(config: Config, problem: Problem, device: Device, at_once: float, grid: int) -> float:
    """Seconds of issuing all instructions of a grid."""
    limits, short, each = device.limits, short_side(config), each_long(config)
    products = short * each * vector(problem)
    copying = COPYING * loads_of_vector(config, problem) + SHORT_COPYING * _short_copies(config, problem) / each
    converted = 0 if has_ring(problem) else CONVERTED * products
    fraction = products / (products + converted + short + (1 + copying) * each + AROUND)
    warps = at_once * threads(config) / 128
    sms = max(limits.sms, 1)
    busy = grid / (sms * ceil(grid / sms))
    peak = (
        (limits.peak64 if problem.dtype == "float64" else limits.peak) * fraction * busy * warps / (warps + HALF_ISSUED)
    )
    depth = max(problem.k, k_in_flight(config, problem))  # stages are filled with zeros past the end of k
    return 2 * blocks(config, problem) * short * long_side(config) * depth / peak


def _short_copies(config: Config, problem: Problem) -> float:
    """Copies of the short operand that a thread makes for a step: of a vector where both operands' lie along k."""
    by_k = not problem.trans_a if config["BM"] < config["BN"] else problem.trans_b
    wide = by_k and problem.k % vector(problem) == 0 and problem.itemsize >= FLOAT_BYTES
    each = short_side(config) * each_long(config) / long_side(config)
    return each if wide else each * vector(problem)


def _sectors(config: Config, problem: Problem, together: float) -> float:
    """Sectors that are read for each one's bytes: pieces of ragged rows across k touch one more, used by no other."""
    if is_long_by_k(config, problem) or loads_of_vector(config, problem) == 1:
        return 1
    return 1 + (SECTOR_BYTES - problem.itemsize) / together


def _ending(config: Config, problem: Problem, device: Device, splits: int, fan: int, waves: int) -> float:
    """Seconds in which sums of a block's threads, and of slices of k, come together."""
    packs = accumulator_packs(config, problem)
    given = short_side(config) * each_long(config) * threads(config) / 32 * config["MIN_BLOCKS"]
    joining = waves * (MEETING * given + TAKING * packs * vector(problem) * config["SLICE_K"])
    left = packs * threads(config) * VECTOR_BYTES * (min(splits, fan) + -(-splits // fan))
    return joining + (splits > 1) * (LEAVING * (1 + (splits > fan)) + left / (device.limits.bandwidth * ONE_GETS))


def _alone(config: Config, problem: Problem, splits: int) -> float:
    """Clocks that a thread takes for its first k tile and its steps along k if it is alone."""
    own = each_long(config)
    steps = ceil(problem.k / (splits * k_step(config, problem)))
    loads = own * loads_of_vector(config, problem)
    products = short_side(config) * own * vector(problem)
    first = min(config["BK"] / k_step(config, problem), steps) * _short_copies(config, problem)
    return FILL_CLOCKS * first + steps * (STEP_CLOCKS + FMA_CLOCKS * products + LOAD_CLOCKS * loads)
