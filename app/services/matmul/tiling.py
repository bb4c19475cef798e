"""Products that are too large for a device: C in tiles, made of whole rows of op(A) and whole columns of op(B).

Each element is summed up by one launch, as in a product that fits: a tile costs no rounding. Tiles are walked in a
serpentine, so that a panel of A is used along a row of tiles and one of B at each turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isqrt
from typing import Final

from app.devices.fleet import Fleet, Unit
from app.errors import TooLarge
from app.services.best.lookup import covering, unemulated
from app.services.matmul.buffers import OperandBuffers, Tile
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.kernel_choice import strictly
from app.worker.serving.device_memory import Panel, TileTransfer
from kernels.problem import Problem

_REMEMBERED: Final = 4096  # problems
_PANELS: Final = 3  # of op(A), of op(B), and the one that comes meanwhile
_TILES: Final = 2  # the one that is made, and the one before it that leaves meanwhile
_PART: Final = 0.8  # of the memory: the rest is for workspaces, programs, resident matrices and the trial worker
_GRAIN: Final = 256  # rows and columns of a tile are a multiple, so that full tiles share a kernel
EACH: Final = 8  # tiles a device where several share a product: its first panels, and uneven ends, cost one in so many
# Rows and columns of such a tile at least, by platform: a GPU's multiprocessors all have some of it.
_RATE: Final = {"cuda": 2048, "opencl": _GRAIN}
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
            found = _grid(problem, _even(problem.m, rows), _even(problem.n, columns))
        return found if len(found) > 1 else most

    def overlapped(self, problem: Problem, side: int) -> tuple[Tile, ...] | None:
        """Tiles of about `side` rows and columns, each of which fits, for one device; None where one is enough.

        Without copies beside launches these are no more than have to be. Raises as `tiles`.
        """
        most, waves = self.tiles(problem), _WAVES.get(self._fleet.unit(None).device.platform)
        if waves is None:
            return most
        if problem.batch > 1:
            return self.spread(problem, 1)
        least = max(side, waves)
        rows, columns = (least, least) if most is None else (min(least, most[0].rows), min(least, most[0].columns))
        found = _grid(problem, _even(problem.m, rows), _even(problem.n, columns))
        return found if len(found) > 1 else most

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
        return _grid(problem, *_sizes(problem, room, one))


def _batches(problem: Problem, together: int) -> tuple[Tile, ...]:
    """Tiles of whole products, so many `together`."""
    starts = range(0, problem.batch, together)
    return tuple(Tile(at, min(together, problem.batch - at), 0, problem.m, 0, problem.n) for at in starts)


def _grid(problem: Problem, rows: int, columns: int) -> tuple[Tile, ...]:
    """Tiles of so many rows and columns, of each product in turn."""
    return tuple(tile for at in range(problem.batch) for tile in _serpentine(at, problem.m, problem.n, rows, columns))


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


def _serpentine(first: int, m: int, n: int, rows: int, columns: int) -> Iterator[Tile]:
    """The tiles of one product: each row of tiles begins at the columns where the one before it ended."""
    for number, row in enumerate(range(0, m, rows)):
        starts = range(0, n, columns)
        for column in starts if number % 2 == 0 else reversed(starts):
            yield Tile(first, 1, row, min(rows, m - row), column, min(columns, n - column))


class TileWalk:
    """The tiles of one product with their panels, whose copies the devices drop at the end; safe from any thread."""

    def __init__(
        self, buffers: OperandBuffers, tiles: Sequence[Tile], cache: DeviceCacheDirectory, units: Sequence[Unit]
    ) -> None:
        self.units, self._whole, self._tiles, self._cache = units, buffers, tiles, cache
        names = {name for tile in tiles for name in (("a", tile.first, tile.row), ("b", tile.first, tile.column))}
        self._keys = {name: cache.new_key() for name in names}
        self._walk = cache.new_key()

    def __len__(self) -> int:
        return len(self._tiles)

    def buffers(self, number: int, after: int | None, *, is_last: bool) -> OperandBuffers:
        """The buffers of one tile, `after` which its device likely makes that one.

        Unless it `is_last`, its C is there once the device has made another one of the product.
        """
        tile = self._tiles[number]
        a, b, c = self._panel_a(tile), self._panel_b(tile), self._panel_c(tile)
        later = () if after is None else (self._panel_a(self._tiles[after]), self._panel_b(self._tiles[after]))
        ahead = next((panel for panel in later if panel.key not in {a.key, b.key}), None)
        return replace(
            self._whole,
            problem=tile.problem(self._whole.problem),
            offsets=(a.offset, b.offset, c.offset),
            keys=(None, None, None),
            pending_result=None,
            transfer=None,
            tile=TileTransfer(self._walk, a, b, c, ahead, is_last),
        )

    def close(self) -> None:
        """Have the devices drop what they still hold."""
        for unit in self.units:
            for key in (self._walk, *self._keys.values()):
                self._cache.release(unit, key)

    def _panel_a(self, tile: Tile) -> Panel:
        whole, problem = self._whole.problem, tile.problem(self._whole.problem)
        row, column = (0, tile.row) if whole.trans_a else (tile.row, 0)
        return self._panel(("a", tile.first, tile.row), 0, whole.a_shape, problem.a_shape, tile, (row, column))

    def _panel_b(self, tile: Tile) -> Panel:
        whole, problem = self._whole.problem, tile.problem(self._whole.problem)
        row, column = (tile.column, 0) if whole.trans_b else (0, tile.column)
        return self._panel(("b", tile.first, tile.column), 1, whole.b_shape, problem.b_shape, tile, (row, column))

    def _panel_c(self, tile: Tile) -> Panel:
        whole = self._whole.problem
        shapes = (whole.m, whole.n), (tile.rows, tile.columns)
        return self._panel(None, 2, *shapes, tile, (tile.row, tile.column))

    def _panel(
        self,
        name: tuple[str, int, int] | None,
        which: int,
        whole: tuple[int, int],
        part: tuple[int, int],
        tile: Tile,
        at: tuple[int, int],
    ) -> Panel:
        """The panel of `part` rows and columns at `at` of a stored matrix of a shape; of several matrices all rows."""
        item = self._whole.problem.itemsize
        start = tile.first * whole[0] * whole[1] + at[0] * whole[1] + at[1]
        key = 0 if name is None else self._keys[name]
        offset = self._whole.offsets[which] + start * item
        return Panel(key, offset, tile.count * part[0], part[1] * item, whole[1] * item)
