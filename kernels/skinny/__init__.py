"""skinny: C with a short side; its long operand goes from memory into registers once, k is shared out among threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.packing import A, B, ragged
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, blocks, covering_tile
from kernels.skinny.plan import (
    SHORT_SIDES,
    accumulator_packs,
    bytes_in_flight,
    coalesced_bytes,
    each_long,
    has_ring,
    is_long_by_k,
    k_in_flight,
    loads_of_vector,
    long_side,
    plan,
    short_side,
    threads,
    vector,
)
from kernels.skinny.space import DEPTHS, LONG_SIDES, SPACE, STAGES
from kernels.space import Config

# This kernel suits a C whose short side is no longer.
SUITED: Final = 32
# Where the short side is longer, and there is pipelined, that is faster.
SHORT: Final = 16
PIPELINED_SINCE: Final = 80
# Bytes of a long operand below which others are faster untuned, but for so few rows or columns and a k above this,
# which depends on whether its rows are multiples of 16 bytes.
LONG_BYTES: Final = 16 * 2**20
FEW: Final = 8
SHORT_K: Final = 128
SHORT_K_RAGGED: Final = 1024
# Elements of A from which it is faster than naive and tiled on a processor, for a C of one column, A or B transposed.
LARGE_A: Final = 2**19
# Seconds: first loads and last stores of the blocks that run at once, what sums of slices take to the cache and back,
# once or twice, an access to shared memory that waits for none before it, and one in its turn.
_STARTING: Final = 2e-6
_LEAVING: Final = 2e-6
_MEETING: Final = 0.5e-9
_TAKING: Final = 1.6e-9
# Of what memory gives, one SM gets so much, and of all SMs so many get all.
_ONE_GETS: Final = 1 / 48
_BUSY: Final = 0.6
# The cache gives so much more than memory, and memory gives so much where less than a whole line is read at once.
# Memory is kept half as busy as it can be by so many bytes under way on an SM.
_CACHE: Final = 1.15
_LINE_BYTES: Final = 128
_SECTOR_BYTES: Final = 32
_PARTS: Final = 0.9
_HALF_BUSY: Final = 12 * 1024
# Instructions of a step beside FMAs: one for each pack of either operand that is read, so many for each pack that is
# copied, and in all. So many warps of a scheduler issue half of what they could. What is not the longest costs so much.
_COPYING: Final = 5
_AROUND: Final = 25
_HALF_ISSUED: Final = 0.8
_BESIDE: Final = 0.2
# Elements of a phase of the short operand, and of k.
_PHASE: Final = 4096
_DEEPEST: Final = 1024
# Threads of a block of a default, and blocks that an SM holds of it.
_BLOCKS: Final = (128, 256, 512)
_HELD: Final = (1, 2, 4)


def _issuing(config: Config, problem: Problem, device: Device, at_once: float, grid: int) -> float:
    """Seconds of issuing all instructions of a grid."""
    limits, short, each = device.limits, short_side(config), each_long(config)
    products = short * each * vector(problem)
    copying = _COPYING * loads_of_vector(config, problem)
    fraction = products / (products + short + (1 + copying) * each + _AROUND)
    warps = at_once * threads(config) / 128
    sms = max(limits.sms, 1)
    busy = grid / (sms * ceil(grid / sms))
    peak = (
        (limits.peak64 if problem.dtype == "float64" else limits.peak)
        * fraction
        * busy
        * warps
        / (warps + _HALF_ISSUED)
    )
    depth = max(problem.k, k_in_flight(config, problem))  # stages are filled with zeros past the end of k
    return 2 * blocks(config, problem) * short * long_side(config) * depth / peak


def _sectors(config: Config, problem: Problem, together: float) -> float:
    """Sectors that are read for each one's bytes: pieces of ragged rows across k touch one more, used by no other."""
    if is_long_by_k(config, problem) or loads_of_vector(config, problem) == 1:
        return 1
    return 1 + (_SECTOR_BYTES - problem.itemsize) / together


def _ending(config: Config, problem: Problem, device: Device) -> float:
    """Seconds in which sums of a block's threads, and of slices of k, come together."""
    packs, (splits, fan, _) = accumulator_packs(config, problem), plan(config, problem).scalars
    given = short_side(config) * each_long(config) * threads(config) / 32 * config["MIN_BLOCKS"]
    joining = _MEETING * given + _TAKING * packs * vector(problem) * config["SLICE_K"]
    left = packs * threads(config) * VECTOR_BYTES * (min(splits, fan) + -(-splits // fan))
    return joining + (splits > 1) * (_LEAVING * (1 + (splits > fan)) + left / (device.limits.bandwidth * _ONE_GETS))


def _seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch: bytes of memory and cache, instructions, and the reduction of split k."""
    limits, planned, size = device.limits, plan(config, problem), problem.itemsize
    reads = problem.batch * problem.k * size * max(problem.m, problem.n)
    moved = reads + blocks(config, problem) * short_side(config) * problem.k * size + 2 * planned.workspace_bytes
    at_once = min(max(planned.grid / max(limits.sms, 1), 1), config["MIN_BLOCKS"])
    together = coalesced_bytes(config, problem) / loads_of_vector(config, problem)
    bandwidth = limits.bandwidth * (1 if together >= _LINE_BYTES else _PARTS) / _sectors(config, problem, together)
    # A step that is being added is no longer under way: half of one on average.
    ahead = at_once * bytes_in_flight(config, problem) * (1 - 1 / (2 * config["STAGES"]))
    bandwidth *= min(1.0, planned.grid / max(limits.sms, 1) / _BUSY)
    starting = _STARTING * ceil(planned.grid / (max(limits.sms, 1) * config["MIN_BLOCKS"]))
    parts = (
        reads / bandwidth * (1 + _HALF_BUSY / ahead),
        moved / (limits.bandwidth * _CACHE),
        _issuing(config, problem, device, at_once, planned.grid),
    )
    return starting + _ending(config, problem, device) + (1 - _BESIDE) * max(parts) + _BESIDE * sum(parts)


def _choices(problem: Problem) -> Iterator[dict[str, tuple[int, ...]]]:
    """The candidates for defaults: parts of the space with one tile and one STAGES each."""
    short, pack, flat = covering_tile(min(problem.m, problem.n), SHORT_SIDES), vector(problem), problem.m <= problem.n
    most = min(_DEEPEST, _PHASE // short)
    for long, each, splits, stages in product(LONG_SIDES, sorted({4, pack}), SPACE.parameters["SLICE_K"], STAGES):
        depth = next((k_step for k_step in DEPTHS if k_step >= max(min(most, problem.k), splits * stages * pack)), 0)
        tile = (short, long, short, each) if flat else (long, short, each, short)
        if depth and long // each * splits in _BLOCKS:
            fixed = zip(SPACE.parameters, (*tile, splits, depth, stages), strict=False)
            yield {**SPACE.parameters, **{name: (value,) for name, value in fixed}, "MIN_BLOCKS": _HELD}


def _default(problem: Problem, device: Device) -> Config:
    """The candidate of the least seconds; else the space's first legal config, or its first, which `launch` refuses."""
    parts = (replace(SPACE, parameters=choice) for choice in _choices(problem))
    candidates = [each for part in parts for each in part.legal(problem, device)]
    if candidates:
        return min(candidates, key=lambda each: _seconds(each, problem, device))
    return SPACE.first_legal(problem, device)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether no pipelined is there, or this is faster: past 16 that takes 0.7 to 0.9 of the time, or as long (nt).

    Where the long operand is small, register_tiled and pipelined are as soon through with it: an H200 takes 2.2 to
    3 us for a k of 76 to 128 there, and 4 to 7 here; with ragged rows 0.5 to 0.7 of the time up to a k of 1000.
    On a processor naive and tiled are faster, but for a C of one column and a large A.
    """
    if device.platform == "opencl":
        is_column = problem.n == 1 and (problem.trans_a or problem.trans_b)
        return is_column and problem.m * problem.k >= LARGE_A
    if not has_ring(problem):  # the rungs of tensor cores are above
        return True
    short = min(problem.m, problem.n)
    rivalled = device.platform == "cuda" and device.capability >= PIPELINED_SINCE and problem.dtype == "float32"
    is_long = problem.batch * problem.k * max(problem.m, problem.n) * problem.itemsize >= LONG_BYTES
    long_is_ragged = bool(ragged(problem) & (A if problem.m >= problem.n else B))
    least = SHORT_K_RAGGED if long_is_ragged else SHORT_K
    return not rivalled or (short <= SHORT if is_long else short <= FEW and problem.k > least)


SKINNY: Final = Kernel(
    name="skinny",
    summary="C with a short side: the long operand straight into registers, k shared out among threads and blocks.",
    file="skinny/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    seconds=_seconds,
    dynamic_smem=True,
    arguments=("SPLIT_K",),
    sizes=Sizes(short_most=SUITED),
    preferred_untuned=_preferred_untuned,
    shapes=f"a C with a side of at most {SUITED}",
)
