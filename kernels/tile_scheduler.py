"""What common/tile_scheduler.h divides a tile's index by."""

from __future__ import annotations

from kernels.division import divider
from kernels.problem import smaller


def tile_order(down: int, across: int, splits: int, group_m: int) -> tuple[int, ...]:
    """The scalars of a kernel's TILE_ORDER_ARGUMENTS: `down` x `across` tiles, `group_m` rows of them a group."""
    high = smaller(group_m, down)
    last = down - (down - 1) // high * high  # rows of the last group
    return tuple(map(divider, (down * across, splits, high * across, high, last)))
