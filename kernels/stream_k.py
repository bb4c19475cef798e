"""Stream-K: as many blocks as run at once share the k tiles of output tiles that would not fill the SMs evenly.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, blocks
from kernels.space import Config, Rule
from kernels.split_k import PARTIALS_BYTES, k_tiles

# SMs of devices from sm_80 on, as their data sheets give them.
SMS: Final = (56, 58, 72, 84, 108, 114, 128, 132, 142, 148, 170, 188)
# How uneven the last wave must be, and the most blocks that share a tile, whose partial sums one block adds up.
EVEN: Final = 1.08
FULL: Final = 2
MOST_PARTIALS: Final = 8
FEWEST_K_TILES: Final = 4
# The kernel counts shared k tiles in 32 bits.
MOST_K_TILES: Final = 2**31


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


def _as_many_sms(config: Config, _: Problem, device: Device) -> bool:
    return config["STREAM_K_SMS"] in {0, device.limits.sms}


def _one_split(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["SPLIT_K"] == 1


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
    "stream-K, where tiles fill the SMs evenly": (_uneven, _TILE),
    "stream-K with tiles more than half past C's edge": (_full, ("BM", "BN", "STREAM_K_SMS")),
    "stream-K with a tile shared by too many blocks": (_few_partials, _TILE),
    "too few k tiles for stream-K": (_enough_k_tiles, (*_TILE, "BK")),
    "more partial sums of stream-K than fit in the workspace": (_partials_fit, _TILE),
}
