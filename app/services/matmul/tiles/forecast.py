"""How long a walk of tiles takes a device, by a model of its copies and launches: what walks are chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, TypeAlias

NEARLY: Final = 0.8  # of the largest part: from so much on a panel has a buffer of that size, of which there are two
_LARGE: Final = 2
# In times of a row's copy: by what a launch is less than full, and passes over device memory (its bandwidth is about
# seventy times a link's) of which adding a slice up takes three.
_LAUNCH: Final = 8
_ADDING: Final = 3 / 70
_SLOWER: Final = 2  # times by which a link may be slower than a tile's side assumes
Pair: TypeAlias = tuple[range, range]  # the inner and the outer part of a tile


@dataclass(frozen=True, slots=True)
class Walk:
    """The tiles of one device in their order; panels of the first ones come in `slices` of k.

    If it `has_small`, there is memory for a buffer of its own for each panel that is much smaller than the largest.
    """

    pairs: tuple[Pair, ...]
    slices: tuple[tuple[int, ...], ...] = ()
    has_small: bool = True


def score(walk: Walk, covered: float, k: int) -> float:
    """The less, the sooner a walk ends, by a link as fast as is assumed and by a slower one alike.

    A tile of so many rows and columns as are `covered` takes as long as a panel's copy does by the former.
    """
    return ended(walk, covered, k) * ended(walk, covered * _SLOWER, k)


def ended(walk: Walk, covered: float, k: int) -> float:
    """When a walk ends, in times of the copy of a panel's row: it is as long as k."""
    return _Forecast(walk, covered, k).ended()


@dataclass
class _Side:
    """One operand's panels: small ones have a buffer each, of large ones there are two."""

    least: int  # of a large one
    come: dict[range, float] = field(default_factory=dict)  # when those that are there have
    used: dict[range, float] = field(default_factory=dict)  # until when

    def room(self, part: range) -> float:
        """When there is a buffer for a panel that is not there."""
        large = [each for each in self.come if len(each) >= self.least]
        if len(part) < self.least or len(large) < _LARGE:
            return 0.0
        oldest = min(large, key=lambda each: self.used[each])
        del self.come[oldest]
        return self.used[oldest]


class _Forecast:
    """One walk: times are those of a row's copy, as many as its k has elements."""

    def __init__(self, walk: Walk, covered: float, k: int) -> None:
        self._walk, self._covered, self._k = walk, covered, k
        most = [max(len(pair[which]) for pair in walk.pairs) for which in (0, 1)]
        self._sides = [_Side(ceil(NEARLY * each) if walk.has_small else 0) for each in most]
        self._arrived = self._computed = self._sent = 0.0

    def ended(self) -> float:
        """When C of the last tile is on the host."""
        for number, pair in enumerate(self._walk.pairs):
            if number < len(self._walk.slices):
                self._add_slices(pair, self._walk.slices[number])
            else:
                self._add(pair)
            self._sent = max(self._sent, self._computed) + len(pair[0]) * len(pair[1]) / self._k
        return self._sent

    def _add(self, pair: Pair) -> None:
        for side, part in zip(self._sides, pair, strict=True):
            if part not in side.come:
                self._arrived = max(self._arrived, side.room(part)) + len(part)
                side.come[part] = self._arrived
        there = max(side.come[part] for side, part in zip(self._sides, pair, strict=True))
        self._launch(pair, max(self._computed, there), len(pair[0]) * len(pair[1]) / self._covered)

    def _add_slices(self, pair: Pair, slices: Sequence[int]) -> None:
        width = sum(len(part) for side, part in zip(self._sides, pair, strict=True) if part not in side.come)
        area = len(pair[0]) * len(pair[1])
        for number, depth in enumerate(slices):
            self._arrived += width * depth / self._k
            adding = _ADDING * area / self._k if number else 0.0
            begun = max(self._computed, self._arrived) + adding
            self._launch(pair, begun, area * depth / self._k / self._covered)
        self._sides[1].come[pair[1]] = self._arrived

    def _launch(self, pair: Pair, begun: float, took: float) -> None:
        self._computed = begun + took + _LAUNCH
        for side, part in zip(self._sides, pair, strict=True):
            side.used[part] = self._computed
