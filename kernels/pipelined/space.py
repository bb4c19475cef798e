"""The space of pipelined: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.packing import is_c_ragged
from kernels.pipelined.plan import (
    CP_SIZES,
    copies,
    cp_sizes,
    partials_fit,
    registers,
    rounds_lie_alike,
    shared_bytes,
    warps_on_sm,
)
from kernels.problem import Problem
from kernels.register_tiled.plan import register_limit, threads
from kernels.register_tiled.space import HOPPER
from kernels.register_tiled.space import SPACE as TILED
from kernels.rules import VECTOR_BYTES, WARP, blocks_fit, registers_fit, shared_fits, sides_cover
from kernels.space import Config, Rule, Space
from kernels.split_k import CLUSTERS, cluster_divides, cluster_exists, shared_once
from kernels.stream_k import RULES as STREAMING
from kernels.stream_k import SMS

# Powers of two, and three times as many: of a side of 37 or 90 less is past C's edge.
SIDES: Final = (32, 48, 64, 96, 128, 192, 256)
THREAD_SIDES: Final = (4, 8, 12, 16)
WARP_SIDES: Final = (16, 32, 48, 64, 96, 128)
# So many sums leave registers for the rest on sm_90 only: before and after, NVRTC spills a few. It also does so there
# where sums are half of what registers there are; before sm_90, if one team has them all to write.
LARGE: Final = 128
# One bit of a word for each copy that a thread makes in a phase.
BITS: Final = 32
# Copies of a side of whose addresses, where B's are crosswise, NVRTC keeps no more than there are registers: twice as
# many in short phases of a large block that has an SM for itself, half as many where two share it.
FEW: Final = 8
SHORT: Final = 8
SHALLOW: Final = 16
BUSY_THREADS: Final = 256
# The least sums of a thread and the most k of a k tile with stream-K: smaller tiles fill the SMs evenly as they are.
SUMS: Final = 64
DEPTH: Final = 16
# The most sums of a thread that reads K-major tiles copied by 16 bytes, on sm_90; elsewhere it is SUMS. For more, and
# in slices of a k tile longer than DEPTH, elsewhere SHORT, NVRTC reads further ahead than there are registers.
K_MAJOR_SUMS: Final = 96
# Elements of a tile above which ragged rows of C are stored sooner through shared memory, and below which they are
# not: on an H100 111 of 117 tiles above were faster by it, 25 of 34 of so many elements, 3 of 11 below.
STAGED_TILE: Final = 4096


def _split_fits(config: Config, problem: Problem, _: Device) -> bool:
    return partials_fit(config, problem)


def _registers_left(config: Config, _: Problem, device: Device) -> bool:
    sums, number = config["TM"] * config["TN"], device.capability
    if number == HOPPER:
        return True
    stored = 2 * sums < register_limit(config, device) or (number < HOPPER and config["SLICE_K"] > 1)
    return stored and sums * config["MIN_BLOCKS"] < LARGE


def _bound_binds(config: Config, problem: Problem, device: Device) -> bool:
    return config["STREAM_K_SMS"] > 0 or TILED.rules[_BOUND](config, problem, device)


def _sms_used(config: Config, problem: Problem, device: Device) -> bool:
    shared = config["STREAM_K_SMS"] > 0 or config["CLUSTER_K"] > 1
    return shared or TILED.rules[_IDLE](config, problem, device)


def _more_blocks(config: Config, _: Problem, device: Device) -> bool:
    asked = config["MIN_BLOCKS"] * threads(config)
    free = config["STREAM_K_SMS"] > 0 or config["MIN_BLOCKS"] == 1 or device.capability != HOPPER
    return free or asked > WARP * warps_on_sm(config)


def _copies_counted(config: Config, problem: Problem, _: Device) -> bool:
    return max(copies(config, problem)) <= BITS


def _addresses_fit(config: Config, problem: Problem, device: Device) -> bool:
    of_a, of_b = copies(config, problem)
    crosswise = problem.trans_b and not config["PACK_MN"] and not config["K_MAJOR"]
    if device.capability == HOPPER and config["BK"] == SHORT and crosswise:
        return max(of_a, of_b) <= 2 * FEW
    # NVRTC keeps more addresses in registers for what came after Hopper.
    large = 2 * config["TM"] * config["TN"] >= register_limit(config, device) or device.capability > HOPPER
    if not crosswise:
        return not (large or device.capability < HOPPER) or of_a + of_b < BITS
    return max(of_a, of_b) <= _most_copies(config) and (not large or of_a <= FEW)


def _most_copies(config: Config) -> int:
    if threads(config) < BUSY_THREADS or config["SLICE_K"] > 1:
        return FEW
    if config["MIN_BLOCKS"] > 1:
        return FEW // 2
    return 2 * FEW if config["BK"] <= SHALLOW else FEW


def _warp_is_compact(config: Config, _: Problem, __: Device) -> bool:
    wn, area = config["WN"], WARP * config["TM"] * config["TN"]
    return area <= 4 * wn * wn <= 16 * area


def _streamed_large(config: Config, _: Problem, __: Device) -> bool:
    large = threads(config) * config["MIN_BLOCKS"] == BUSY_THREADS and config["TM"] * config["TN"] >= SUMS
    return config["STREAM_K_SMS"] == 0 or (large and config["SLICE_K"] == 1)


def _streamed_shallow(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["BK"] <= DEPTH


def _streamed_unpacked(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["PACK_MN"] == 0 or config["TM"] * config["TN"] < 2 * SUMS


def _rounds_whole(config: Config, problem: Problem, _: Device) -> bool:
    of_block, depth = threads(config), config["BK"] * problem.itemsize
    sides = (config["BM"], config["CP_SIZE_A"]), (config["BN"], config["CP_SIZE_B"])
    return not any(side * depth % (of_block * cp_size) for side, cp_size in sides)


def _both_k_major(config: Config, problem: Problem, _: Device) -> bool:
    return config["K_MAJOR"] == 0 or (config["PACK_MN"] == 0 and not problem.trans_a and problem.trans_b)


def _k_major_wide(config: Config, problem: Problem, _: Device) -> bool:
    return config["K_MAJOR"] == 0 or problem.k * problem.itemsize % CP_SIZES[1] == 0


def _k_major_shallow(config: Config, _: Problem, device: Device) -> bool:
    most = DEPTH if device.capability == HOPPER else SHORT
    return config["K_MAJOR"] == 0 or config["BK"] <= most * config["SLICE_K"]


def _k_major_small(config: Config, _: Problem, device: Device) -> bool:
    wide = device.capability == HOPPER and config["CP_SIZE_A"] == VECTOR_BYTES
    return config["K_MAJOR"] == 0 or config["TM"] * config["TN"] <= (K_MAJOR_SUMS if wide else SUMS)


def _k_major_sliced(config: Config, _: Problem, __: Device) -> bool:
    return config["K_MAJOR"] == 0 or config["SLICE_K"] > 1


def _copies_divide(config: Config, problem: Problem, _: Device) -> bool:
    of_a, of_b = cp_sizes(config["PACK_MN"], config["K_MAJOR"], problem)
    return config["CP_SIZE_A"] <= of_a and config["CP_SIZE_B"] <= of_b


def _copies_largest(config: Config, problem: Problem, _: Device) -> bool:
    of_a, of_b = cp_sizes(config["PACK_MN"], config["K_MAJOR"], problem)
    return config["CP_SIZE_A"] >= of_a and config["CP_SIZE_B"] >= of_b


def _staged_ragged(config: Config, problem: Problem, _: Device) -> bool:
    return config["STAGE_C"] == 0 or is_c_ragged(problem)


def _staged_large(config: Config, _: Problem, __: Device) -> bool:
    return config["STAGE_C"] == 0 or config["BM"] * config["BN"] >= STAGED_TILE


def _unstaged_small(config: Config, problem: Problem, _: Device) -> bool:
    return config["STAGE_C"] == 1 or config["BM"] * config["BN"] <= STAGED_TILE or not is_c_ragged(problem)


def is_ragged(problem: Problem) -> bool:
    """Whether rows that lie along C are not whole 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return bool((problem.trans_a and problem.m % wide) or (not problem.trans_b and problem.n % wide))


def _parameters() -> dict[str, tuple[int, ...]]:
    """register_tiled's parameters and its own."""
    order = (
        "BM",
        "BN",
        "STREAM_K_SMS",
        "CLUSTER_K",
        "MIN_BLOCKS",
        "GROUP_M",
        "TM",
        "TN",
        "WN",
        "SLICE_K",
        "PACK_MN",
        "K_MAJOR",
        "CP_SIZE_A",
        "CP_SIZE_B",
        "STAGE_C",
        "BK",
        "STAGES",
    )
    return {name: _VALUES.get(name) or TILED.parameters[name] for name in (*order, "SPLIT_K")}


_VALUES: Final = {
    "BM": SIDES,
    "BN": SIDES,
    "TM": THREAD_SIDES,
    "TN": THREAD_SIDES,
    "WN": WARP_SIDES,
    "SLICE_K": (1, 2, 4),
    "STREAM_K_SMS": (0, *SMS),
    "CLUSTER_K": CLUSTERS,
    "K_MAJOR": (0, 1),
    "CP_SIZE_A": CP_SIZES[::-1],
    "CP_SIZE_B": CP_SIZES[::-1],
    "STAGE_C": (0, 1),
    "STAGES": (3, 4),
}
# As they are chosen: what is decided by the sides and by how a block's threads share them before what is copied, and
# GROUP_M last, which one rule alone reads: for each of its values all that follow would be chosen again.
_ORDER: Final = (
    *("BM", "BN", "STREAM_K_SMS", "CLUSTER_K", "MIN_BLOCKS", "TM", "TN", "WN", "SLICE_K", "K_MAJOR", "SPLIT_K"),
    *("PACK_MN", "CP_SIZE_A", "CP_SIZE_B", "STAGE_C", "BK", "STAGES", "GROUP_M"),
)
# register_tiled's rules, but with stream-K, where MIN_BLOCKS is how many blocks an SM has, or with clusters.
_BOUND: Final = "MIN_BLOCKS that does not limit registers"
_IDLE: Final = "SMs left idle that more splits of k would use"
_TILE: Final = ("BM", "BN", "TM", "TN", "SLICE_K")
_CP_SIZES: Final = ("CP_SIZE_A", "CP_SIZE_B")
_SHARED_MEMORY: Final = (*_TILE, "PACK_MN", "K_MAJOR", "BK", "STAGES", "STAGE_C", "STREAM_K_SMS", "CLUSTER_K")
_OWN: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "a side of 48, 96 or 192 that reaches further past C than the power of two below": (sides_cover, ("BM", "BN")),
    "more shared memory a block than the device allows": (shared_fits(shared_bytes), _SHARED_MEMORY),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_SHARED_MEMORY, "MIN_BLOCKS"),
    ),
    "C through shared memory, where its rows are whole 16 bytes": (_staged_ragged, ("STAGE_C",)),
    "C through shared memory, where a tile is small": (_staged_large, ("BM", "BN", "STAGE_C")),
    "C past shared memory, where a tile is large and C's rows are not whole 16 bytes": (
        _unstaged_small,
        ("BM", "BN", "STAGE_C"),
    ),
    "a warp's tile more than four times as long as wide": (_warp_is_compact, ("TM", "TN", "WN")),
    "more registers a thread than there are": (
        registers_fit(lambda config, _: registers(config), threads),
        (*_TILE, "CLUSTER_K", "K_MAJOR", "MIN_BLOCKS"),
    ),
    "more accumulators a thread than leave registers for the rest": (_registers_left, (*_TILE, "MIN_BLOCKS")),
    "MIN_BLOCKS of no more blocks than fit without": (
        _more_blocks,
        (*_TILE, "STREAM_K_SMS", "K_MAJOR", "MIN_BLOCKS"),
    ),
    "more copies a thread and k tile than a word has bits": (_copies_counted, (*_TILE, *_CP_SIZES, "BK")),
    "copies whose addresses take too many registers": (
        _addresses_fit,
        (*_TILE, "PACK_MN", "K_MAJOR", *_CP_SIZES, "BK", "MIN_BLOCKS"),
    ),
    _BOUND: (_bound_binds, (*TILED.reads[_BOUND], "STREAM_K_SMS")),
    _IDLE: (_sms_used, (*TILED.reads[_IDLE], "STREAM_K_SMS", "CLUSTER_K")),
    "k shared out in clusters before sm_90, or where blocks fill the SMs": (
        cluster_exists,
        ("BM", "BN", "CLUSTER_K", "SPLIT_K"),
    ),
    "k shared out in clusters and in splits or by stream-K": (
        shared_once,
        ("STREAM_K_SMS", "CLUSTER_K", "SPLIT_K"),
    ),
    "k with too little for each block of a cluster": (cluster_divides, ("BK", "CLUSTER_K", "SPLIT_K")),
    "copies that do not divide evenly among the threads": (_rounds_whole, (*_TILE, *_CP_SIZES, "BK")),
    "rounds of copies that do not lie alike": (
        lambda config, problem, _: rounds_lie_alike(config, problem),
        (*_TILE, "WN", "PACK_MN", "K_MAJOR", *_CP_SIZES, "BK"),
    ),
    "K-major tiles, where an operand is MN-major or packed": (_both_k_major, ("PACK_MN", "K_MAJOR")),
    "K-major tiles, where copies have 4 bytes": (_k_major_wide, ("K_MAJOR",)),
    "K-major tiles, where no threads share k": (_k_major_sliced, ("SLICE_K", "K_MAJOR")),
    "K-major tiles with slices longer than registers suffice for": (_k_major_shallow, ("SLICE_K", "K_MAJOR", "BK")),
    "K-major tiles, with accumulators that leave too few registers": (
        _k_major_small,
        ("TM", "TN", "K_MAJOR", "CP_SIZE_A"),
    ),
    "copies of a size that does not divide an operand's rows": (_copies_divide, ("PACK_MN", "K_MAJOR", *_CP_SIZES)),
    "copies of less than the largest size that divides an operand's rows": (
        _copies_largest,
        ("PACK_MN", "K_MAJOR", *_CP_SIZES),
    ),
    "more partial sums of split k than fit in the workspace": (_split_fits, ("SPLIT_K",)),
    "stream-K with small tiles, or other than 256 threads an SM": (
        _streamed_large,
        (*_TILE, "MIN_BLOCKS", "STREAM_K_SMS"),
    ),
    "stream-K with k tiles longer than it needs": (_streamed_shallow, ("STREAM_K_SMS", "BK")),
    "stream-K of packed operands, with accumulators that leave too few registers": (
        _streamed_unpacked,
        ("STREAM_K_SMS", "PACK_MN", "TM", "TN"),
    ),
    **STREAMING,
}
# What is register_tiled's business alone: stages that are not copied, and how its slices meet.
_OTHERS: Final = {
    "more accumulators a thread than a processor's registers hold",
    "a WN other than 4 threads, where the device has no warps",
    "a warp's tile more than twice as long as wide",
    "fewer than three stages, where copies are asynchronous",
    "packing against transposed copies of 4 bytes, where there are none",
    "loads of 16 bytes that do not divide evenly among the threads",
}
_SHARED: Final = {reason: rule for reason, rule in TILED.rules.items() if reason not in _OTHERS}
SPACE: Final = Space(
    parameters=_parameters(),
    rules=_SHARED | {reason: rule for reason, (rule, _) in _OWN.items()},
    reads={reason: TILED.reads[reason] for reason in _SHARED} | {reason: names for reason, (_, names) in _OWN.items()},
    order=_ORDER,
)
