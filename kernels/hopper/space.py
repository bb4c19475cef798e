"""The space of hopper: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Final

from kernels import packing
from kernels.arithmetic import tensor_peak
from kernels.device import Device
from kernels.fp32_emulation import PROMOTIONS, SHARE
from kernels.hopper.plan import (
    EIGHT,
    TOGETHER,
    WGMMA_M,
    accumulators,
    barrier_bytes,
    cluster_size,
    clustered_sms,
    element_bytes,
    emulated,
    epilogue_bytes,
    is_pingpong,
    k_tiles_per_block,
    lhs_tile,
    planes,
    received_bytes,
    rhs_tile,
    shared_bytes,
    sharers,
    split_fits,
    stage_bytes,
    swizzle_bytes,
    tile_operands,
    tile_rows,
    tiles,
    work_tiles,
)
from kernels.hopper.registers import is_spilled, lhs_registers, most_accumulators
from kernels.problem import Problem, larger
from kernels.rules import LINE_BYTES, VECTOR_BYTES
from kernels.space import Config, Rule, Space
from kernels.split_k import k_tiles, k_tiles_per_split

# Sides of the tile: multiples of 8, as the instruction's columns, and enough of them to fill any number of SMs.
SIDES: Final = tuple(range(EIGHT, 257, EIGHT))
STAGES: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
SPLITS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 18, 24, 32, 48, 64, 96, 128)
PARTS: Final = (2, 4, 8)  # of k in a cluster
GROUPS: Final = (1, 2, 4, 8, 16)  # rows of tiles
# SMs of Hopper devices, as their data sheets give them, and fewer: a few without work leave the others more power.
BLOCKS: Final = (0, 78, 114, 128, 132)
FEWEST: Final = 0.95
# An MN-major tile has 16 columns at least.
LEAST: Final = 16
# Elements of a large tile, 208 columns where each consumer has a tile of its own; and tiles for each SM with which
# smaller ones are not tried.
LARGE: Final = 64 * 208
WAVES: Final = 8
# With operands that the producer copies, whose threads leave 128 registers: accumulators and LHS elements of a
# thread, and lines of a k tile, which are in registers at once.
MOST_BESIDE_COPIERS: Final = 64
MOST_COPIED: Final = 128
# Bytes of the lines of a tile, which 32 bits count.
MOST_LINE_BYTES: Final = 2**30
# What of a launch's time more splits than fill two waves have to leave, of tiles that do not fill one.
WAVES_SAVED: Final = 0.8
# Fewest k tiles of a split.
FEWEST_K_TILES: Final = 2
# Bytes on their way from memory past which it is no sooner done with what it alone bounds: on an H200, twelve such
# shapes are fastest with 8 to 13 million or all that have room, and lose up to 5 % where it is twice as much.
IN_FLIGHT: Final = 11 * 2**20
# Tiles of a launch and coordinates in tensors have 31 bits.
MOST: Final = 2**31 - 1


def not_for_tma(config: Config, problem: Problem) -> int:
    """The operands to pack or realign, as bits: those with ragged rows, and an MN-major RHS of 32-bit elements."""
    if emulated(problem):
        return 0
    which = packing.ragged(problem)
    across = not problem.trans_b if not config["SWAP_AB"] else problem.trans_a
    if problem.precision == "tf32" and across:
        which |= packing.A if config["SWAP_AB"] else packing.B
    return which


def _one_line(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] * element_bytes(problem) == LINE_BYTES


def _whole_rows(config: Config, _: Problem, __: Device) -> bool:
    return (config["BN"] if config["SWAP_AB"] else config["BM"]) % (WGMMA_M * sharers(config)) == 0


def _one_block_of_rows(config: Config, problem: Problem, _: Device) -> bool:
    return not emulated(problem) or lhs_tile(config, problem)[0] == WGMMA_M * sharers(config)


def _sums_fit(config: Config, problem: Problem, _: Device) -> bool:
    own = accumulators(config, problem)
    return own <= most_accumulators(config, problem) and not is_spilled(config, problem)


def _shared_well(config: Config, problem: Problem, _: Device) -> bool:
    if config["CLUSTER"] == 1:
        return True
    tile, rows = lhs_tile(config, problem)
    return rhs_tile(config, problem)[0] % (2 * EIGHT) == 0 and tile < rows


def _whole_spans(config: Config, problem: Problem, _: Device) -> bool:
    return all(
        side.k_major or swizzle_bytes(side.tile, element_bytes(problem)) > VECTOR_BYTES
        for side in tile_operands(config, problem)
    )


def _as_needed(config: Config, problem: Problem, _: Device) -> bool:
    return config["PACK_K"] + config["REALIGN"] == not_for_tma(config, problem) and (
        config["PACK_K"] == 0 or config["REALIGN"] == 0
    )


def _as_rows_are(config: Config, problem: Problem, _: Device) -> bool:
    return config["TMA_STORE"] == (not packing.is_c_ragged(problem))


def _copied(config: Config, problem: Problem, _: Device) -> bool:
    sides = [side for side in tile_operands(config, problem) if side.realigned]
    return not sides or (
        config["CONSUMERS"] == config["CLUSTER"] == config["MIN_BLOCKS"] == 1
        and sum(side.tile for side in sides) <= MOST_COPIED
        and accumulators(config, problem) + lhs_registers(config, problem) <= MOST_BESIDE_COPIERS
        and all(larger(side.size, problem.k) * side.tile * problem.itemsize <= MOST_LINE_BYTES for side in sides)
    )


def _promoted(config: Config, problem: Problem, _: Device) -> bool:
    if not emulated(problem):
        return config["PROMOTE_K"] == 0
    return config["PROMOTE_K"] in PROMOTIONS and (
        SHARE * config["PROMOTE_K"] <= problem.k or config["PROMOTE_K"] == PROMOTIONS[0]
    )


def stages_fit(config: Config, problem: Problem, device: Device) -> int:
    """Stages that fit in shared memory, beside those of the SM's other blocks."""
    limits = device.limits
    room = min(limits.shared_bytes, limits.shared_bytes_per_sm // config["MIN_BLOCKS"] - limits.shared_bytes_reserved)
    beside = epilogue_bytes(config) + received_bytes(config, problem)
    return (room - beside) // (stage_bytes(config, problem) + barrier_bytes(config))


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes and config["STAGES"] <= stages_fit(
        config, problem, device
    )


def enough_stages(config: Config, problem: Problem, device: Device) -> list[int]:
    """Counts of stages that fit and are of use, fewest first: no more than a block has k tiles.

    If memory bounds the product, no more than it fills.
    """
    rounds = -(-work_tiles(config, problem) // (device.limits.sms * config["MIN_BLOCKS"]))
    wanted = k_tiles_per_block(config, problem) * rounds
    most = min(stages_fit(config, problem, device), next((size for size in STAGES if size >= wanted), STAGES[-1]))
    if problem.flops * device.limits.bandwidth < problem.bytes * tensor_peak(problem, device):
        most = min(most, max(IN_FLIGHT * rounds // k_tile_bytes(config, problem), STAGES[0]))
    return [size for size in STAGES if size <= most]


def k_tile_bytes(config: Config, problem: Problem) -> int:
    """Bytes that one phase of all pieces of work reads, those that several read counted once."""
    sides = lhs_tile(config, problem), rhs_tile(config, problem)
    lines = sum(-(-size // tile) * tile for tile, size in sides)
    return problem.batch * config["SPLIT_K"] * config["CLUSTER_K"] * planes(problem) * lines * LINE_BYTES


def _room_used(config: Config, problem: Problem, device: Device) -> bool:
    return config["STAGES"] in enough_stages(config, problem, device)[-2:]


def _not_far_outside(config: Config, problem: Problem, _: Device) -> bool:
    (tile_m, rows), (tile_n, columns) = lhs_tile(config, problem), rhs_tile(config, problem)
    return (tile_m <= WGMMA_M or tile_m < 2 * rows) and (tile_n <= LEAST or tile_n < 2 * columns)


def stays(config: Config, problem: Problem, device: Device) -> list[int]:
    """Numbers of persistent blocks that need no more waves; none if one wave is enough."""
    sms, min_blocks, count = device.limits.sms, config["MIN_BLOCKS"], work_tiles(config, problem)
    rounds = -(-count // (sms * min_blocks))
    sizes = [size for size in BLOCKS if FEWEST * sms <= size <= sms]
    return [size for size in sizes if rounds > 1 and -(-count // (size * min_blocks)) == rounds]


def has_c_in_stages(config: Config, problem: Problem, device: Device) -> bool:
    """Whether a block has one tile, all consumers', so that its stages are free when it goes to C.

    Beside other blocks of an SM registers are too few for it.
    """
    return config["MIN_BLOCKS"] == 1 and not is_pingpong(config) and not stays(config, problem, device)


def _c_in_free_stages(config: Config, problem: Problem, device: Device) -> bool:
    return config["C_IN_STAGES"] == has_c_in_stages(config, problem, device)


def _as_many_blocks(config: Config, problem: Problem, device: Device) -> bool:
    return config["BLOCKS"] in (stays(config, problem, device) or [0])


def _beside_others(config: Config, problem: Problem, device: Device) -> bool:
    alone = config["CONSUMERS"] == config["CLUSTER"] == 1
    return config["MIN_BLOCKS"] == 1 or (alone and work_tiles(config, problem) > device.limits.sms)


def _large_enough(config: Config, problem: Problem, device: Device) -> bool:
    area = config["BM"] * config["BN"]
    whole = config["BM"] >= problem.m or config["BN"] >= problem.n or problem.batch > 1
    return whole or area >= LARGE or problem.m * problem.n < WAVES * area * device.limits.sms


def groups(config: Config, problem: Problem) -> list[int]:
    """Values of GROUP_M that order tiles differently: the last has all rows in one group."""
    tile, columns = rhs_tile(config, problem)
    rows = tile_rows(config, problem)
    return [size for size in GROUPS if size == 1 or (size < 2 * rows and tile < columns)]


def _grouped(config: Config, problem: Problem, _: Device) -> bool:
    return config["GROUP_M"] in groups(config, problem)


@lru_cache(4096)
def useful_splits(count: int, sms: int) -> tuple[int, ...]:
    """Splits of k with which tiles fill at most two waves of SMs, or more of them so well that it takes less time."""
    found, least = [1], inf
    for splits in SPLITS:
        waves = -(-count * splits // sms) / splits  # of tiles with their whole k
        is_better = count < sms and waves <= WAVES_SAVED * least
        if splits > 1 and (count * splits <= 2 * sms or is_better):
            found.append(splits)
        least = min(least, waves)
    return tuple(found)


def _split_for_sms(config: Config, problem: Problem, device: Device) -> bool:
    each = tiles(config, problem) * cluster_size(config)
    return config["SPLIT_K"] == 1 or config["SPLIT_K"] in useful_splits(each, device.limits.sms)


def _long_splits(config: Config, problem: Problem, _: Device) -> bool:
    splits = config["SPLIT_K"]
    own = k_tiles_per_split(config, problem)
    return splits == 1 or (own >= FEWEST_K_TILES and -(-k_tiles(config, problem) // own) == splits)


def _pingpong_needed(config: Config, problem: Problem, device: Device) -> bool:
    others = max(config["CLUSTER"], config["CLUSTER_K"], config["SPLIT_K"], config["MIN_BLOCKS"], planes(problem))
    two = config["CONSUMERS"] == TOGETHER
    return not is_pingpong(config) or (two and others == 1 and work_tiles(config, problem) > device.limits.sms)


def _cluster_alone(config: Config, problem: Problem, _: Device) -> bool:
    others = max(config["CLUSTER"], config["SPLIT_K"], config["MIN_BLOCKS"], planes(problem))
    return config["CLUSTER_K"] == 1 or (others == 1 and config["BLOCKS"] == 0)


def _cluster_for_sms(config: Config, problem: Problem, device: Device) -> bool:
    room = clustered_sms(cluster_size(config), device.limits.sms)
    return config["CLUSTER_K"] == 1 or work_tiles(config, problem) <= room


def _cluster_divides(config: Config, problem: Problem, _: Device) -> bool:
    parts, own = config["CLUSTER_K"], k_tiles_per_block(config, problem)
    return parts == 1 or (own >= FEWEST_K_TILES and -(-k_tiles(config, problem) // own) == parts)


def _split_fits(config: Config, problem: Problem, _: Device) -> bool:
    return config["SPLIT_K"] == 1 or split_fits(config, problem, config["SPLIT_K"])


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    most = larger(problem.m, problem.n, problem.k * planes(problem), problem.batch)
    return most <= MOST - 512 and work_tiles(config, problem) <= MOST


_TILE: Final = ("BM", "BN", "SWAP_AB")
_SIDES: Final = (*_TILE, "PACK_K", "REALIGN")
_WORKS: Final = (*_SIDES, "CLUSTER", "CLUSTER_K")
RULES: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "a k tile that is not 128 bytes along k": (_one_line, ("BK",)),
    "packing or realigning of operands that need neither, or neither of those that need one": (
        _as_needed,
        ("SWAP_AB", "PACK_K", "REALIGN"),
    ),
    "TMA stores although C's rows are not multiples of 16 bytes, or none although they are": (
        _as_rows_are,
        ("TMA_STORE",),
    ),
    "accumulation in the tensor cores over more of k than the error bound allows": (_promoted, ("PROMOTE_K",)),
    "rows that are not a multiple of 64 for each consumer": (_whole_rows, (*_TILE, "CONSUMERS")),
    "more rows of float16 terms a consumer than registers allow": (_one_block_of_rows, (*_SIDES, "CONSUMERS")),
    "a tile more than half past C's edge": (_not_far_outside, _SIDES),
    "more accumulators a thread than leave registers for the rest": (
        _sums_fit,
        ("BK", "TMA_STORE", *_SIDES, "CONSUMERS", "MIN_BLOCKS"),
    ),
    "operands realigned beside other blocks or consumers, in a cluster, or in more registers than there are": (
        _copied,
        ("BK", *_SIDES, "CONSUMERS", "MIN_BLOCKS", "CLUSTER"),
    ),
    "an MN-major operand whose tile is no multiple of its swizzle": (_whole_spans, _SIDES),
    "a cluster whose blocks do not share the RHS evenly, or that is larger than C": (
        _shared_well,
        (*_SIDES, "CLUSTER"),
    ),
    "k shared out in a cluster that shares operands too, in splits, or among blocks that stay or have others beside": (
        _cluster_alone,
        ("CLUSTER", "CLUSTER_K", "SPLIT_K", "MIN_BLOCKS", "BLOCKS"),
    ),
    "tiles in turn by three consumers, or in blocks that have one tile, share k or operands, or have others beside": (
        _pingpong_needed,
        (*_WORKS, "CONSUMERS", "SPLIT_K", "MIN_BLOCKS"),
    ),
    "k shared out in a cluster, where tiles alone fill the SMs": (_cluster_for_sms, (*_WORKS, "SPLIT_K")),
    "k with too little for each block of a cluster": (_cluster_divides, ("BK", "CLUSTER_K", "SPLIT_K")),
    "more shared memory than the device has": (
        _shared_fits,
        ("BK", *_SIDES, "CONSUMERS", "CLUSTER_K", "MIN_BLOCKS", "C_IN_STAGES", "STAGES"),
    ),
    "more stages than are of use, or fewer than fit": (
        _room_used,
        ("BK", *_WORKS, "CONSUMERS", "MIN_BLOCKS", "SPLIT_K", "C_IN_STAGES", "STAGES"),
    ),
    "small tiles, where large ones fill the SMs": (_large_enough, ("BM", "BN")),
    "groups of more rows of tiles than C has, or where it has one column of them": (
        _grouped,
        (*_SIDES, "CLUSTER", "GROUP_M"),
    ),
    "split k, where tiles alone fill the SMs": (_split_for_sms, (*_WORKS, "SPLIT_K")),
    "splits of k that are empty, or shorter than two k tiles": (_long_splits, ("BK", "SPLIT_K")),
    "more tiles of split k than there are counters, or partial sums than fit in the workspace": (
        _split_fits,
        (*_SIDES, "CONSUMERS", "MIN_BLOCKS", "CLUSTER", "SPLIT_K"),
    ),
    "several blocks on an SM, where one suffices": (
        _beside_others,
        (*_WORKS, "CONSUMERS", "MIN_BLOCKS", "SPLIT_K"),
    ),
    "C through stages that have another tile next or registers to spare for none, or beside free ones": (
        _c_in_free_stages,
        (*_WORKS, "CONSUMERS", "MIN_BLOCKS", "SPLIT_K", "C_IN_STAGES"),
    ),
    "persistent blocks other than one for each SM": (
        _as_many_blocks,
        (*_WORKS, "MIN_BLOCKS", "SPLIT_K", "BLOCKS"),
    ),
    "more tiles or elements than 31 bits count": (_counted, (*_WORKS, "SPLIT_K")),
}
# What is refused soonest comes first, so that little is built up.
SPACE: Final = Space(
    parameters={
        "BK": (32, 64),
        "TMA_STORE": (0, 1),
        "PROMOTE_K": (0, *PROMOTIONS),
        "SWAP_AB": (0, 1),
        "PACK_K": (0, 1, 2, 3),
        "REALIGN": (0, 1, 2, 3),
        "BM": SIDES,
        "BN": SIDES,
        "CONSUMERS": (1, 2, 3),
        "MIN_BLOCKS": (1, 2, 4),
        "CLUSTER": (1, 2),
        "CLUSTER_K": (1, *PARTS),
        "SPLIT_K": SPLITS,
        "C_IN_STAGES": (0, 1),
        "STAGES": STAGES,
        "GROUP_M": GROUPS,
        "BLOCKS": BLOCKS,
    },
    rules={reason: rule for reason, (rule, _) in RULES.items()},
    reads={reason: names for reason, (_, names) in RULES.items()},
)
