"""The space of tensor_core: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.packing import A, B, operands_to_realign, ragged
from kernels.problem import Problem
from kernels.rules import (
    VECTOR_BYTES,
    WARP,
    blocks,
    blocks_fit,
    bound_binds,
    registers_fit,
    shared_fits,
    sides_cover,
    warps_divide,
)
from kernels.space import Config, Rule, Space
from kernels.split_k import (
    CLUSTERS,
    PARTIALS_BYTES,
    WAVES,
    cluster_divides,
    cluster_exists,
    fan,
    grid_fits,
    is_even_split,
    k_tiles,
    order_matters,
    splits_even,
    splits_needed,
)
from kernels.tensor_core.plan import (
    ACCUMULATOR_BYTES,
    CP_SIZES,
    STEP_BYTES,
    cp_sizes,
    element_bytes,
    emulated,
    first_partials_tile,
    k_steps,
    mn_major,
    realigned,
    registers,
    shared_bytes,
    slice_threads,
    split_fits,
    threads,
)

# Powers of two, and three times as many: of a side of 37 or 90 less is past C's edge.
SIDES: Final = (16, 32, 48, 64, 96, 128, 192, 256)
WARP_SIDES: Final = (16, 32, 48, 64)
SPLITS: Final = (1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 16, 18, 22, 27, 33, 44, 66, 132)
# Threads of an SM that keep its four parts' tensor cores busy, and more than which wait long for each other.
BUSY_THREADS: Final = 128
MOST_THREADS: Final = 512
# One bit of a word for each piece that a thread copies of an operand in a phase.
BITS: Final = 32
SHORT: Final = 16
LARGE_AREA: Final = 128 * 64
# Bytes of k in shared memory, of large tiles and small ones: less leaves too little on its way, more is not needed.
LEAST_DEEP, MOST_DEEP, MOST_DEEP_SMALL = 128, 512, 1024
# Sums of a warp that leave no registers for fragments ahead where compilers keep more addresses: after Hopper. Half as
# many where both operands are copied by less than 16 bytes, or MIN_BLOCKS is more than this.
LARGE_SUMS: Final = 64 * 64
MOST_BLOCKS_AHEAD: Final = 2
HOPPER: Final = 90


def _not_beyond(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] < 2 * max(problem.m, SHORT) and config["BN"] < 2 * max(problem.n, SHORT)


def _k_tile_not_beyond(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] < 2 * max(problem.k, SHORT)


def _warps_power_of_two(config: Config, _: Problem, __: Device) -> bool:
    return slice_threads(config).bit_count() == 1


def _parts_large(config: Config, _: Problem, __: Device) -> bool:
    area = config["WM"] * config["WN"]
    few = slice_threads(config) <= BUSY_THREADS
    return slice_threads(config) <= 2 * BUSY_THREADS and (area >= WARP * WARP or few)


def _tile_large(config: Config, problem: Problem, device: Device) -> bool:
    m, n = (-(-side // SHORT) * SHORT for side in (problem.m, problem.n))
    enough = min(LARGE_AREA, m * n, problem.batch * m * n // (4 * WAVES * max(device.limits.sms, 1)))
    return 2 * config["BM"] * config["BN"] > enough


def _tile_compact(config: Config, problem: Problem, _: Device) -> bool:
    bm, bn = config["BM"], config["BN"]
    return (bm <= 4 * bn or bn >= problem.n) and (bn <= 4 * bm or bm >= problem.m)


def _teams_needed(config: Config, _: Problem, __: Device) -> bool:
    sums = config["WM"] * config["WN"] // (ACCUMULATOR_BYTES * WARP)
    return config["SLICE_K"] == 1 or (threads(config) <= 2 * BUSY_THREADS and sums % config["SLICE_K"] == 0)


def _threads_fit(config: Config, problem: Problem, device: Device) -> bool:
    one = config["BM"] >= problem.m and config["BN"] >= problem.n
    least = WARP if one else BUSY_THREADS
    return least <= threads(config) <= min(device.limits.threads, MOST_THREADS)


def _steps_whole(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] * element_bytes(problem) % (STEP_BYTES * config["SLICE_K"]) == 0


def _steps_alternate(config: Config, problem: Problem, _: Device) -> bool:
    return not config["AHEAD"] or k_steps(config, problem) % 2 == 0


def _ahead_fits(config: Config, _: Problem, device: Device) -> bool:
    if not config["AHEAD"] or device.capability <= HOPPER:
        return True
    narrow = config["CP_SIZE_A"] < VECTOR_BYTES and config["CP_SIZE_B"] < VECTOR_BYTES
    tight = narrow or config["MIN_BLOCKS"] > MOST_BLOCKS_AHEAD
    return config["WM"] * config["WN"] < (LARGE_SUMS // 2 if tight else LARGE_SUMS)


def _copies_counted(config: Config, problem: Problem, _: Device) -> bool:
    own, line = threads(config), config["BK"] * element_bytes(problem)
    last = -(-max(config["BM"], config["BN"], config["BK"]) // own) if realigned(config, problem) else 0
    turned = mn_major(config, problem)
    of_a = _threads_along(config["BM"], turned & A) * line // config["CP_SIZE_A"]
    of_b = _threads_along(config["BN"], turned & B) * line // config["CP_SIZE_B"]
    return max(of_a, of_b) <= (BITS - last) * own


def _threads_along(side: int, turned: int) -> int:
    """A side, or where lines are along it the power of two whose copies a line's threads could make."""
    return side // 3 * 4 if turned and side % 3 == 0 else side


def _stages_pay(config: Config, problem: Problem, _: Device) -> bool:
    deep = config["STAGES"] * config["BK"] * element_bytes(problem)
    small = config["BM"] * config["BN"] < LARGE_AREA
    return min(LEAST_DEEP, 2 * problem.k * element_bytes(problem)) <= deep <= (MOST_DEEP_SMALL if small else MOST_DEEP)


def _stages_used(config: Config, problem: Problem, _: Device) -> bool:
    return config["STAGES"] <= max(2, k_tiles(config, problem))


def _copied_where_ragged(config: Config, problem: Problem, _: Device) -> bool:
    return config["PACK_K"] in {0, 0 if emulated(problem) else ragged(problem)}


def ways_to_copy(packed: int, problem: Problem) -> tuple[int, ...]:
    """Values of REALIGN: ragged operands that are not packed are realigned, or only those whose rows are no words."""
    which = 0 if emulated(problem) else operands_to_realign(packed, problem)
    odd = A * (problem.a_shape[1] * problem.itemsize % CP_SIZES[-1] > 0)
    odd |= B * (problem.b_shape[1] * problem.itemsize % CP_SIZES[-1] > 0)
    return (which,) if which & odd == which else (which, which & odd)


def _realigned_where_ragged(config: Config, problem: Problem, _: Device) -> bool:
    return config["REALIGN"] in ways_to_copy(config["PACK_K"], problem)


def _cp_sizes(config: Config, problem: Problem, _: Device) -> bool:
    return (config["CP_SIZE_A"], config["CP_SIZE_B"]) == cp_sizes(config["PACK_K"], config["REALIGN"], problem)


def _places_kept(config: Config, problem: Problem, _: Device) -> bool:
    which, bk = realigned(config, problem), config["BK"]
    lines_a = (config["BM"] if problem.trans_a else bk) if which & A else 0
    lines_b = (bk if problem.trans_b else config["BN"]) if which & B else 0
    return max(lines_a, lines_b) <= threads(config)


def _split_fits(config: Config, problem: Problem, _: Device) -> bool:
    return split_fits(config, problem)


def _largest_in_splits(config: Config, problem: Problem, _: Device) -> bool:
    parts = config["CLUSTER_K"]
    return parts == 1 or ((config["SPLIT_K"] == 1 or parts == CLUSTERS[-1]) and not emulated(problem))


def _splits_even(config: Config, problem: Problem, device: Device) -> bool:
    return config["CLUSTER_K"] > 1 or splits_even(config, problem, device)


def _sms_used(config: Config, problem: Problem, device: Device) -> bool:
    tiles, split, sms = blocks(config, problem), config["SPLIT_K"], device.limits.sms
    if config["CLUSTER_K"] > 1 or 2 * tiles * split > sms:
        return True
    before = first_partials_tile(config, problem, 2)
    most = _most_splits(
        k_tiles(config, problem), tiles, config["BM"] * config["BN"], WAVES * config["MIN_BLOCKS"] * sms, before
    )
    return split >= most


@cache
def _most_splits(count: int, tiles: int, area: int, most: int, before: int) -> int:
    """The largest SPLIT_K that the other rules allow; with 2, `before` tiles precede the partial sums."""

    def allowed(split: int) -> bool:
        fits = tiles * split * area * ACCUMULATOR_BYTES <= PARTIALS_BYTES
        counted = (tiles + -(-2 * before // split)) * (-(-split // fan(split)) + 1) <= COUNTERS
        return is_even_split(count, split) and tiles * split <= most and fits and counted

    return max((split for split in SPLITS[1:] if allowed(split)), default=1)


_WARPS: Final = ("BM", "BN", "WM", "WN")
_RAGGED: Final = ("PACK_K", "REALIGN")
_CP_SIZES: Final = ("CP_SIZE_A", "CP_SIZE_B")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "a tile at least twice as large as C": (_not_beyond, ("BM", "BN")),
    "small tiles, where larger ones leave no SM idle": (_tile_large, ("BM", "BN")),
    "a tile more than four times as long as wide": (_tile_compact, ("BM", "BN")),
    "a tile that is no multiple of its warps' tiles": (warps_divide, _WARPS),
    "a side of 48, 96 or 192 that reaches further past C than the power of two below": (sides_cover, ("BM", "BN")),
    "warps of which there are three, or a multiple of that": (_warps_power_of_two, _WARPS),
    "small warps' tiles of a large tile, which load more than they multiply": (_parts_large, _WARPS),
    "a k tile at least twice as long as k": (_k_tile_not_beyond, ("BK",)),
    "mma steps of a k tile that its slices do not share evenly": (_steps_whole, ("BK", "SLICE_K")),
    "sliced k, where one slice keeps the SM busy or accumulators do not divide": (_teams_needed, (*_WARPS, "SLICE_K")),
    "fewer threads than keep an SM busy, or more than synchronise well": (_threads_fit, (*_WARPS, "SLICE_K")),
    "AHEAD with an odd number of mma steps in a k tile": (_steps_alternate, ("BK", "SLICE_K", "AHEAD")),
    "AHEAD after Hopper with warps' tiles of 64 x 64, or half of that and narrow copies or three blocks on an SM": (
        _ahead_fits,
        ("WM", "WN", "AHEAD", "MIN_BLOCKS", *_CP_SIZES),
    ),
    "more copies a thread and k tile than a word has bits": (
        _copies_counted,
        (*_WARPS, "BK", "SLICE_K", *_RAGGED, *_CP_SIZES),
    ),
    "more registers a thread than there are": (
        registers_fit(registers, threads),
        (*_WARPS, "BK", "SLICE_K", "AHEAD", "MIN_BLOCKS"),
    ),
    "MIN_BLOCKS that does not limit registers": (bound_binds(threads), (*_WARPS, "SLICE_K", "MIN_BLOCKS")),
    "more stages than k tiles": (_stages_used, ("BK", "STAGES")),
    "stages of too little of k, or of more than hides latency": (_stages_pay, ("BM", "BN", "BK", "STAGES")),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        (*_WARPS, "BK", "STAGES", "SLICE_K", "CLUSTER_K", *_RAGGED),
    ),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_WARPS, "BK", "STAGES", "SLICE_K", "CLUSTER_K", "MIN_BLOCKS", *_RAGGED),
    ),
    "grouped tiles, where all run at once": (order_matters, ("BM", "BN", "GROUP_M")),
    "packing of operands whose rows are multiples of 16 bytes": (_copied_where_ragged, ("PACK_K",)),
    "rows of no whole words neither packed nor realigned, or any both, or others than ragged ones": (
        _realigned_where_ragged,
        _RAGGED,
    ),
    "copies of another size than the largest that divides an operand's rows": (_cp_sizes, (*_RAGGED, *_CP_SIZES)),
    "realigned lines of which a thread copies two that begin at different places in 16 bytes": (
        _places_kept,
        (*_WARPS, "BK", "SLICE_K", *_RAGGED),
    ),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
    "more splits of k, where there are blocks enough": (splits_needed, ("BM", "BN", "MIN_BLOCKS", "SPLIT_K")),
    "splits of k that are empty, or shorter than four k tiles": (_splits_even, ("BK", "CLUSTER_K", "SPLIT_K")),
    "SMs left idle that more splits of k would use": (
        _sms_used,
        ("BM", "BN", "BK", "CLUSTER_K", "MIN_BLOCKS", "SPLIT_K"),
    ),
    "k shared out in clusters before sm_90, or where blocks fill the SMs": (
        cluster_exists,
        ("BM", "BN", "CLUSTER_K", "SPLIT_K"),
    ),
    "splits of k in clusters other than the largest, or clusters for emulated float32": (
        _largest_in_splits,
        ("CLUSTER_K", "SPLIT_K"),
    ),
    "k with too little for each block of a cluster": (cluster_divides, ("BK", "CLUSTER_K", "SPLIT_K")),
    "more partial sums of split k than fit in the workspace": (
        _split_fits,
        ("BM", "BN", "BK", "CLUSTER_K", "SPLIT_K"),
    ),
}
SPACE: Final = Space(
    parameters={
        "BM": SIDES,
        "BN": SIDES,
        "WM": WARP_SIDES,
        "WN": WARP_SIDES,
        "BK": (16, 32, 64, 128),
        "SLICE_K": (1, 2, 4),
        "CLUSTER_K": CLUSTERS,
        "AHEAD": (0, 1),
        "MIN_BLOCKS": (1, 2, 3, 4),
        "STAGES": (2, 3, 4, 6, 8),
        "PACK_K": (0, 1, 2, 3),
        "REALIGN": (0, 1, 2, 3),
        "CP_SIZE_A": CP_SIZES[::-1],
        "CP_SIZE_B": CP_SIZES[::-1],
        "GROUP_M": (1, 8, 16),
        "SPLIT_K": SPLITS,
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
