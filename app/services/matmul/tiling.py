"""Products that are too large for a device: C in tiles, made of whole rows of op(A) and whole columns of op(B).

Each element is summed up by one launch, as in a product that fits: a tile costs no rounding. Tiles are walked in a
serpentine, so that one operand's panel is used along a row or column of tiles, and one of the other's at each turn.
Where copies go on beside launches a device begins in a corner of C, with small panels of both in turn; or with large
ones that come in slices of k (tile_slices.py), whose products are added up, where it waits less so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from math import ceil, isqrt
from typing import Final

from app.devices.fleet import Fleet
from app.errors import TooLarge
from app.services.best.lookup import covering, unemulated
from app.services.matmul.buffers import Tile
from app.services.matmul.kernel_choice import strictly
from app.services.matmul.tile_slices import NEARLY, can_be_sliced, copied, sliced_walk
from kernels.problem import Problem

_REMEMBERED: Final = 4096  # problems
_FIRST: Final = 8  # parts of a tile's side that the first one has, of what the walk goes along
_NARROW: Final = 10240  # bytes of a row of the first panel: rows of 8 KiB are copied by a third more slowly
_CORNER: Final = 5  # parts that the first panel is cut into, at most: as many of the other operand stay beside them
# Times the largest panel of either operand that a walk keeps: the first ones, which are smaller and make up one of it,
# the one that is used and the next one.
_OVERLAPPED: Final = 3
_HURRIED: Final = 0.6  # of `side`: a tile of so many rows and columns takes as long as a panel's copy without a margin
# How much faster than what is computed the corner's parts may grow: smaller ones wait less, and take more memory.
_HASTES: Final = (1.0, 1.4, 2.0)
_GROWTH: Final = 1.25  # of parts that grow along one side alone: fewer have few buffers
_LAUNCH: Final = 8  # rows or columns that are copied in the time by which a tile's launch is less than full
_PANELS: Final = 4  # of op(A) and of op(B), and the next one of each, which come meanwhile
_TILES: Final = 2  # the one that is made, and the one before it that leaves meanwhile
_PART: Final = 0.8  # of the memory: the rest is for workspaces, programs, resident matrices and the trial worker
_GRAIN: Final = 256  # rows and columns of a tile are a multiple, so that full tiles share a kernel
EACH: Final = 8  # tiles a device where several share a product: its first panels, and uneven ends, cost one in so many
# Rows and columns of such a tile at least, by platform: a GPU's multiprocessors all have some of it.
_RATE: Final = {"cuda": 2048, "opencl": _GRAIN}
_MANY: Final = 4  # walks along a side: of fewer, one more would copy too much again
_LEAST: Final = 16  # rows or columns of a tile: with fewer, a launch would be worth nothing
# Rows and columns at least of one device's tiles, by the platforms whose copies go on beside launches: waves of blocks.
_WAVES: Final = {"cuda": 8192}
# What a walk with slices waits, and copies, at most, as parts of a corner's: a link may be slower than is assumed.
_SOONER: Final = 0.9
_MORE: Final = 1.03


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
            found = _grid(problem, _cuts(problem.m, rows), _cuts(problem.n, columns))
        return found if len(found) > 1 else most

    def overlapped(self, problem: Problem, side: int, devices: int = 1) -> tuple[Tile, ...] | None:
        """Tiles of about `side` rows and columns, each of which fits, for some devices; None where one launch will do.

        A tile of `side` takes as long as the next panel's copy. Each device's first ones are smaller: nothing is made
        before their panels have come. Without copies beside launches tiles are no more than have to be, or as `spread`
        has them. Raises as `tiles`.
        """
        most, waves = self.tiles(problem), _WAVES.get(self._fleet.unit(None).device.platform)
        if waves is None and devices == 1:
            return most
        goes_down = _goes_down(problem)
        inner, outer = (problem.m, problem.n) if goes_down else (problem.n, problem.m)
        if waves is None or problem.batch > 1 or (devices > 1 and min(inner, outer // devices) < waves // 2):
            return self.spread(problem, devices)
        along = waves if most is None else min(waves, most[0].rows, most[0].columns)
        widest, found = self._widest(problem, along), list[Tile]()
        across = min(max(_balanced(side, inner), waves), widest)
        shares = [_widths(own, side, inner, across, widest) for own in _parts(outer, 0, _up(outer / devices))]
        covered = max(1, int(_HURRIED * side))
        parts, corner = self._corner(problem, range(inner), shares[0], along, covered)
        if devices == 1 and can_be_sliced(problem):
            memory = self.product_bytes // problem.itemsize, self._bounds()[1] // problem.itemsize
            rows = int(_MORE * copied(parts, shares[0]))
            sliced = sliced_walk(problem, (inner, outer), covered, memory, rows)
            if sliced is not None and sliced.waited < _SOONER * _waited(parts, corner, covered):
                return sliced.tiles(goes_down=goes_down)
        for first, *rest in shares:
            starts = [first.start + part.start for part in corner if part.start < len(first)]
            own = [range(*ends) for ends in pairwise([*starts, first.stop])]
            found += _from_corner(problem, parts, own, rest)
        return tuple(found) if len(found) > 1 else most

    def _corner(
        self, problem: Problem, inner: range, shares: list[range], along: int, covered: int
    ) -> tuple[list[range], list[range]]:
        """Parts of both sides of the corner, of those for whose panels there is memory the ones that wait least."""
        first = along // _FIRST // _GRAIN * _GRAIN
        least = first, max(first, _NARROW // problem.itemsize)
        elements, (outer, *rest) = self.product_bytes // problem.itemsize, shares
        doubling = _growing(inner.stop, least[0], along), _growing(outer.stop, least[1], len(outer))
        found = [_in_step(inner, outer, least, along, covered / haste) for haste in _HASTES]
        fitting = [
            (parts, corner)
            for parts, corner in found
            if _has_buffers(parts, corner, rest) and _kept(problem.k, parts, [*corner, *rest]) <= elements
        ]
        return min([*fitting, doubling], key=lambda each: _waited(each[0], each[1], covered))

    def _widest(self, problem: Problem, along: int) -> int:
        """The most of one side of a tile that memory allows, whose other side is given."""
        elements, one = self.product_bytes // problem.itemsize, self._bounds()[1]
        widest = (elements - _OVERLAPPED * along * problem.k) // (_OVERLAPPED * problem.k + _TILES * along)
        return max(_LEAST, min(widest, one // problem.itemsize // max(problem.k, along)))

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
        return _grid(problem, _cuts(problem.m, rows), _cuts(problem.n, columns))


def _batches(problem: Problem, together: int) -> tuple[Tile, ...]:
    """Tiles of whole products, so many `together`."""
    starts = range(0, problem.batch, together)
    return tuple(Tile(at, min(together, problem.batch - at), 0, problem.m, 0, problem.n) for at in starts)


def _grid(problem: Problem, rows: Sequence[range], columns: Sequence[range]) -> tuple[Tile, ...]:
    """Tiles of these rows and columns, of each product in turn, in a serpentine.

    Each column of tiles, or row, begins where the one before it ended: one panel is used again at each turn.
    """
    if _goes_down(problem):
        at = [(row, column) for column, downs in zip(columns, _turning(rows), strict=False) for row in downs]
    else:
        at = [(row, column) for row, acrosses in zip(rows, _turning(columns), strict=False) for column in acrosses]
    return tuple(
        Tile(first, 1, row.start, len(row), column.start, len(column))
        for first in range(problem.batch)
        for row, column in at
    )


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
            step = int(max(least[which], added / covered, alone)) // _GRAIN * _GRAIN
            if which == 0 and not max(least[0], _GRAIN) <= step < NEARLY * most:
                parts[0].extend(_cuts(inner.stop, most, left[0].start))
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
    return k * (small + 2 * sum(most)) + _TILES * most[0] * most[1]


def _waited(inner: Sequence[range], outer: Sequence[range], covered: int) -> float:
    """What a device waits for panels in a corner, and for its launches: in times of a row's copy."""
    arrived, computed, tiles = 0, 0.0, 0
    come: dict[tuple[int, range], int] = {}
    for pair in _in_turn(inner, outer):
        for name in enumerate(pair):
            if name not in come:
                arrived = come[name] = arrived + len(name[1])
        tiles += 1
        computed = max(computed, *(come[name] for name in enumerate(pair))) + len(pair[0]) * len(pair[1]) / covered
    return computed - inner[-1].stop * (outer[-1].stop - outer[0].start) / covered + _LAUNCH * tiles


def _from_corner(problem: Problem, inner: list[range], corner: list[range], rest: list[range]) -> list[Tile]:
    """Tiles of a device, that go along `inner` parts of C for each of the outer ones in a serpentine.

    The first outer part is cut itself, into the `corner`: panels of either operand come in turn, each is used with all
    that are there of the other.
    """
    turns = zip(rest, _turning(inner[::-1]), strict=False)
    pairs = [*_in_turn(inner, corner), *((along, across) for across, alongs in turns for along in alongs)]
    at = pairs if _goes_down(problem) else [(row, column) for column, row in pairs]
    return [Tile(0, 1, row.start, len(row), column.start, len(column)) for row, column in at]


def _in_turn(inner: Sequence[range], outer: Sequence[range]) -> Iterator[tuple[range, range]]:
    """All pairs of two parts, as one of either side is added in turn: each with those before it, the last one first."""
    for number in range(max(len(inner), len(outer))):
        for added in inner[number : number + 1]:
            yield from ((added, other) for other in outer[:number][::-1])
        for added in outer[number : number + 1]:
            yield from ((other, added) for other in inner[: number + 1][::-1])


def _goes_down(problem: Problem) -> bool:
    """Whether the walk goes down C's columns: a panel of op(A) is a run of memory, which is copied faster than rows."""
    return not problem.trans_a


def _turning(parts: Sequence[range]) -> Iterator[Sequence[range]]:
    """Parts in their order and from their end, in turn."""
    return cycle((parts, parts[::-1]))


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
    if min(rows, columns) < min(_LEAST, problem.m, problem.n):
        needed = (_PANELS * _LEAST * problem.k + _TILES * _LEAST**2) * problem.itemsize
        message = f"not even {_LEAST} rows and columns of {problem} fit a device at once"
        raise TooLarge(message, limit=min(room, one), size=needed)
    return _even(problem.m, rows), _even(problem.n, columns)


def _even(size: int, most: int) -> int:
    """The tile's side by which a size is cut into as few parts as `most` allows, of one size but for the last."""
    if most >= size:
        return size
    grain = _GRAIN if most >= _GRAIN else _LEAST if most >= _LEAST else 1
    most -= most % grain
    return min(most, ceil(ceil(size / ceil(size / most)) / grain) * grain)


def _cuts(size: int, most: int, start: int = 0) -> list[range]:
    """Parts of what is left of a size from `start` on, as few as `most` allows, of one length but for the last."""
    return _parts(size, start, _even(size - start, most))


def _parts(size: int, start: int, step: int) -> list[range]:
    return [range(at, min(at + step, size)) for at in range(start, size, step)]


def _balanced(side: int, inner: int) -> int:
    """The width of a tile, that is to go along `inner`, whose walk takes as long as the copies that come meanwhile.

    These are of all panels that the walk goes along, and of the next one of its own width; `side` is the same for one
    panel as wide as the tile.
    """
    return side * inner // (inner - side) if side < inner else 2**62


def _widths(own: range, side: int, inner: int, across: int, widest: int) -> list[range]:
    """Parts of what a device has of the outer side, as many as there are of `across`, and a first one before.

    The first one comes while little is computed: it is as narrow as the copies beside its walk allow, whose rate has no
    margin here, and as the others at their `widest` leave it.
    """
    rest = max(1, len(own) // across)
    least = int(_HURRIED * side * (1 + across / inner))
    first = min(across, max(across // 2, least, _up(len(own) - rest * widest)))
    most = min(widest, max(across, _up((len(own) - first) / rest)))
    return _growing(own.stop, first, most, own.start, even=True)


def _up(size: float) -> int:
    """A size up to a multiple, for as many full tiles as may be."""
    return ceil(size / _GRAIN) * _GRAIN


def _growing(size: int, first: int, most: int, start: int = 0, *, even: bool = False) -> list[range]:
    """Parts of a size from `start` on: `first`, and twice as much each time, up to `most`; then equal ones.

    With `even` there are an even number, if there are many: a serpentine along the other side ends where it began,
    with its smallest tile, for whose C nothing is left to wait but itself.
    """
    parts, step = list[range](), first - first % _GRAIN
    while 0 < step < most and size - start >= 2 * step:
        parts.append(range(start, start + step))
        start, step = start + step, 2 * step
    rest = _cuts(size, most, start)
    if even and parts and (len(parts) + len(rest)) % 2 and len(parts) + len(rest) >= _MANY:
        rest = _parts(size, start, _up((size - start) / (len(rest) + 1)))
    return parts + rest
