"""Products that are too large for a device: C in tiles, made of whole rows of op(A) and whole columns of op(B).

Each element is summed up by one launch, as in a product that fits: a tile costs no rounding. Tiles are walked in a
serpentine, so that a panel of A is used along a row of tiles and one of B at each turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import Final

from app.devices.fleet import Fleet, Unit
from app.errors import TooLarge
from app.services.best.lookup import covering, unemulated
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.kernel_choice import strictly
from app.worker.serving.tile import Panel, TileTransfer
from kernels.problem import Problem

_REMEMBERED: Final = 4096  # problems
_PANELS: Final = 3  # of op(A), of op(B), and the one that comes meanwhile
_TILES: Final = 2  # the one that is made, and the one before it that leaves meanwhile
_PART: Final = 0.8  # of the memory: the rest is for workspaces, programs, resident matrices and the trial worker
_GRAIN: Final = 256  # rows and columns of a tile are a multiple, so that full tiles share a kernel
_LEAST: Final = 16  # rows or columns of a tile: with fewer, a launch would be worth nothing


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` by `columns` of C from `row` and `column` on, of `count` products of a batch from `first` on."""

    first: int
    count: int
    row: int
    rows: int
    column: int
    columns: int

    def problem(self, whole: Problem) -> Problem:
        """What it computes."""
        return replace(whole, m=self.rows, n=self.columns, batch=self.count)


class DeviceMemory:
    """What fits the devices, and how the rest is cut: `limit` bytes of each are for one product, None: all of it."""

    def __init__(self, fleet: Fleet, limit: int | None) -> None:
        self._fleet, self._limit = fleet, limit
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
            starts = range(0, problem.batch, together)
            return tuple(Tile(at, min(together, problem.batch - at), 0, problem.m, 0, problem.n) for at in starts)
        rows, columns = _sizes(problem, room, one)
        return tuple(
            tile for at in range(problem.batch) for tile in _serpentine(at, problem.m, problem.n, rows, columns)
        )


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
    """The tiles of one product with their panels, whose copies the device drops at the end."""

    def __init__(self, buffers: OperandBuffers, tiles: Sequence[Tile], cache: DeviceCacheDirectory, unit: Unit) -> None:
        self._whole, self._tiles, self._cache, self._unit = buffers, tiles, cache, unit
        self._keys: dict[tuple[str, int, int], int] = {}
        self._walk = cache.new_key()

    def make(self, make: Callable[[OperandBuffers], Product]) -> Product:
        """The product, its tiles made in turn by `make`; raises what that raises.

        C of a tile is there once the next one is made. If the worker was replaced meanwhile, and with it what was still
        to be copied back, both tiles are made once more, and waited for.
        """
        made: list[Product] = []
        for number in range(len(self._tiles)):
            worker = self._unit.products.generation
            made.append(make(self._buffers(number)))
            if number and self._unit.products.generation != worker:
                made += [make(self._buffers(lost, is_last=True)) for lost in (number - 1, number)]
        return replace(joined(made), tiles=len(self._tiles))

    def _buffers(self, number: int, *, is_last: bool = False) -> OperandBuffers:
        """The buffers of one tile."""
        tile, is_last = self._tiles[number], is_last or number + 1 == len(self._tiles)
        a, b, c = self._panel_a(tile), self._panel_b(tile), self._panel_c(tile)
        after = () if is_last else (self._panel_a(self._tiles[number + 1]), self._panel_b(self._tiles[number + 1]))
        ahead = next((panel for panel in after if panel.key not in {a.key, b.key}), None)
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
        """Have the device drop what it still holds."""
        for key in (self._walk, *self._keys.values()):
            self._cache.release(self._unit, key)

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
        key = 0 if name is None else self._keys.setdefault(name, self._keys.get(name) or self._cache.new_key())
        offset = self._whole.offsets[which] + start * item
        return Panel(key, offset, tile.count * part[0], part[1] * item, whole[1] * item)


def joined(parts: Sequence[Product]) -> Product:
    """The product that tiles make: the kernel of most of them, their seconds in all, the precision that errs most."""
    seconds: Counter[str] = Counter()
    for part in parts:
        seconds.update(part.seconds)
    usual = Counter((part.kernel, tuple(part.config.items())) for part in parts).most_common(1)[0][0]
    chosen = next(part for part in parts if (part.kernel, tuple(part.config.items())) == usual)
    loosest = next((part.precision for part in parts if part.precision != "strict"), "strict")
    declined = next((part.declined for part in parts if part.declined), None)
    return replace(chosen, seconds=dict(seconds), precision=loosest, declined=declined)
