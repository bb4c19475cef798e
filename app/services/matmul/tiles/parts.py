"""Parts of C's sides that tiles are made of, and what bounds a walk of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from typing import Final

from kernels.problem import Problem

GRAIN: Final = 256  # rows and columns of a tile are a multiple, so that full tiles share a kernel
LEAST: Final = 16  # rows or columns of a tile: with fewer, a launch would be worth nothing
NARROW: Final = 10240  # bytes of rows that are copied first: those of 8 KiB are copied by a third more slowly
_HURRIED: Final = 0.6  # of `side`: a tile of so many rows and columns takes as long as a panel's copy without a margin
_MANY: Final = 4  # walks along a side: of fewer, one more would copy too much again


@dataclass(frozen=True, slots=True)
class WalkBounds:
    """What bounds the walk of one device: it goes along the `inner` side of C for each part of the other one.

    A tile of `side` rows and columns takes as long as the copy of the next panel, with a margin; it has at most `along`
    of the inner side, and at least as much of the other one where memory allows. Panels and results take at most so
    many `elements`, each of them as many as a `buffer` may have.
    """

    problem: Problem
    inner: int
    side: int
    along: int
    elements: int
    buffer: int

    @property
    def covered(self) -> int:
        """As `side`, by a link without a margin."""
        return max(1, int(_HURRIED * self.side))


def turning(parts: Sequence[range]) -> Iterator[Sequence[range]]:
    """Parts in their order and from their end, in turn."""
    return cycle((parts, parts[::-1]))


def even(size: int, most: int) -> int:
    """The tile's side by which a size is cut into as few parts as `most` allows, of one size but for the last."""
    if most >= size:
        return size
    grain = GRAIN if most >= GRAIN else LEAST if most >= LEAST else 1
    most -= most % grain
    return min(most, ceil(ceil(size / ceil(size / most)) / grain) * grain)


def cuts(size: int, most: int, start: int = 0) -> list[range]:
    """Parts of what is left of a size from `start` on, as few as `most` allows, of one length but for the last."""
    return equal_parts(size, start, even(size - start, most))


def equal_parts(size: int, start: int, step: int) -> list[range]:
    """Parts of a size from `start` on, of one length but for the last."""
    return [range(at, min(at + step, size)) for at in range(start, size, step)]


def up(size: float) -> int:
    """A size up to a multiple, for as many full tiles as may be."""
    return ceil(size / GRAIN) * GRAIN


def growing(size: int, first: int, most: int, start: int = 0, *, is_even: bool = False) -> list[range]:
    """Parts of a size from `start` on: `first`, and twice as much each time, up to `most`; then equal ones.

    With `is_even` there are an even number, if there are many: a serpentine along the other side ends where it began,
    with its smallest tile, for whose C nothing is left to wait but itself.
    """
    parts, step = list[range](), first - first % GRAIN
    while 0 < step < most and size - start >= 2 * step:
        parts.append(range(start, start + step))
        start, step = start + step, 2 * step
    rest = cuts(size, most, start)
    if is_even and parts and (len(parts) + len(rest)) % 2 and len(parts) + len(rest) >= _MANY:
        rest = equal_parts(size, start, up((size - start) / (len(rest) + 1)))
    return parts + rest
