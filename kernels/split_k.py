"""Split-K: a grid with a block for each tile and each slice of k; how many slices, and the room for their sums."""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.rules import MAX_GRID, blocks
from kernels.space import Config

# Of tensor cores' kernels: phases that a slice has at least, the part of a config's slices that a plan must be able to
# fill with whole phases, and waves of blocks beyond which no k is sliced.
FEWEST_PHASES: Final = 4
FULL: Final = 0.95
WAVES: Final = 2
# Scratch that sums of slices may take.
SUMS_BYTES: Final = 2**26


def phases(config: Config, problem: Problem) -> int:
    """Steps of BK along all of k."""
    return -(-problem.k // config["BK"])


def share(config: Config, problem: Problem) -> int:
    """Phases of a slice of k; the last slice may have fewer."""
    return -(-phases(config, problem) // config["SPLIT_K"])


def fan(slices: int) -> int:
    """Slices whose sums one block adds up, so that these and their groups together are fewest."""
    return isqrt(slices - 1) + 1


def counters(config: Config, problem: Problem) -> int:
    """Counters of all tiles: one for each group of slices, and one for the groups."""
    slices = config["SPLIT_K"]
    return blocks(config, problem) * (-(-slices // fan(slices)) + 1)


def sums_bytes(config: Config, problem: Problem, slices: int) -> int:
    """Scratch that the sums of so many slices take."""
    return blocks(config, problem) * slices * config["BM"] * config["BN"] * problem.itemsize


def split_fits(config: Config, problem: Problem) -> bool:
    """Whether there are counters enough, and at most 64 MiB of sums."""
    return config["SPLIT_K"] == 1 or (
        counters(config, problem) <= COUNTERS and sums_bytes(config, problem, config["SPLIT_K"]) <= SUMS_BYTES
    )


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether a grid can have a block for each slice of each tile."""
    return blocks(config, problem) * config["SPLIT_K"] <= MAX_GRID


def order_matters(config: Config, problem: Problem, device: Device) -> bool:
    """Whether tiles are in no order, or more than run at once."""
    return config["GROUP_M"] == 1 or blocks(config, problem) > 2 * device.limits.sms


def slices_needed(config: Config, problem: Problem, device: Device) -> bool:
    """Whether k is in one slice, or its slices' blocks are few waves of those that the device holds."""
    split = config["SPLIT_K"]
    return split == 1 or blocks(config, problem) * split <= WAVES * config["MIN_BLOCKS"] * device.limits.sms


def slices_whole(config: Config, problem: Problem, _: Device) -> bool:
    """As `are_whole`, of a config's own phases."""
    return are_whole(phases(config, problem), config["SPLIT_K"])


@cache
def are_whole(count: int, split: int) -> bool:
    """Whether so many phases make slices of which hardly one is empty, and none too short; one slice always is."""
    phased = -(-count // split)
    return split == 1 or (phased >= FEWEST_PHASES and -(-count // phased) >= FULL * split)
