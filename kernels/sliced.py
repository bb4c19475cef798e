"""Rules of kernels whose grid has a block for each tile and slice of k: how many slices, and the order of tiles."""

from __future__ import annotations

from functools import cache
from typing import Final

from kernels.device import Device
from kernels.naive import MAX_GRID, blocks
from kernels.problem import Problem
from kernels.register_plan import phases
from kernels.space import Config

# Of tensor cores' kernels: phases that a slice has at least, the part of a config's slices that a plan must be able to
# fill with whole phases, and waves of blocks beyond which no k is sliced.
FEWEST_PHASES: Final = 4
FULL: Final = 0.95
WAVES: Final = 2


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether a grid can have a block for each slice of each tile."""
    return blocks(config, problem) * config["SPLIT_K"] <= MAX_GRID


def order_matters(config: Config, problem: Problem, device: Device) -> bool:
    """Whether tiles are in no order, or more than run at once."""
    return config["GROUP"] == 1 or blocks(config, problem) > 2 * device.limits.sms


def slices_needed(config: Config, problem: Problem, device: Device) -> bool:
    """Whether k is in one slice, or its slices' blocks are few waves of those that the device holds."""
    split = config["SPLIT_K"]
    return split == 1 or blocks(config, problem) * split <= WAVES * config["HELD"] * device.limits.sms


def slices_whole(config: Config, problem: Problem, _: Device) -> bool:
    """As `are_whole`, of a config's own phases."""
    return are_whole(phases(config, problem), config["SPLIT_K"])


@cache
def are_whole(count: int, split: int) -> bool:
    """Whether so many phases make slices of which hardly one is empty, and none too short; one slice always is."""
    phased = -(-count // split)
    return split == 1 or (phased >= FEWEST_PHASES and -(-count // phased) >= FULL * split)
