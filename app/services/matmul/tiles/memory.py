"""Products that are too large for a device: C in tiles, made of whole rows of op(A) and whole columns of op(B).

Each element is summed up by one launch, as in a product that fits: a tile costs no rounding. Tiles are walked in a
serpentine, so that one operand's panel is used along a row or column of tiles, and one of the other's at each turn.
Where copies go on beside launches a device begins in a corner of C, with small panels of both in turn, or with large
ones that come in slices of k, whose products are added up: whichever is forecast to end sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from math import ceil, isqrt
from typing import Final

from app.devices.fleet import Fleet
from app.errors import TooLarge
from app.services.best.kernel_order import covering, unemulated
from app.services.matmul.buffers import Tile
from app.services.matmul.kernel_choice import strictly
from app.services.matmul.tiles.corner import corner_walks
from app.services.matmul.tiles.forecast import Walk, score
from app.services.matmul.tiles.parts import GRAIN, LEAST, WalkBounds, cuts, equal_parts, even, turning, up
from app.services.matmul.tiles.slices import sliced_walks
from kernels.problem import Problem

_REMEMBERED: Final = 4096  # problems
_WALKS: Final = 256  # that are remembered: to choose one takes tens of milliseconds
_PANELS: Final = 4  # of op(A) and of op(B), and the next one of each, which come meanwhile
_TILES: Final = 2  # the one that is made, and the one before it that leaves meanwhile
_PART: Final = 0.8  # of the memory: the rest is for workspaces, programs, resident matrices and the trial worker
EACH: Final = 8  # tiles a device where several share a product: its first panels, and uneven ends, cost one in so many
# Rows and columns of such a tile at least, by platform: a GPU's multiprocessors all have some of it.
_RATE: Final = {"cuda": 2048, "opencl": GRAIN}
# Rows and columns at least of one device's tiles, by the platforms whose copies go on beside launches: waves of blocks.
_WAVES: Final = {"cuda": 8192}


class DeviceMemory:
    """What fits the devices, and how the rest is cut: `limit` bytes of each are for one product, None: all of it."""

    def __init__(self, fleet: Fleet, limit: int | None) -> None:
        self._fleet, self._limit, self.each = fleet, limit, EACH
        self._known: dict[Problem, tuple[Tile, ...] | None] = {}  # the devices do not change

    def tiles(self, problem: Problem) -> tuple[Tile, ...] | None:
        """The tiles of a problem in their order; None if it fits every device as a whole.

        Raises NoDevice, Unsupported, and TooLarge if not even two panels of it fit.
        """
        if problem not in self._known:
            device = self._fleet.unit(None).device
            covering(strictly(problem) if unemulated(problem, device) else problem, device)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[problem] = self._cut(problem)
        return self._known[problem]

    def spread(self, problem: Problem, devices: int) -> tuple[Tile, ...] | None:
        """The tiles by which several devices share a problem, each of which fits; None where it is too small for two.

        They are `each` a device, or more; but none is smaller than a kernel needs to reach its rate. Raises as `tiles`.
        """
        most = self.tiles(problem)
        grain, wanted = _RATE[self._fleet.unit(None).device.platform], self.each * devices
        if problem.batch >= wanted and (most is None or (most[0].rows, most[0].columns) == (problem.m, problem.n)):
            few = max(problem.batch // wanted, ceil(grain**2 / (problem.m * problem.n)))
            found = _batches(problem, few if most is None else min(few, most[0].count))
        else:
            rows, columns = _square(problem, max(problem.m * problem.n * problem.batch // wanted, grain**2), grain)
            if most is not None and most[0].count == 1:
                rows, columns = min(rows, most[0].rows), min(columns, most[0].columns)
            found = _grid(problem, cuts(problem.m, rows), cuts(problem.n, columns))
        return found if len(found) > 1 else most

    def overlapped(self, problem: Problem, side: int, devices: int = 1) -> tuple[Tile, ...] | None:
        """Tiles of about `side` rows and columns, each of which fits, for some devices; None where one launch will do.

        A tile of `side` takes as long as the next panel's copy. Of the walks that there is memory for it is the one
        that is forecast to end first. Without copies beside launches tiles are no more than have to be, or as `spread`
        has them. Raises as `tiles`.
        """
        most, waves = self.tiles(problem), _WAVES.get(self._fleet.unit(None).device.platform)
        if waves is None and devices == 1:
            return most
        inner, outer = (problem.m, problem.n) if _goes_down(problem) else (problem.n, problem.m)
        if waves is None or problem.batch > 1 or (devices > 1 and min(inner, outer // devices) < waves // 2):
            return self.spread(problem, devices)
        along = waves if most is None else min(waves, most[0].rows, most[0].columns)
        elements = self.product_bytes // problem.itemsize, self._bounds()[1] // problem.itemsize
        walks = soonest(WalkBounds(problem, inner, side, along, *elements), outer, devices)
        found = tuple(tile for walk in walks for tile in tiles_of(problem, walk))
        return found if len(found) > 1 else most

    @property
    def product_bytes(self) -> int:
        """Bytes of each device that panels and results of a product may take."""
        return int(_PART * self._bounds()[0])

    def device_bytes(self, problem: Problem) -> int:
        """Bytes that a problem takes of its device at once, at most; raises as `tiles`."""
        tiles = self.tiles(problem)
        return problem.bytes if tiles is None else min(problem.bytes, self._bounds()[0])

    def _bounds(self) -> tuple[int, int]:
        """Bytes of the smallest device that a product may take, and of one buffer."""
        memory = min(unit.device.memory_bytes for unit in self._fleet.units)
        one = min(unit.device.limits.allocation_bytes or memory for unit in self._fleet.units)
        return min(memory, self._limit or memory), min(one, self._limit or one)

    def _cut(self, problem: Problem) -> tuple[Tile, ...] | None:
        memory, one = self._bounds()
        if problem.bytes <= memory and max(problem.a_bytes, problem.b_bytes, problem.c_bytes) <= one:
            return None
        room = self.product_bytes
        alone = replace(problem, batch=1)
        together = min(room // alone.bytes, one // max(alone.a_bytes, alone.b_bytes, alone.c_bytes))
        if together:
            return _batches(problem, together)
        rows, columns = _sizes(problem, room, one)
        return _grid(problem, cuts(problem.m, rows), cuts(problem.n, columns))


@lru_cache(_WALKS)
def soonest(bounds: WalkBounds, outer: int, devices: int) -> Sequence[Walk]:
    """The walks of so many devices that are forecast to end first.

    One device's alone may begin with slices of k: several wait for each other at their ends, for less where tiles are
    small.
    """
    corners = corner_walks(bounds, equal_parts(outer, 0, up(outer / devices)))
    sliced = ([walk] for walk in (sliced_walks(bounds, outer) if devices == 1 else ()))
    return min(chain(corners, sliced), key=lambda walks: score(walks[0], bounds.covered, bounds.problem.k))


def tiles_of(problem: Problem, walk: Walk) -> tuple[Tile, ...]:
    """The tiles of a walk; the panels of the first ones come in slices."""
    at = walk.pairs if _goes_down(problem) else [(row, column) for column, row in walk.pairs]
    found = [Tile(0, 1, row.start, len(row), column.start, len(column)) for row, column in at]
    first = [replace(tile, slices=each) for tile, each in zip(found, walk.slices, strict=False)]
    return (*first, *found[len(first) :])


def _batches(problem: Problem, together: int) -> tuple[Tile, ...]:
    """Tiles of whole products, so many `together`."""
    starts = range(0, problem.batch, together)
    return tuple(Tile(at, min(together, problem.batch - at), 0, problem.m, 0, problem.n) for at in starts)


def _grid(problem: Problem, rows: Sequence[range], columns: Sequence[range]) -> tuple[Tile, ...]:
    """Tiles of these rows and columns, of each product in turn, in a serpentine.

    Each column of tiles, or row, begins where the one before it ended: one panel is used again at each turn.
    """
    if _goes_down(problem):
        at = [(row, column) for column, downs in zip(columns, turning(rows), strict=False) for row in downs]
    else:
        at = [(row, column) for row, acrosses in zip(rows, turning(columns), strict=False) for column in acrosses]
    return tuple(
        Tile(first, 1, row.start, len(row), column.start, len(column))
        for first in range(problem.batch)
        for row, column in at
    )


def _goes_down(problem: Problem) -> bool:
    """Whether the walk goes down C's columns: a panel of op(A) is a run of memory, which is copied faster than rows."""
    return not problem.trans_a


def _square(problem: Problem, area: int, least: int) -> tuple[int, int]:
    """Rows and columns of a tile of an area, as square as C allows, neither less than `least`."""
    side = isqrt(area)
    rows = min(problem.m, max(least, side if side <= problem.n else area // problem.n))
    return rows, min(problem.n, max(least, area // rows))


def _sizes(problem: Problem, room: int, one: int) -> tuple[int, int]:
    """Rows and columns of the largest tiles that memory allows, as square as C is; raises TooLarge."""
    elements, widest = room // problem.itemsize, one // problem.itemsize

    def largest(other: int | None) -> int:
        """The side of a tile whose other side is given, or of a square one, in `elements` and buffers of `widest`."""
        k = problem.k
        if other is None:
            side = (isqrt((_PANELS * k) ** 2 + 4 * _TILES * elements) - _PANELS * k) // (2 * _TILES)
        else:
            side = (elements - other * k) // ((_PANELS - 1) * k + _TILES * other)
        return max(0, min(side, widest // k, isqrt(widest) if other is None else widest // other))

    side = largest(None)
    rows = columns = side
    if side > problem.m:
        rows, columns = problem.m, largest(problem.m)
    elif side > problem.n:
        rows, columns = largest(problem.n), problem.n
    if min(rows, columns) < min(LEAST, problem.m, problem.n):
        needed = (_PANELS * LEAST * problem.k + _TILES * LEAST**2) * problem.itemsize
        message = f"not even {LEAST} rows and columns of {problem} fit a device at once"
        raise TooLarge(message, limit=min(room, one), size=needed)
    return even(problem.m, rows), even(problem.n, columns)
