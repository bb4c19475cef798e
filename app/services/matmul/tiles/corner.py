"""Walks that begin in a corner of C: panels of either operand come in turn, and are used with all that are there.

They are small, and grow as slowly as memory for their buffers allows: a device waits for large ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from app.services.matmul.tiles.forecast import NEARLY, Pair, Walk
from app.services.matmul.tiles.parts import GRAIN, LEAST, NARROW, WalkBounds, cuts, growing, turning, up

_FIRST: Final = 8  # parts of a tile's side that the first one has, of what the walk goes along
_CORNER: Final = 5  # parts that the first panel is cut into, at most: as many of the other operand stay beside them
# Times the largest panel of either operand that a walk keeps: the first ones, which are smaller and make up one of it,
# the one that is used and the next one.
_OVERLAPPED: Final = 3
_RESULTS: Final = 2  # the one that is made, and the one before it that leaves meanwhile
# How much faster than what is computed the corner's parts may grow: smaller ones wait less, and take more memory.
_HASTES: Final = (1.0, 1.4, 2.0)
_GROWTH: Final = 1.25  # of parts that grow along one side alone: fewer have few buffers
_SHORTER: Final = (2, 4)  # parts of what a tile has along a walk, where memory is short


def corner_walks(bounds: WalkBounds, shares: Sequence[range]) -> Iterator[list[Walk]]:
    """Walks of devices that have a share of the outer side each, by how long their panels are.

    They go along inner parts of C for each of the outer ones in a serpentine. The first outer part is cut itself: that
    is the corner. Where k is deep, long panels along a walk leave no memory for a tile that takes as long as the copies
    beside it.
    """
    wanted = max(_balanced(bounds.side, bounds.inner), bounds.along)
    for along in (bounds.along, *(bounds.along // part for part in _SHORTER)):
        widest = _widest(bounds, along)
        widths = [_widths(own, bounds, min(wanted, widest), widest) for own in shares]
        for inner, corner in _corners(bounds, widths[0], along):
            fits = _kept(bounds.problem.k, inner, [*corner, *widths[0][1:]]) <= bounds.elements
            yield [Walk(_pairs(inner, _of_share(corner, first), rest), has_small=fits) for first, *rest in widths]
        if widest >= wanted:
            return


def _pairs(inner: Sequence[range], corner: Sequence[range], rest: Sequence[range]) -> tuple[Pair, ...]:
    """The parts of each tile, in turn."""
    turns = zip(rest, turning(inner[::-1]), strict=False)
    return *_in_turn(inner, corner), *((along, across) for across, alongs in turns for along in alongs)


def _of_share(corner: Sequence[range], first: range) -> list[range]:
    """The parts of a corner, of another device's first outer part."""
    begin = corner[0].start
    starts = [first.start + part.start - begin for part in corner if part.start - begin < len(first)]
    return [range(*ends) for ends in pairwise([*starts, first.stop])]


def _corners(bounds: WalkBounds, share: list[range], along: int) -> Iterator[tuple[list[range], list[range]]]:
    """Parts of both sides of the corner that grow by what is computed, and some that double."""
    first, (outer, *rest) = along // _FIRST // GRAIN * GRAIN, share
    least = first, max(first, NARROW // bounds.problem.itemsize)
    for haste in _HASTES:
        parts, corner = _in_step(range(bounds.inner), outer, least, along, bounds.covered / haste)
        if _has_buffers(parts, corner, rest):
            yield parts, corner
    yield growing(bounds.inner, least[0], along), growing(outer.stop, least[1], len(outer), outer.start)


def _widest(bounds: WalkBounds, along: int) -> int:
    """The most of one side of a tile that memory allows, whose other side is given."""
    k = bounds.problem.k
    widest = (bounds.elements - _OVERLAPPED * along * k) // (_OVERLAPPED * k + _RESULTS * along)
    return max(LEAST, min(widest, bounds.buffer // max(k, along)))


def _balanced(side: int, inner: int) -> int:
    """The width of a tile, that is to go along `inner`, whose walk takes as long as the copies that come meanwhile.

    These are of all panels that the walk goes along, and of the next one of its own width; `side` is the same for one
    panel as wide as the tile.
    """
    return side * inner // (inner - side) if side < inner else 2**62


def _widths(own: range, bounds: WalkBounds, across: int, widest: int) -> list[range]:
    """Parts of what a device has of the outer side, as many as there are of `across`, and a first one before.

    The first one comes while little is computed: it is as narrow as the copies beside its walk allow, whose rate has no
    margin here, and as the others at their `widest` leave it.
    """
    rest = max(1, len(own) // across)
    least = int(bounds.covered * (1 + across / bounds.inner))
    first = min(across, max(across // 2, least, up(len(own) - rest * widest)))
    most = min(widest, max(across, up((len(own) - first) / rest)))
    return growing(own.stop, first, most, own.start, is_even=True)


def _in_step(
    inner: range, outer: range, least: tuple[int, int], most: int, covered: float
) -> tuple[list[range], list[range]]:
    """Parts of two sides in turn, each of whose panels comes while what the one before it added is computed.

    That is `least` until `covered` are there of the other side, and grows from then on; equal ones of at most `most`
    along the rest of the inner side.
    """
    parts, left, added = (list[range](), list[range]()), [inner, outer], 0
    while any(left):
        for which in (each for each in (0, 1) if left[each]):
            alone = _GROWTH * len(parts[0][-1]) if parts[0] and not left[1] else 0
            step = int(max(least[which], added / covered, alone)) // GRAIN * GRAIN
            if which == 0 and not max(least[0], GRAIN) <= step < NEARLY * most:
                parts[0].extend(cuts(inner.stop, most, left[0].start))
                left[0] = inner[len(inner) :]
            else:
                is_last = len(left[which]) < step + least[which] or (which == 1 and len(parts[1]) == _CORNER - 1)
                part = left[which] if is_last else left[which][:step]
                parts[which].append(part)
                left[which] = left[which][len(part) :]
                added = len(part) * (left[1 - which].start - (inner, outer)[1 - which].start)
    return parts


def _has_buffers(inner: Sequence[range], corner: Sequence[range], rest: Sequence[range]) -> bool:
    """Whether at most one panel of either side is of the largest while the corner is made, and the other one comes."""
    sides = (inner, inner[: len(corner) + 1]), ([*corner, *rest], corner)
    return all(sum(len(part) >= NEARLY * max(map(len, all_)) for part in first) <= 1 for all_, first in sides)


def _kept(k: int, *sides: Sequence[range]) -> int:
    """Elements of the buffers that a walk keeps: of small panels each, two of the largest ones, and of two tiles."""
    lengths = [[len(part) for part in side] for side in sides]
    most = [max(each) for each in lengths]
    small = sum(length for each, large in zip(lengths, most, strict=True) for length in each if length < NEARLY * large)
    return k * (small + 2 * sum(most)) + _RESULTS * most[0] * most[1]


def _in_turn(inner: Sequence[range], outer: Sequence[range]) -> Iterator[Pair]:
    """All pairs of two parts, as one of either side is added in turn: each with those before it, the last one first."""
    for number in range(max(len(inner), len(outer))):
        for added in inner[number : number + 1]:
            yield from ((added, other) for other in outer[:number][::-1])
        for added in outer[number : number + 1]:
            yield from ((other, added) for other in inner[: number + 1][::-1])
