"""Products that are too large for a device: C in tiles, made of whole rows of op(A) and whole columns of op(B).

Each element is summed up by one launch, as in a product that fits: a tile costs no rounding. Tiles are walked in a
serpentine, so that one operand's panel is used along a row or column of tiles, and one of the other's at each turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from math import ceil, isqrt
from typing import Any, Final

from app.devices.fleet import Fleet, Unit
from app.errors import TooLarge
from app.services.best.lookup import covering, unemulated
from app.services.matmul.buffers import OperandBuffers, Tile
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.kernel_choice import strictly
from app.worker.serving.device_memory import Panel, TileTransfer
from kernels.problem import Problem

_REMEMBERED: Final = 4096  # problems
_FIRST: Final = 8  # parts of a tile's side that the first one has, of what the walk goes along
_PANELS: Final = 4  # of op(A) and of op(B), and the next one of each, which come meanwhile
_TILES: Final = 2  # the one that is made, and the one before it that leaves meanwhile
_PART: Final = 0.8  # of the memory: the rest is for workspaces, programs, resident matrices and the trial worker
_GRAIN: Final = 256  # rows and columns of a tile are a multiple, so that full tiles share a kernel
EACH: Final = 8  # tiles a device where several share a product: its first panels, and uneven ends, cost one in so many
# Rows and columns of such a tile at least, by platform: a GPU's multiprocessors all have some of it.
_RATE: Final = {"cuda": 2048, "opencl": _GRAIN}
_MANY: Final = 4  # walks along a side: of fewer, one more would copy too much again
_ALIKE: Final = 1.1  # times that panels of A may be as large as those of B, or these, to have the same buffers
_LEAST: Final = 16  # rows or columns of a tile: with fewer, a launch would be worth nothing
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
        across = min(max(side, waves), self._widest(problem, along))
        # What the walk goes along comes in small panels first, all of it while it goes along the other's first one: one
        # of `side` takes as long with a margin.
        first, found = min(across, max(across // 2, 2 * side // 3)), list[Tile]()
        for own in _parts(outer, 0, _up(outer / devices)):
            parts = _growing(inner, along // _FIRST, along), _growing(own.stop, first, across, own.start, even=True)
            found += _grid(problem, *(parts if goes_down else parts[::-1]))
        return tuple(found) if len(found) > 1 else most

    def _widest(self, problem: Problem, along: int) -> int:
        """The most of one side of a tile that memory allows, whose other side is given; two panels of either fit."""
        memory, one = self._bounds()
        elements = int(_PART * memory) // problem.itemsize
        widest = (elements - _PANELS // 2 * along * problem.k) // (_PANELS // 2 * problem.k + _TILES * along)
        return max(_LEAST, min(widest, one // problem.itemsize // max(problem.k, along)))

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
        room = int(_PART * memory)
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


class TileWalk:
    """The tiles of one product with their panels, whose copies the devices drop at the end; safe from any thread."""

    def __init__(
        self, buffers: OperandBuffers, tiles: Sequence[Tile], cache: DeviceCacheDirectory, units: Sequence[Unit]
    ) -> None:
        self.units, self._whole, self._tiles, self._cache = units, buffers, tiles, cache
        names = {name for tile in tiles for name in (("a", tile.first, tile.row), ("b", tile.first, tile.column))}
        self._keys = {name: cache.new_key() for name in names}
        self._walk = cache.new_key()
        problems = [tile.problem(buffers.problem) for tile in tiles]
        most_a, most_b = max(each.a_bytes for each in problems), max(each.b_bytes for each in problems)
        if max(most_a, most_b) <= _ALIKE * min(most_a, most_b):  # each buffer may have a panel of either
            most_a = most_b = max(most_a, most_b)
        self._most = most_a, most_b, max(each.c_bytes for each in problems)
        self._largest = max(tile.rows * tile.columns for tile in tiles)
        self._problems = dict(zip(tiles, problems, strict=True))
        self._panels: dict[tuple[str, int, int], Panel] = {}

    def __len__(self) -> int:
        return len(self._tiles)

    def buffers(self, number: int, after: Sequence[int], *, is_last: bool) -> OperandBuffers:
        """The buffers of one tile, `after` which its device likely makes those.

        Unless it `is_last`, its C is there once the device has made the next one of the product.
        """
        tile = self._tiles[number]
        a, b, c = self._panel_a(tile), self._panel_b(tile), self._panel_c(tile)
        ahead, kept = self._ahead(tile, (a.key, b.key), after)
        return replace(
            self._whole,
            problem=self._problems[tile],
            offsets=(a.offset, b.offset, c.offset),
            keys=(None, None, None),
            pending_result=None,
            transfer=None,
            tile=TileTransfer(self._walk, a, b, c, ahead, kept, is_last),
            whole=self._whole.problem,
        )

    def _ahead(
        self, tile: Tile, keys: tuple[int, int], after: Sequence[int]
    ) -> tuple[tuple[Panel, ...], tuple[Panel, ...]]:
        """The next panel of either operand: those that come beside a tile, and those that stay if they are there.

        Who queues a copy of many rows that lie apart is blocked by the driver for most of it. The next launch has to be
        queued meanwhile: one that is not needed at once comes beside a large tile.
        """
        wanted, ahead, kept = {self._panel_a: keys[0], self._panel_b: keys[1]}, list[Panel](), list[Panel]()
        is_large = 2 * tile.rows * tile.columns >= self._largest
        for distance, number in enumerate(after):
            for panel_of, key in list(wanted.items()):
                panel = panel_of(self._tiles[number])
                if panel.key != key:
                    del wanted[panel_of]
                    (ahead if is_large or not distance else kept).append(panel)
            if not wanted:
                break
        return tuple(ahead), tuple(kept)

    def close(self) -> None:
        """Have the devices drop what they still hold."""
        for unit in self.units:
            for key in (self._walk, *self._keys.values()):
                self._cache.release(unit, key)

    def _panel_a(self, tile: Tile) -> Panel:
        whole = self._whole.problem
        at = (0, tile.row) if whole.trans_a else (tile.row, 0)
        return self._named(("a", tile.first, tile.row), 0, whole.a_shape, self._problems[tile].a_shape, tile, at)

    def _panel_b(self, tile: Tile) -> Panel:
        whole = self._whole.problem
        at = (tile.column, 0) if whole.trans_b else (0, tile.column)
        return self._named(("b", tile.first, tile.column), 1, whole.b_shape, self._problems[tile].b_shape, tile, at)

    def _panel_c(self, tile: Tile) -> Panel:
        whole = self._whole.problem
        shapes = (whole.m, whole.n), (tile.rows, tile.columns)
        return self._panel(0, 2, *shapes, tile, (tile.row, tile.column))

    def _named(self, name: tuple[str, int, int], *what: Any) -> Panel:
        """A panel of A or B, which several tiles have."""
        if name not in self._panels:
            self._panels[name] = self._panel(self._keys[name], *what)
        return self._panels[name]

    def _panel(
        self,
        key: int,
        which: int,
        whole: tuple[int, int],
        part: tuple[int, int],
        tile: Tile,
        at: tuple[int, int],
    ) -> Panel:
        """The panel of `part` rows and columns at `at` of a stored matrix of a shape; of several matrices all rows."""
        item = self._whole.problem.itemsize
        start = tile.first * whole[0] * whole[1] + at[0] * whole[1] + at[1]
        offset = self._whole.offsets[which] + start * item
        return Panel(key, offset, tile.count * part[0], part[1] * item, whole[1] * item, self._most[which])
