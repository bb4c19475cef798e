"""Stream-K: as many blocks as run at once share out the phases of tiles that would not fill the SMs evenly.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.device import Device
from kernels.packing import LINE_BYTES
from kernels.problem import Problem
from kernels.register_tiled.plan import threads
from kernels.rules import blocks
from kernels.space import Config, Rule
from kernels.split_k import SUMS_BYTES, phases, share

# SMs of devices from sm_80 on, as their data sheets give them.
SMS: Final = (56, 58, 72, 84, 108, 114, 128, 132, 142, 148, 170, 188)
# Threads that keep an SM busy with as many registers as it has, elements of a thread's tile, and how long a phase is.
# Smaller tiles fill the SMs evenly as they are.
BUSY: Final = 256
SUMS: Final = 64
DEPTH: Final = 16
# A last wave emptier than this is worth sharing out; one block adds up so many others' sums, one after the other.
EVEN: Final = 1.08
FULL: Final = 2
PARTS: Final = 8
FEWEST_PHASES: Final = 4
# The kernel counts phases that are shared out in 32 bits.
MOST_PHASES: Final = 2**31
LAUNCH: Final = 2e-6  # seconds
# What a tile's first copies and its stores take, in which nothing is multiplied; what operands' reads add to a product.
START: Final = 4e-6  # seconds
LOAD_COST: Final = 1.0
# What the loop over k is slower by where phases are shared out, as measured; and where copies of one element crowd the
# registers of large thread tiles as well.
SHARED_COST: Final = 0.08
CROWDED_COST: Final = 0.12


@dataclass(frozen=True, slots=True)
class Shares:
    """What each of `blocks` blocks has: `each` phases of shared tiles, `more` blocks one more; `rounds` whole tiles."""

    blocks: int
    each: int
    more: int
    rounds: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The kernel's arguments."""
        return self.blocks, self.each, self.more, self.rounds


def shares(config: Config, problem: Problem) -> Shares:
    """Whole waves of tiles are left whole, but for one: so a tile has phases of as few blocks as can be."""
    tiles, steps, held = blocks(config, problem), phases(config, problem), config["STREAM_K_SMS"] * config["MIN_BLOCKS"]
    rounds = tiles // held - (tiles % held > 0 and tiles > held)
    shared = (tiles - rounds * held) * steps
    if shared >= MOST_PHASES:
        return Shares(tiles, 0, 0, 1)
    own = held if rounds else min(held, shared)
    return Shares(own, *divmod(shared, own), rounds)


def parts_lines(config: Config, problem: Problem, shared: Shares) -> int:
    """Lines of 128 bytes in scratch for the sums of a tile from each block, where tiles are shared."""
    size = config["BM"] * config["BN"] * problem.itemsize
    return shared.blocks * size // LINE_BYTES if shared.each else 0


def sums_lines(problem: Problem, slices: int) -> int:
    """Lines of 128 bytes that the sums of so many slices take in scratch."""
    return problem.batch * slices * -(-problem.m * problem.n // (LINE_BYTES // problem.itemsize))


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """What the busiest SM takes, as products, starts of tiles, and sums that are left and added up say."""
    limits, size = device.limits, config["BM"] * config["BN"]
    loads = 1 + LOAD_COST * (1 / config["TM"] + 1 / config["TN"])
    phase = 2 * size * config["BK"] * loads * limits.sms / limits.peak
    tiles, whole = blocks(config, problem), phases(config, problem)
    if config["STREAM_K_SMS"]:
        held, found = config["MIN_BLOCKS"], shares(config, problem)
        phase *= 1 + SHARED_COST + CROWDED_COST * (config["VECTOR"] == 1 and config["TM"] * config["TN"] > SUMS)
        parts = problem.itemsize * size * (2 + found.blocks / tiles) * found.blocks / limits.bandwidth
        return held * (found.each + 1 + found.rounds * whole) * phase + START + parts
    waves, slices = -(-tiles * config["SPLIT_K"] // limits.sms), config["SPLIT_K"]
    joined = LAUNCH + 2 * LINE_BYTES * sums_lines(problem, slices) / limits.bandwidth if slices > 1 else 0
    return waves * (share(config, problem) * phase + START) + joined


def _as_many_sms(config: Config, _: Problem, device: Device) -> bool:
    return config["STREAM_K_SMS"] in {0, device.limits.sms}


def _whole_slices(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["SPLIT_K"] == 1


def _large(config: Config, _: Problem, __: Device) -> bool:
    large = threads(config) * config["MIN_BLOCKS"] == BUSY and config["TM"] * config["TN"] >= SUMS
    return config["STREAM_K_SMS"] == 0 or (large and config["SLICE_K"] == 1)


def _short_phases(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["BK"] <= DEPTH


def _registers_left(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or config["PACK_MN"] == 0 or config["TM"] * config["TN"] < 2 * SUMS


def _uneven(config: Config, problem: Problem, _: Device) -> bool:
    tiles, held = blocks(config, problem), config["STREAM_K_SMS"] * config["MIN_BLOCKS"]
    return held == 0 or -(-tiles // held) * held >= EVEN * tiles


def _full(config: Config, problem: Problem, _: Device) -> bool:
    launched = blocks(config, problem) * config["BM"] * config["BN"]
    return config["STREAM_K_SMS"] == 0 or launched <= FULL * problem.batch * problem.m * problem.n


def _few_parts(config: Config, problem: Problem, _: Device) -> bool:
    return config["STREAM_K_SMS"] * config["MIN_BLOCKS"] <= PARTS * blocks(config, problem)


def _long_shares(config: Config, problem: Problem, _: Device) -> bool:
    held = config["STREAM_K_SMS"] * config["MIN_BLOCKS"]
    return blocks(config, problem) * phases(config, problem) >= FEWEST_PHASES * held


def _parts_fit(config: Config, problem: Problem, _: Device) -> bool:
    size = config["BM"] * config["BN"] * problem.itemsize
    return config["STREAM_K_SMS"] * config["MIN_BLOCKS"] * size <= SUMS_BYTES


_TILE: Final = ("BM", "BN", "MIN_BLOCKS", "STREAM_K_SMS")
RULES: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "phases shared out among another number of SMs than there are": (_as_many_sms, ("STREAM_K_SMS",)),
    "phases shared out, and k in slices as well": (_whole_slices, ("STREAM_K_SMS", "SPLIT_K")),
    "phases shared out among small tiles, or other than 256 threads an SM": (_large, (*_TILE, "TM", "TN", "SLICE_K")),
    "phases shared out that are longer than they need be": (_short_phases, ("STREAM_K_SMS", "BK")),
    "phases shared out of copies, with sums that leave too few registers": (
        _registers_left,
        ("STREAM_K_SMS", "PACK_MN", "TM", "TN"),
    ),
    "phases shared out, where tiles fill the SMs evenly": (_uneven, _TILE),
    "phases shared out of tiles that are more than half past C's edge": (_full, ("BM", "BN", "STREAM_K_SMS")),
    "a tile's phases shared out among too many blocks": (_few_parts, _TILE),
    "too few phases to share out": (_long_shares, (*_TILE, "BK")),
    "more sums of shared tiles than scratch has room for": (_parts_fit, _TILE),
}
