"""Stream-K: as many blocks as run at once share the k tiles of output tiles that would not fill the SMs evenly.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.register_tiled.plan import threads
from kernels.rules import LINE_BYTES, blocks
from kernels.space import Config, Rule
from kernels.split_k import PARTIALS_BYTES, k_tiles, k_tiles_per_split

# SMs of devices from sm_80 on, as their data sheets give them.
SMS: Final = (56, 58, 72, 84, 108, 114, 128, 132, 142, 148, 170, 188)
# Threads that keep an SM busy, the least elements of a thread tile and the most k of a k tile: smaller tiles fill the
# SMs evenly as they are.
BUSY: Final = 256
SUMS: Final = 64
DEPTH: Final = 16
# How uneven the last wave must be, and the most blocks that share a tile, whose partial sums one block adds up.
EVEN: Final = 1.08
FULL: Final = 2
MOST_PARTIALS: Final = 8
FEWEST_K_TILES: Final = 4
# The kernel counts shared k tiles in 32 bits.
MOST_K_TILES: Final = 2**31
LAUNCH: Final = 2e-6  # seconds
# A tile's prologue and epilogue, and what operands' loads add to a product.
START: Final = 4e-6  # seconds
LOAD_COST: Final = 1.0
# How much slower the main loop is with stream-K, as measured; and if copies of one element also crowd the registers of
# large thread tiles.
SHARED_COST: Final = 0.08
CROWDED_COST: Final = 0.12


@dataclass(frozen=True, slots=True)
class StreamKSchedule:
    """The work of a block: `rounds` whole tiles and `each` k tiles of shared ones; the first `more` have one more."""

    blocks: int
    each: int
    more: int
    rounds: int

    @property
    def scalars(self) -> tuple[int, int, int, int]:
        """The kernel's arguments."""
        return self.blocks, self.each, self.more, self.rounds


def stream_k_schedule(config: Config, problem: Problem) -> StreamKSchedule:
    """Schedule all but the last whole wave of tiles whole, so that few blocks share a tile."""
    tiles, steps, concurrent = (
        blocks(config, problem),
        k_tiles(config, problem),
        config["STREAM_K_SMS"] * config["MIN_BLOCKS"],
    )
    rounds = tiles // concurrent - (tiles % concurrent > 0 and tiles > concurrent)
    shared = (tiles - rounds * concurrent) * steps
    if shared >= MOST_K_TILES:
        return StreamKSchedule(tiles, 0, 0, 1)
    own = concurrent if rounds else min(concurrent, shared)
    return StreamKSchedule(own, *divmod(shared, own), rounds)


def stream_k_lines(config: Config, problem: Problem, shared: StreamKSchedule) -> int:
    """Lines of 128 bytes in the workspace for the partial sums of each block's tile, if tiles are shared."""
    size = config["BM"] * config["BN"] * problem.itemsize
    return shared.blocks * size // LINE_BYTES if shared.each else 0


def partials_lines(problem: Problem, splits: int) -> int:
    """Lines of 128 bytes in the workspace for the partial sums of split k."""
    return problem.batch * splits * -(-problem.m * problem.n // (LINE_BYTES // problem.itemsize))


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds of the busiest SM: its products, prologues and epilogues of tiles, and reductions."""
    limits, size = device.limits, config["BM"] * config["BN"]
    loads = 1 + LOAD_COST * (1 / config["TM"] + 1 / config["TN"])
    k_tile = 2 * size * config["BK"] * loads * limits.sms / limits.peak
    tiles, whole = blocks(config, problem), k_tiles(config, problem)
    if config["STREAM_K_SMS"]:
        concurrent, found = config["MIN_BLOCKS"], stream_k_schedule(config, problem)
        k_tile *= 1 + SHARED_COST + CROWDED_COST * (config["VECTOR"] == 1 and config["TM"] * config["TN"] > SUMS)
        parts = problem.itemsize * size * (2 + found.blocks / tiles) * found.blocks / limits.bandwidth
        return concurrent * (found.each + 1 + found.rounds * whole) * k_tile + START + parts
    waves, splits = -(-tiles * config["SPLIT_K"] // limits.sms), config["SPLIT_K"]
    joined = LAUNCH + 2 * LINE_BYTES * partials_lines(problem, splits) / limits.bandwidth if splits > 1 else 0
    return waves * (k_tiles_per_split(config, problem) * k_tile + START) + joined


def _as_many_sms(config: Config, _: Problem, device: Device) -> bool:
    return config["STREAM_K_SMS"] in {0, device.limits.sms}


def _one_split(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["SPLIT_K"] == 1


def _large(config: Config, _: Problem, __: Device) -> bool:
    large = threads(config) * config["MIN_BLOCKS"] == BUSY and config["TM"] * config["TN"] >= SUMS
    return config["STREAM_K_SMS"] == 0 or (large and config["SLICE_K"] == 1)


def _short_k_tiles(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["BK"] <= DEPTH


def _registers_left(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["PACK_MN"] == 0 or config["TM"] * config["TN"] < 2 * SUMS


def _uneven(config: Config, problem: Problem, _: Device) -> bool:
    tiles, concurrent = blocks(config, problem), config["STREAM_K_SMS"] * config["MIN_BLOCKS"]
    return concurrent == 0 or -(-tiles // concurrent) * concurrent >= EVEN * tiles


def _full(config: Config, problem: Problem, _: Device) -> bool:
    launched = blocks(config, problem) * config["BM"] * config["BN"]
    return config["STREAM_K_SMS"] == 0 or launched <= FULL * problem.batch * problem.m * problem.n


def _few_partials(config: Config, problem: Problem, _: Device) -> bool:
    return config["STREAM_K_SMS"] * config["MIN_BLOCKS"] <= MOST_PARTIALS * blocks(config, problem)


def _enough_k_tiles(config: Config, problem: Problem, _: Device) -> bool:
    concurrent = config["STREAM_K_SMS"] * config["MIN_BLOCKS"]
    return blocks(config, problem) * k_tiles(config, problem) >= FEWEST_K_TILES * concurrent


def _partials_fit(config: Config, problem: Problem, _: Device) -> bool:
    size = config["BM"] * config["BN"] * problem.itemsize
    return config["STREAM_K_SMS"] * config["MIN_BLOCKS"] * size <= PARTIALS_BYTES


_TILE: Final = ("BM", "BN", "MIN_BLOCKS", "STREAM_K_SMS")
RULES: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "stream-K over a number of SMs other than the device's": (_as_many_sms, ("STREAM_K_SMS",)),
    "stream-K and split k at once": (_one_split, ("STREAM_K_SMS", "SPLIT_K")),
    "stream-K with small tiles, or other than 256 threads an SM": (_large, (*_TILE, "TM", "TN", "SLICE_K")),
    "stream-K with k tiles longer than it needs": (_short_k_tiles, ("STREAM_K_SMS", "BK")),
    "stream-K of packed operands, with accumulators that leave too few registers": (
        _registers_left,
        ("STREAM_K_SMS", "PACK_MN", "TM", "TN"),
    ),
    "stream-K, where tiles fill the SMs evenly": (_uneven, _TILE),
    "stream-K with tiles more than half past C's edge": (_full, ("BM", "BN", "STREAM_K_SMS")),
    "stream-K with a tile shared by too many blocks": (_few_partials, _TILE),
    "too few k tiles for stream-K": (_enough_k_tiles, (*_TILE, "BK")),
    "more partial sums of stream-K than fit in the workspace": (_partials_fit, _TILE),
}
