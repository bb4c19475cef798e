"""The configs of hopper, and the rules that refuse some of them."""

from __future__ import annotations

from typing import Final

from kernels import packing
from kernels.arithmetic import tensor_peak
from kernels.device import Device
from kernels.fp32_emulation import PROMOTIONS, SHARE
from kernels.hopper.plan import (
    BARRIER_BYTES,
    EIGHT,
    LINE_BYTES,
    ROWS,
    SUMS_BYTES,
    VECTOR_BYTES,
    besides_bytes,
    down,
    element_bytes,
    emulated,
    planes,
    ragged,
    shared_bytes,
    sides,
    span,
    stage_bytes,
    sums_bytes,
    works,
)
from kernels.problem import Problem
from kernels.space import Config, Rule, Space
from kernels.split_k import phases, share

# What a side of the tile may be: whole eights, as the instruction's columns, so many that any number of SMs is filled.
SIDES: Final = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 168, 176, 192, 208, 224, 240, 256)
STAGES: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# SMs of Hopper devices, as their data sheets give them, and fewer: a few without work leave the others more power.
BLOCKS: Final = (0, 78, 114, 128, 132)
FEWEST: Final = 0.95
# A side across k has 16 columns at least.
LEAST: Final = 16
# A tile is small that has fewer elements, and work enough are so many for each SM.
LARGE: Final = 128 * 128
WAVES: Final = 8
# A thread's sums that leave registers for the rest, by consumers: these have 255, 232 (240 of halves) and 160; ptxas
# gives one instruction no more than the block began with, which is 128 where they are three; by blocks on an SM, which
# leave 200 and 96 to each thread; and of these with what a thread gathers of the left side.
MOST_SUMS: Final = {1: 128, 2: 128, 3: 96}
MOST_SPLIT_SUMS: Final = {1: 192, 2: 192, 3: 96}
MOST_BESIDE: Final = {1: 192, 2: 96, 4: 32}
MOST_GATHERED: Final = 144
# The last slice has half as many phases as the others, or more, and each at least so many.
FEWEST_PHASES: Final = 2
# Bytes on their way from memory past which it is no sooner done with what it alone bounds: on an H200, twelve such
# shapes are fastest with 8 to 13 million or all that have room, and lose up to 5 % where it is twice as much.
UNDER_WAY: Final = 11 * 2**20
# A launch's pieces of work are counted in 31 bits, and so are places in tensors.
MOST: Final = 2**31 - 1


def needed(config: Config, problem: Problem) -> int:
    """The operands that are to be copied: with ragged rows, or if its 32-bit elements are not along k the right one."""
    which = packing.ragged(problem)
    across = not problem.trans_b if not config["SWAP_AB"] else problem.trans_a
    if problem.precision == "tf32" and across:
        which |= packing.A if config["SWAP_AB"] else packing.B
    return which


def sums(config: Config, problem: Problem) -> int:
    """Sums that a consumer's thread has in registers."""
    left, right = sides(config, problem)
    return left.tile // config["CONSUMERS"] * right.tile // 128 * (3 if emulated(problem) else 1)


def gathered(config: Config, problem: Problem) -> int:
    """Elements of the left side that such a thread has in registers: 32-bit ones that are stored across k."""
    left, _ = sides(config, problem)
    across = problem.precision == "tf32" and not left.along
    return left.tile // config["CONSUMERS"] * config["BK"] // 128 if across else 0


def _one_line(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] * element_bytes(problem) == LINE_BYTES


def _whole_rows(config: Config, _: Problem, __: Device) -> bool:
    return (config["BN"] if config["SWAP_AB"] else config["BM"]) % (ROWS * config["CONSUMERS"]) == 0


def _one_block_of_rows(config: Config, problem: Problem, _: Device) -> bool:
    left, _right = sides(config, problem)
    return not emulated(problem) or left.tile == ROWS * config["CONSUMERS"]


def _sums_fit(config: Config, problem: Problem, _: Device) -> bool:
    own, most = sums(config, problem), MOST_SPLIT_SUMS if emulated(problem) else MOST_SUMS
    return (
        own <= most[config["CONSUMERS"]]
        and own <= MOST_BESIDE[config["MIN_BLOCKS"]]
        and (gathered(config, problem) == 0 or own + gathered(config, problem) <= MOST_GATHERED)
    )


def _shared_well(config: Config, problem: Problem, _: Device) -> bool:
    left, right = sides(config, problem)
    if config["CLUSTER"] == 1:
        return True
    return right.tile % (2 * EIGHT) == 0 and left.tile < left.size


def _whole_spans(config: Config, problem: Problem, _: Device) -> bool:
    return all(side.along or span(side.tile, element_bytes(problem)) > VECTOR_BYTES for side in sides(config, problem))


def _as_needed(config: Config, problem: Problem, _: Device) -> bool:
    return config["PACK_K"] == (0 if emulated(problem) else needed(config, problem))


def _as_rows_are(config: Config, problem: Problem, _: Device) -> bool:
    return config["TMA_STORE"] == (not ragged(problem))


def _promoted(config: Config, problem: Problem, _: Device) -> bool:
    if not emulated(problem):
        return config["PROMOTE_K"] == 0
    return config["PROMOTE_K"] in PROMOTIONS and (
        SHARE * config["PROMOTE_K"] <= problem.k or config["PROMOTE_K"] == PROMOTIONS[0]
    )


def stages_fit(config: Config, problem: Problem, device: Device) -> int:
    """How many stages have room in shared memory, beside other blocks if there are."""
    limits = device.limits
    room = min(limits.shared_bytes, limits.shared_bytes_per_sm // config["MIN_BLOCKS"] - limits.shared_bytes_reserved)
    return (room - besides_bytes(config)) // (stage_bytes(config, problem) + BARRIER_BYTES)


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes and config["STAGES"] <= stages_fit(
        config, problem, device
    )


def enough_stages(config: Config, problem: Problem, device: Device) -> list[int]:
    """How many stages a block may have, fewest first.

    There is room for all of them, they are no more than the phases of a block's work, and no more than memory keeps up
    with where it bounds the product.
    """
    rounds = -(-works(config, problem) // (device.limits.sms * config["MIN_BLOCKS"]))
    wanted = share(config, problem) * rounds
    most = min(stages_fit(config, problem, device), next((size for size in STAGES if size >= wanted), STAGES[-1]))
    if problem.flops * device.limits.bandwidth < problem.bytes * tensor_peak(problem, device):
        most = min(most, max(UNDER_WAY * rounds // phase_bytes(config, problem), STAGES[0]))
    return [size for size in STAGES if size <= most]


def phase_bytes(config: Config, problem: Problem) -> int:
    """Bytes that one phase of all pieces of work reads, those that several read counted once."""
    left, right = sides(config, problem)
    lines = sum(-(-side.size // side.tile) * side.tile for side in (left, right))
    return problem.batch * config["SPLIT_K"] * planes(problem) * lines * LINE_BYTES


def _room_used(config: Config, problem: Problem, device: Device) -> bool:
    return config["STAGES"] in enough_stages(config, problem, device)[-2:]


def _not_far_outside(config: Config, problem: Problem, _: Device) -> bool:
    left, right = sides(config, problem)
    return (left.tile <= ROWS or left.tile < 2 * left.size) and (right.tile <= LEAST or right.tile < 2 * right.size)


def stays(config: Config, problem: Problem, device: Device) -> list[int]:
    """How many blocks may stay for one piece of work after the other, in no more rounds; none where one is enough."""
    sms, held, count = device.limits.sms, config["MIN_BLOCKS"], works(config, problem)
    rounds = -(-count // (sms * held))
    sizes = [size for size in BLOCKS if FEWEST * sms <= size <= sms]
    return [size for size in sizes if rounds > 1 and -(-count // (size * held)) == rounds]


def _as_many_blocks(config: Config, problem: Problem, device: Device) -> bool:
    return config["BLOCKS"] in (stays(config, problem, device) or [0])


def _beside_others(config: Config, problem: Problem, device: Device) -> bool:
    alone = config["CONSUMERS"] == config["CLUSTER"] == 1
    return config["MIN_BLOCKS"] == 1 or (alone and works(config, problem) > device.limits.sms)


def _large_enough(config: Config, problem: Problem, device: Device) -> bool:
    area = config["BM"] * config["BN"]
    whole = config["BM"] >= problem.m or config["BN"] >= problem.n or problem.batch > 1
    return whole or area >= LARGE or problem.m * problem.n < WAVES * area * device.limits.sms


def _grouped(config: Config, problem: Problem, device: Device) -> bool:
    rows = down(config, problem)
    return config["GROUP_M"] == 1 or (config["GROUP_M"] < 2 * rows and works(config, problem) > device.limits.sms)


def _split_for_sms(config: Config, problem: Problem, device: Device) -> bool:
    return config["SPLIT_K"] == 1 or works(config, problem) <= 2 * device.limits.sms


def _long_slices(config: Config, problem: Problem, _: Device) -> bool:
    slices = config["SPLIT_K"]
    own = share(config, problem)
    return slices == 1 or (own >= FEWEST_PHASES and -(-phases(config, problem) // own) == slices)


def _slices_fit(config: Config, problem: Problem, _: Device) -> bool:
    return config["SPLIT_K"] == 1 or sums_bytes(config, problem, config["SPLIT_K"]) <= SUMS_BYTES


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    most = max(problem.m, problem.n, problem.k * planes(problem), problem.batch)
    return most <= MOST - 512 and works(config, problem) <= MOST


_TILE: Final = ("BM", "BN", "SWAP_AB")
_SIDES: Final = (*_TILE, "PACK_K")
_WORKS: Final = (*_SIDES, "CLUSTER")
RULES: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "a phase that is not 128 bytes along k": (_one_line, ("BK",)),
    "copies of operands that need none, or none of those that do": (_as_needed, ("SWAP_AB", "PACK_K")),
    "boxes of C whose rows are not whole 16 bytes, or none where they are": (_as_rows_are, ("TMA_STORE",)),
    "sums that stay in the tensor cores for more of k than the bound allows": (_promoted, ("PROMOTE_K",)),
    "another number of rows than whole 64s for each consumer": (_whole_rows, (*_TILE, "CONSUMERS")),
    "a consumer with more rows of halves than it has registers for": (_one_block_of_rows, (*_SIDES, "CONSUMERS")),
    "a tile more than half past C's edge": (_not_far_outside, _SIDES),
    "more sums a thread than leave registers for the rest": (_sums_fit, ("BK", *_SIDES, "CONSUMERS", "MIN_BLOCKS")),
    "a side across k that is no whole number of spans": (_whole_spans, _SIDES),
    "a cluster of tiles that do not share their columns evenly, or are not all there": (_shared_well, _WORKS),
    "more shared memory than the device has": (_shared_fits, (*_SIDES, "CONSUMERS", "MIN_BLOCKS", "STAGES")),
    "more stages than are of use, or fewer than have room": (
        _room_used,
        ("BK", *_WORKS, "CONSUMERS", "MIN_BLOCKS", "SPLIT_K", "STAGES"),
    ),
    "small tiles, where large ones give the SMs work enough": (_large_enough, ("BM", "BN")),
    "tiles in groups, where all are multiplied at once": (_grouped, (*_WORKS, "GROUP_M", "SPLIT_K")),
    "SMs that have work as it is, and k in slices as well": (_split_for_sms, (*_WORKS, "SPLIT_K")),
    "slices of k that are not of some phases each": (_long_slices, ("BK", "SPLIT_K")),
    "more sums of slices than scratch has room for": (_slices_fit, (*_SIDES, "SPLIT_K")),
    "blocks beside each other, where they do not need to be": (
        _beside_others,
        (*_WORKS, "CONSUMERS", "MIN_BLOCKS", "SPLIT_K"),
    ),
    "another number of blocks that stay than the device has SMs for": (
        _as_many_blocks,
        (*_WORKS, "MIN_BLOCKS", "SPLIT_K", "BLOCKS"),
    ),
    "more tiles or places than are counted in 31 bits": (_counted, (*_WORKS, "SPLIT_K")),
}
# What is refused soonest comes first, so that little is built up.
SPACE: Final = Space(
    parameters={
        "BK": (32, 64),
        "TMA_STORE": (0, 1),
        "PROMOTE_K": (0, *PROMOTIONS),
        "SWAP_AB": (0, 1),
        "PACK_K": (0, 1, 2, 3),
        "BM": SIDES,
        "BN": SIDES,
        "CONSUMERS": (1, 2, 3),
        "MIN_BLOCKS": (1, 2, 4),
        "CLUSTER": (1, 2),
        "SPLIT_K": SPLITS,
        "STAGES": STAGES,
        "GROUP_M": (1, 8, 16),
        "BLOCKS": BLOCKS,
    },
    rules={reason: rule for reason, (rule, _) in RULES.items()},
    reads={reason: names for reason, (_, names) in RULES.items()},
)
