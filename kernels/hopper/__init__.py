"""hopper: tiles that the TMA unit brings and groups of four warps multiply on tensor cores; sm_90 alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from kernels import fp32_emulation, packing
from kernels.arithmetic import WGMMA
from kernels.device import Device
from kernels.hopper.plan import (
    SPLIT_K_REDUCE,
    WGMMA_M,
    TileOperand,
    element_bytes,
    emulated,
    k_tiles_per_block,
    partials_bytes,
    plan,
    planes,
    ragged,
    swizzle_bytes,
    tile_operands,
    tile_rows,
    tiles,
    work_tiles,
)
from kernels.hopper.space import RULES, SPACE, SPLITS, enough_stages, operands_to_pack, stays
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.rules import LINE_BYTES
from kernels.space import Config
from kernels.split_k import k_tiles

# Cycles: what one instruction for 64 rows takes of an SM for each column, where the columns are read faster than that,
# and what reading its rows adds where they are not; what an SM reads of the cache in bytes; what a box for all of a
# cluster takes beside, and what a line takes each time that some tile reads it.
COLUMN_CYCLES: Final = 0.5
ROWS_CYCLES: Final = 16
READ_CYCLES: Final = 0.25
CACHE_BYTES: Final = 48
SHARED_CYCLES: Final = 220
AGAIN_CYCLES: Final = 3.75
# Cycles until the first bytes are there, those between one piece of work and the next, and what each of its sums takes
# on its way to C.
START_CYCLES: Final = 1200
BETWEEN_CYCLES: Final = 1000
STORE_CYCLES: Final = 1 / 24
# Cycles of a cluster's start and barrier, and bytes a cycle of partial sums that a block leaves and reads of others'.
EXCHANGE_CYCLES: Final = 2100
EXCHANGED_BYTES: Final = 7.5
# Phases in shared memory that are too few, and what products wait for where there are no more; and of all SMs those
# that memory needs to be busy.
TOO_FEW: Final = 2
TOO_FEW_COST: Final = 1.4
FEW_SMS: Final = 0.5
# What memory adds to products, which do not quite hide it, and to itself where tiles hold what is outside.
ONE_BY_ONE: Final = 0.125
EMPTY_COST: Final = 0.5
# Seconds that a launch after the first takes, and what of the float32 units' flop/s a cycle of an SM is.
LAUNCH: Final = 3e-6
FLOPS_A_CYCLE: Final = 256
GROUP_M: Final = 8  # rows of tiles
STEPS: Final = 4  # instructions along a line of k
PRODUCTS: Final = 3  # of halves
# What defaults are chosen from: the left side, the right one, consumers, blocks on an SM.
TILES: Final = (
    *((128, columns, 2, 1) for columns in (256, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64)),
    (256, 128, 2, 1),
    (256, 96, 2, 1),
    *((64, columns, 1, 1) for columns in (256, 192, 128, 96, 64, 48, 32, 16, 8)),
    *((64, columns, 1, min_blocks) for columns in (64, 32, 16, 8) for min_blocks in (2, 4)),
)
# What a choice of these says, and the rules that ask for no more.
_FIRST: Final = ("BK", "TMA_STORE", "PROMOTE_K", "SWAP_AB", "PACK_K", "BM", "BN", "CONSUMERS", "MIN_BLOCKS", "CLUSTER")
_EARLY: Final = tuple(holds for holds, names in RULES.values() if set(names).issubset(_FIRST))


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds of the busiest SM: products, or their loads if these take longer, prologues, epilogues and reductions."""
    limits, (lhs, rhs) = device.limits, tile_operands(config, problem)
    cycle = FLOPS_A_CYCLE * limits.sms / limits.peak
    min_blocks, splits, blocks = config["MIN_BLOCKS"], config["SPLIT_K"], work_tiles(config, problem)
    waves = -(-blocks // (limits.sms * min_blocks))
    tail = lhs.tile * rhs.tile * STORE_CYCLES
    phase = max(_products(config, problem), _reads(config, problem))
    tail += _exchange(config, lhs.tile * rhs.tile)
    tile = k_tiles_per_block(config, problem) * phase * min_blocks + BETWEEN_CYCLES + tail
    joined = LAUNCH + 2 * partials_bytes(config, problem, splits) / limits.bandwidth if splits > 1 else 0
    alone = max(1.0, FEW_SMS * limits.sms / blocks)
    floor = max(alone * problem.bytes / limits.bandwidth, _again(config, problem) * cycle)
    busy = max((START_CYCLES + waves * tile) * cycle, floor) + floor * (ONE_BY_ONE + EMPTY_COST * _empty(lhs, rhs))
    return busy + joined + _copying(config, problem, device)


def _exchange(config: Config, elements: int) -> float:
    """Cycles until a cluster's blocks have each other's partial sums."""
    blocks = config["CLUSTER_K"]
    return EXCHANGE_CYCLES + 4 * elements * (blocks - 1) / blocks / EXCHANGED_BYTES if blocks > 1 else 0


def _products(config: Config, problem: Problem) -> float:
    """Cycles of the products of a k tile."""
    lhs, rhs = tile_operands(config, problem)
    each = max(COLUMN_CYCLES * rhs.tile, ROWS_CYCLES + READ_CYCLES * rhs.tile)
    products = lhs.tile / WGMMA_M * STEPS * each * (PRODUCTS if emulated(problem) else 1)
    return products * TOO_FEW_COST if config["STAGES"] == TOO_FEW < k_tiles_per_block(config, problem) else products


def _reads(config: Config, problem: Problem) -> float:
    """Cycles that a phase's boxes take: each of their rows as long as a whole line."""
    lhs, rhs = tile_operands(config, problem)
    cluster = config["CLUSTER"]
    lines = lhs.tile * _rows_a_line(lhs, problem) + rhs.tile * _rows_a_line(rhs, problem) / cluster
    return planes(problem) * LINE_BYTES * lines / CACHE_BYTES + (SHARED_CYCLES if cluster > 1 else 0)


def _rows_a_line(side: TileOperand, problem: Problem) -> float:
    return 1 if side.k_major else LINE_BYTES / swizzle_bytes(side.tile, element_bytes(problem))


def _again(config: Config, problem: Problem) -> float:
    """Cycles that the line takes that most tiles read: it is in one place of the cache."""
    lhs, rhs = tile_operands(config, problem)
    of_lhs, of_rhs = _rows_a_line(lhs, problem), _rows_a_line(rhs, problem)
    return AGAIN_CYCLES * max(-(-rhs.size // rhs.tile) * of_lhs, tile_rows(config, problem) * of_rhs)


def _empty(lhs: TileOperand, rhs: TileOperand) -> float:
    """The excess of tiles over the operands, as a fraction."""
    useful = sum(side.size / -(-side.size // side.tile) for side in (lhs, rhs))
    return (lhs.tile + rhs.tile) / useful - 1


def _copying(config: Config, problem: Problem, device: Device) -> float:
    packed = problem.a_bytes * bool(config["PACK_K"] & packing.A) + problem.b_bytes * bool(config["PACK_K"] & packing.B)
    return LAUNCH + 2 * packed / device.limits.bandwidth if packed else 0


def _default(problem: Problem, device: Device) -> Config:
    found = [config for config in _ways(problem, device) if SPACE.refusal(config, problem, device) is None]
    if not found:
        return next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))
    return min(found, key=lambda config: seconds(config, problem, device))


def _ways(problem: Problem, device: Device) -> Iterator[Config]:
    """Configs of the tiles, with and without SWAP_AB: stages, splits, clusters and groups of tiles."""
    for swap in (0, 1):
        for lhs, rhs, consumers, min_blocks in TILES:
            for cluster in (2, 1):
                begun = _begun(problem, swap, (lhs, rhs, consumers, min_blocks, cluster))
                if all(holds(begun, problem, device) for holds in _EARLY):
                    yield from _finished(dict(begun), problem, device)


@cache
def _promotion(k: int) -> int:
    return max(
        (size for size in fp32_emulation.PROMOTIONS if fp32_emulation.SHARE * size <= k),
        default=fp32_emulation.PROMOTIONS[0],
    )


def _begun(problem: Problem, swap: int, shape: tuple[int, int, int, int, int]) -> Config:
    lhs, rhs, consumers, min_blocks, cluster = shape
    own = {
        "BK": 32 if problem.precision == "tf32" else 64,
        "TMA_STORE": int(not ragged(problem)),
        "PROMOTE_K": _promotion(problem.k) if emulated(problem) else 0,
        "SWAP_AB": swap,
        "PACK_K": 0 if emulated(problem) else operands_to_pack(Config.of({"SWAP_AB": swap}), problem),
        "BM": rhs if swap else lhs,
        "BN": lhs if swap else rhs,
        "CONSUMERS": consumers,
        "MIN_BLOCKS": min_blocks,
        "CLUSTER": cluster,
    }
    return Config.of(own)


def _finished(begun: dict[str, int], problem: Problem, device: Device) -> Iterator[Config]:
    sms = device.limits.sms
    count = tiles(Config.of(begun), problem) * begun["CLUSTER"]
    most = k_tiles(Config.of(begun), problem)
    for splits, parts in (*((splits, 1) for splits in SPLITS), (1, 2), (1, 4)):
        if splits * parts > 1 and (splits * parts * count > 2 * sms or splits * parts > most):
            continue
        grouped = count > 2 * sms and 2 * tile_rows(Config.of(begun), problem) > GROUP_M
        own = begun | {"CLUSTER_K": parts, "SPLIT_K": splits}
        enough = enough_stages(Config.of(own), problem, device)
        stay = stays(Config.of(own), problem, device)
        if enough:
            more = {"STAGES": enough[-1], "GROUP_M": GROUP_M if grouped else 1, "BLOCKS": stay[-1] if stay else 0}
            yield Config.of(own | more)


HOPPER: Final = Kernel(
    name="hopper",
    summary="Tiles that the TMA unit brings into a ring and groups of four warps multiply on tensor cores by wgmma.",
    file="hopper/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16", "float32"),
    precisions=("strict", "tf32", "emulated"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K", "BLOCKS"),
    auxiliary_sources=(packing.PACK_K_MAJOR, SPLIT_K_REDUCE, *fp32_emulation.FILES),
    sizes=Sizes(emulated_k=fp32_emulation.LEAST_K),
    preferred_untuned=packing.is_worth_packing,
    architectures=("sm_90",),
    shapes=f"any shape, and k of {fp32_emulation.LEAST_K} and more where float32 is emulated",
    excluded_classes=(("float32", "strict"),),
    instructions=WGMMA,
)
