"""Division by a number that a launch knows, as a multiplication: what common/division.h multiplies by."""

from __future__ import annotations

from typing import Final

_ONE: Final = 1 << 62  # what the kernels shift out: of what is divided there are 31 bits, and a scalar has a sign


def divider(divisor: int) -> int:
    """A multiplier: x times it, shifted right by 62, is x // divisor for all x and divisors below 2^31.

    Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994).
    """
    return -(-_ONE // divisor)
