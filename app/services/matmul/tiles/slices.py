"""Tiles whose first ones come in slices of k: a device computes while their panels come, and waits for one slice.

The product of each slice is added to C. Panels of whole k, however small, leave it idle until it has enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from app.services.matmul.tiles.forecast import NEARLY, Pair, Walk
from app.services.matmul.tiles.parts import GRAIN, NARROW, WalkBounds, equal_parts, up
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES

_SLICED: Final = 2  # tiles, after which the next panel is there in time
_SHORTEST: Final = 2048  # rows or columns of a tile
_PARTS: Final = 16  # of a side at most
_WIDEST: Final = 6  # widths of tiles that are looked at
_LENGTHS: Final = 2  # of tiles of each
_WIDTHS: Final = (1, 2)  # of the first slice, in the narrowest ones
_GROWTH: Final = 0.95  # of the time that a slice takes, in which the next one's copy ends
_TAIL: Final = 8  # parts of the largest tile's side that the last tile has
_RESULTS: Final = 4  # buffers of C: of a tile, of the one before it, and of two slices


def can_be_sliced(problem: Problem) -> bool:
    """Whether sums over slices of k are as exact as those of one launch, and the panel that is kept is stored by k."""
    is_exact = problem.dtype in {"float32", "float64"} and problem.precision != "emulated"
    is_aligned = problem.k * problem.itemsize % VECTOR_BYTES == 0  # so that the last slice is of the launch's class
    return is_exact and is_aligned and problem.batch == 1 and (problem.trans_a or not problem.trans_b)


def sliced_walks(bounds: WalkBounds, outer: int) -> Iterator[Walk]:
    """The walks that there is memory for, by how C's sides are cut and by their first slices; none if they may not be.

    Tiles are about square, and among the widest, and of one width the longest: small ones have more copied.
    """
    if can_be_sliced(bounds.problem):
        found = ([*islice(_sides(bounds, outer, others), _LENGTHS)] for others in range(1, _PARTS + 1))
        for inner, across in chain.from_iterable(islice(filter(None, found), _WIDEST)):
            yield from _of_sides(bounds, inner, across)


def _sides(bounds: WalkBounds, outer: int, others: int) -> Iterator[tuple[tuple[range, ...], tuple[range, ...]]]:
    """Parts of both sides, so many of the outer one, the longest inner ones first."""
    across = tuple(equal_parts(outer, 0, up(outer / others)))
    for count in range(_SLICED + 1, _PARTS + 1):
        inner = tuple(equal_parts(bounds.inner, 0, up(bounds.inner / count)))
        height, width = len(inner[0]), len(across[0])
        is_square = min(height, width) >= _SHORTEST and width / 2 <= height <= 2 * width
        if is_square and (len(inner), len(across)) == (count, others) and _fits(bounds, inner, across):
            yield inner, across


def _fits(bounds: WalkBounds, inner: tuple[range, ...], outer: tuple[range, ...]) -> bool:
    """Whether there is memory for two panels of either side, those of the tail, and C's buffers."""
    height, width, k = len(inner[0]), len(outer[0]), bounds.problem.k
    small = sum(len(part) for part in (*inner, *_tail(inner, outer)) if len(part) < NEARLY * height)
    kept = k * (2 * height + small + min(2, len(outer)) * width) + _RESULTS * height * width
    return kept <= bounds.elements and max(k, min(height, width)) * max(height, width) <= bounds.buffer


def _of_sides(bounds: WalkBounds, inner: tuple[range, ...], outer: tuple[range, ...]) -> Iterator[Walk]:
    """The walks of two sides' parts, by the widths of their first slices."""
    height, width, problem, covered = len(inner[0]), len(outer[0]), bounds.problem, bounds.covered
    growths = height * width / (height + width) / covered, width / covered
    for narrowest in _WIDTHS:
        first = narrowest * up(NARROW / problem.itemsize)
        slices = tuple(_slices(problem.k, first, max(1.0, _GROWTH * growth)) for growth in growths)
        yield Walk(walk_pairs(inner, outer, _tail(inner, outer)), slices)


def walk_pairs(inner: Sequence[range], outer: Sequence[range], tail: Sequence[range]) -> tuple[Pair, ...]:
    """The inner and the outer part of each tile of a walk along the inner ones for each outer one.

    It is a serpentine, and its last inner part is cut into the tail.
    """
    along = [inner if number % 2 == 0 else inner[::-1] for number in range(len(outer))]
    along[-1] = (*along[-1][:-1], *tail)
    return tuple((part, across) for across, parts in zip(outer, along, strict=True) for part in parts)


def _tail(inner: tuple[range, ...], outer: tuple[range, ...]) -> tuple[range, ...]:
    """The last tiles' inner parts, halved again and again: for the last C nothing is left to wait but itself.

    A serpentine of an even number of outer parts ends where it began.
    """
    last, found = inner[-1 if len(outer) % 2 else 0], list[range]()
    least = max(GRAIN, len(inner[0]) // _TAIL // GRAIN * GRAIN)
    while len(last) >= 2 * least:
        half = len(last) // 2 // GRAIN * GRAIN
        found.append(last[:half])
        last = last[half:]
    return (*found, last)


def _slices(k: int, first: int, growth: float) -> tuple[int, ...]:
    """Slices of k, each `growth` times as deep as the one before, the last no less than the first."""
    found, left, depth = list[int](), k, float(first)
    while left:
        step = int(depth) // GRAIN * GRAIN
        found.append(left if left - step < first else step)
        left, depth = left - found[-1], depth * growth
    return tuple(found)
