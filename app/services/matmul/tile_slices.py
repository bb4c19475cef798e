"""Tiles whose first ones come in slices of k: a device computes while their panels come, and waits for one slice.

The product of each slice is added to C. Panels of whole k, however small, leave it idle until it has enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Final

from app.services.matmul.buffers import Tile
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES

_GRAIN: Final = 256  # rows, columns and k of a slice are a multiple
_NARROW: Final = 10240  # bytes of a slice's rows: rows of 8 KiB are copied by a third more slowly
_SLICED: Final = 2  # tiles, after which the next panel is there in time
_LEAST: Final = 2048  # rows or columns of a tile
_PARTS: Final = 16  # of a side at most
_WIDTHS: Final = (1, 2, 3, 4)  # of the first slice, in the narrowest ones
_GROWTH: Final = 0.95  # of the time that a slice takes, in which the next one's copy ends
# In times of a row's copy: by what a launch is less than full, and passes over device memory (its bandwidth is about
# seventy times a link's) of which adding a slice up takes three.
_LAUNCH: Final = 8
_ADDING: Final = 3 / 70
_TAIL: Final = 8  # parts of the largest tile's side that the last tile has
_RESULTS: Final = 4  # buffers of C: of a tile, of the one before it, and of two slices
NEARLY: Final = 0.8  # of the largest part: from so much on a panel has a buffer of that size, of which there are two


def can_be_sliced(problem: Problem) -> bool:
    """Whether sums over slices of k are as exact as those of one launch, and the panel that is kept is stored by k."""
    is_exact = problem.dtype in {"float32", "float64"} and problem.precision != "emulated"
    is_aligned = problem.k * problem.itemsize % VECTOR_BYTES == 0  # so that the last slice is of the launch's class
    return is_exact and is_aligned and problem.batch == 1 and (problem.trans_a or not problem.trans_b)


@dataclass(frozen=True, slots=True)
class SlicedWalk:
    """A walk along the inner parts of C for each outer one, in a serpentine that ends with the `tail` of a part.

    The first tiles' panels come in the `slices`. The device waits for `waited` copies of a row in all.
    """

    inner: tuple[range, ...]
    outer: tuple[range, ...]
    tail: tuple[range, ...]
    slices: tuple[tuple[int, ...], ...]
    waited: float = 0.0

    def pairs(self) -> list[tuple[range, range]]:
        """The inner and the outer part of each tile."""
        along = [self.inner if number % 2 == 0 else self.inner[::-1] for number in range(len(self.outer))]
        along[-1] = (*along[-1][:-1], *self.tail)
        return [(part, across) for across, parts in zip(self.outer, along, strict=True) for part in parts]

    def tiles(self, *, goes_down: bool) -> tuple[Tile, ...]:
        """The tiles of the walk, which goes down C's columns or along its rows."""
        ordered = self.pairs() if goes_down else [(row, column) for column, row in self.pairs()]
        found = [Tile(0, 1, row.start, len(row), column.start, len(column)) for row, column in ordered]
        first = [replace(tile, slices=slices) for tile, slices in zip(found, self.slices, strict=False)]
        return (*first, *found[len(first) :])


@lru_cache(64)
def sliced_walk(
    problem: Problem, sides: tuple[int, int], covered: int, memory: tuple[int, int], most: int
) -> SlicedWalk | None:
    """The walk along the first of C's sides that waits least of those for which there is memory; None without one.

    A tile of so many rows and columns as are `covered` takes as long as a panel's copy. The `memory` is in elements:
    all, and of one buffer. At `most` so many rows are copied, as the link may be slower than all this assumes.
    """
    found = list[SlicedWalk]()
    for count, others in product(range(_SLICED + 1, _PARTS + 1), range(1, _PARTS + 1)):
        inner, outer = _parts(sides[0], count), _parts(sides[1], others)
        if len(inner) == count and len(outer) == others and _fits(problem.k, inner, outer, memory):
            found += _of_parts(inner, outer, covered, problem) if copied(inner, outer) <= most else ()
    return min(found, key=lambda each: each.waited, default=None)


def copied(inner: Sequence[range], outer: Sequence[range]) -> int:
    """Rows of panels that a walk copies: large inner ones for each outer part, but for the one at which it turns."""
    large = [part if len(part) >= NEARLY * max(map(len, inner)) else range(0) for part in inner]
    turns = (len(large[-1] if number % 2 else large[0]) for number in range(1, len(outer)))
    again = (len(outer) - 1) * sum(map(len, large)) - sum(turns)
    return outer[-1].stop - outer[0].start + inner[-1].stop + again


def _fits(k: int, inner: tuple[range, ...], outer: tuple[range, ...], memory: tuple[int, int]) -> bool:
    """Whether there is memory for two panels of either side, those of the tail, and C's buffers; no tile is long."""
    height, width = len(inner[0]), len(outer[0])
    small = sum(len(part) for part in (*inner, *_tail_of(inner, outer)) if len(part) < NEARLY * height)
    kept = k * (2 * height + small + min(2, len(outer)) * width) + _RESULTS * height * width
    is_square = min(height, width) >= _LEAST and width / 2 <= height <= 2 * width
    return is_square and kept <= memory[0] and max(k, min(height, width)) * max(height, width) <= memory[1]


def _of_parts(
    inner: tuple[range, ...], outer: tuple[range, ...], covered: int, problem: Problem
) -> Iterator[SlicedWalk]:
    """The walks of two sides' parts, by the widths of their first slices."""
    height, width, k, tail = len(inner[0]), len(outer[0]), problem.k, _tail_of(inner, outer)
    growths = height * width / (height + width) / covered, width / covered
    for narrowest in _WIDTHS:
        first = narrowest * ceil(_NARROW / problem.itemsize / _GRAIN) * _GRAIN
        slices = tuple(_slices(k, first, max(1.0, _GROWTH * growth)) for growth in growths)
        walk = SlicedWalk(inner, outer, tail, slices)
        yield replace(walk, waited=_waited(walk, covered, k))


def _tail_of(inner: tuple[range, ...], outer: tuple[range, ...]) -> tuple[range, ...]:
    """The last tiles' inner parts: a serpentine of an even number of them ends where it began."""
    return _tail(inner[-1 if len(outer) % 2 else 0], len(inner[0]))


def _parts(size: int, count: int) -> tuple[range, ...]:
    """Equal parts of a size, but for the last."""
    step = ceil(size / count / _GRAIN) * _GRAIN
    return tuple(range(at, min(at + step, size)) for at in range(0, size, step))


def _tail(part: range, most: int) -> tuple[range, ...]:
    """The last tiles' part, halved again and again: for the last C nothing is left to wait but itself."""
    parts, stop = list[range](), part.start
    least = max(_GRAIN, most // _TAIL // _GRAIN * _GRAIN)
    while part.stop - stop >= 2 * least:
        step = (part.stop - stop) // 2 // _GRAIN * _GRAIN
        parts.append(range(stop, stop + step))
        stop += step
    return (*parts, range(stop, part.stop))


def _slices(k: int, first: int, growth: float) -> tuple[int, ...]:
    """Slices of k, each `growth` times as deep as the one before, the last no less than the first."""
    found, left, depth = list[int](), k, float(first)
    while left:
        step = int(depth) // _GRAIN * _GRAIN
        found.append(left if left - step < first else step)
        left, depth = left - found[-1], depth * growth
    return tuple(found)


def _waited(walk: SlicedWalk, covered: int, k: int) -> float:
    """What a device waits, in times of a row's copy: for panels, for its launches and sums, and for the last C."""
    pairs, arrived, computed, ended = walk.pairs(), 0.0, 0.0, list[float]()
    for number, ((part, across), slices) in enumerate(zip(pairs, walk.slices, strict=False)):
        width, area = len(part) + (0 if number else len(across)), len(part) * len(across)
        for at, depth in enumerate(slices):
            arrived += width * depth / k
            adding = _ADDING * area / k if at else 0.0
            computed = max(computed, arrived) + area * depth / k / covered + adding + _LAUNCH
        ended.append(computed)
    before = pairs[len(walk.slices) - 1]
    for part, across in pairs[len(walk.slices) :]:
        arrived = max(arrived, ended[-2]) + (len(part) if part != before[0] else 0) + len(across) / len(walk.inner)
        computed = max(computed, arrived) + len(part) * len(across) / covered + _LAUNCH
        ended.append(computed)
        before = part, across
    last = len(pairs[-1][0]) * len(pairs[-1][1]) / k
    return computed + last - walk.inner[-1].stop * walk.outer[-1].stop / covered
