"""Division by a number that a launch knows, as a multiplication and a shift: common/division.h's other half."""

from __future__ import annotations

from typing import Final

_BITS: Final = 31  # of what is divided


def division_by(divisor: int) -> tuple[int, int]:
    """A multiplier and a shift: x times the one, shifted right by the other, is x // divisor for all x below 2^31.

    Both factors have 32 bits (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
    """
    shift = _BITS + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift
