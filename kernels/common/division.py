"""Divisions by numbers that a launch knows, as multiplications: scalars of division.h and tile_scheduler.h."""

from __future__ import annotations

from typing import Final

from kernels.problem import smaller

_ONE: Final = 1 << 62  # what the kernels shift out: of what is divided there are 31 bits, and a scalar has a sign


def divider(divisor: int) -> int:
    """A multiplier: x times it, shifted right by 62, is x // divisor for all x and divisors below 2^31.

    Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994).
    """
    return -(-_ONE // divisor)


def tile_order(down: int, across: int, splits: int, group_m: int) -> tuple[int, ...]:
    """The scalars of a kernel's TILE_ORDER_ARGUMENTS: `down` x `across` tiles, `group_m` rows of them a group."""
    high = smaller(group_m, down)
    last = down - (down - 1) // high * high  # rows of the last group
    return tuple(map(divider, (down * across, splits, high * across, high, last)))
