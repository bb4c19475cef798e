"""TileWalk: the panels of a product's tiles, and which of them a device keeps, copies and expects beside each tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from app.devices.fleet import Unit
from app.services.matmul.buffers import OperandBuffers, Tile
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.tiles.forecast import NEARLY
from app.worker.serving.device_memory import Panel, PanelShare, TileTransfer
from app.worker.serving.tile_buffers import PARTIALS

# The operand, its product, its first row or column, how many there are, and the slices.
_Name: TypeAlias = tuple[str, int, int, int, tuple[int, ...]]
_ALIKE: Final = 1.1  # times that panels of A may be as large as those of B, or these, to have the same buffers
_LARGE: Final = 2  # of the largest panels of either operand: the one that is used, and the next one, which comes


class TileWalk:
    """The tiles of one product with their panels, whose copies the devices drop at the end; safe from any thread."""

    def __init__(
        self,
        buffers: OperandBuffers,
        tiles: Sequence[Tile],
        cache: DeviceCacheDirectory,
        units: Sequence[Unit],
        memory: int,
    ) -> None:
        """Of devices that have `memory` bytes each for its panels and results."""
        self.units, self._whole, self._tiles, self._cache = units, buffers, tiles, cache
        self._keys = {name: cache.new_key() for name in {name for tile in tiles for name in self._names(tile)}}
        self._walk = cache.new_key()
        problems = [tile.problem(buffers.problem) for tile in tiles]
        most_a, most_b = max(each.a_bytes for each in problems), max(each.b_bytes for each in problems)
        if max(most_a, most_b) <= _ALIKE * min(most_a, most_b):  # each buffer may have a panel of either
            most_a = most_b = max(most_a, most_b)
        self._most = most_a, most_b, max(each.c_bytes for each in problems)
        self._problems = dict(zip(tiles, problems, strict=True))
        self._panels: dict[_Name, Panel] = {}
        self._operands: dict[int, tuple[Panel, Panel]] = {}  # by tile
        self._rooms, self._has_small = Counter[int](), True
        self._plan_rooms(memory)

    def __len__(self) -> int:
        return len(self._tiles)

    def buffers(self, number: int, after: Sequence[int], *, is_last: bool) -> OperandBuffers:
        """The buffers of one tile, `after` which its device likely makes those.

        Unless it `is_last`, its C is there once the device has made the next one of the product.
        """
        tile = self._tiles[number]
        (a, b), c = self._panels_of(number), self._panel_c(tile)
        ahead, later = self._following(tile, (a, b), after)
        return replace(
            self._whole,
            problem=self._problems[tile],
            offsets=(a.offset, b.offset, c.offset),
            keys=(None, None, None),
            pending_result=None,
            transfer=None,
            tile=TileTransfer(self._walk, a, b, c, ahead, later, tuple(self._rooms.elements()), is_last),
            whole=self._whole.problem,
        )

    def _following(
        self, tile: Tile, own: tuple[Panel, Panel], after: Sequence[int]
    ) -> tuple[tuple[Panel, ...], tuple[PanelShare, ...]]:
        """The panels of the next tile, and of those after it, as far as there are buffers for them.

        They are copied in the order in which they are needed. One that comes before others that wait for a buffer comes
        in shares, beside all tiles up to the first that needs it, and by what these compute: at once it would hold up
        those others.
        """
        known, area = {each.key for each in own}, tile.rows * tile.columns
        left, before = Counter(self._rooms), area
        for panel in own:
            left[panel.room] -= 1
        ahead, later = list[Panel](), list[PanelShare]()
        wanted = [0, 1]
        for distance, number in enumerate(after):
            panels = self._panels_of(number)
            for which in [each for each in wanted if panels[each].key not in known]:
                panel = panels[which]
                if left[panel.room] <= 0:
                    wanted.remove(which)
                    continue
                known.add(panel.key)
                left[panel.room] -= 1
                if distance:
                    later.append(PanelShare(panel, 1.0 if len(wanted) > 1 else area / before))
                else:
                    ahead.append(panel)
            if not wanted:
                break
            before += self._tiles[number].rows * self._tiles[number].columns
        return tuple(ahead), tuple(later)

    def _plan_rooms(self, memory: int) -> None:
        """Decide which buffers a device has for panels: some of their own for small ones, where memory allows."""
        run = self._tiles[: -(-len(self._tiles) // len(self.units))]
        alike = [tile for tile in run if tile.first == run[0].first]
        sizes = (
            list({(tile.row, tile.rows): self._problems[tile].a_bytes for tile in alike}.values()),
            list({(tile.column, tile.columns): self._problems[tile].b_bytes for tile in alike}.values()),
        )
        self._rooms = self._rooms_of(sizes)
        results = _LARGE + (PARTIALS if any(tile.slices for tile in run) else 0)
        if sum(self._rooms.elements()) + results * self._most[2] > memory:
            self._has_small = False
            self._rooms = self._rooms_of(sizes)

    def _rooms_of(self, sizes: tuple[list[int], list[int]]) -> Counter[int]:
        """Buffers of each size: one for each panel that has its own, and two of the largest of either operand."""
        rooms = Counter[int]()
        for most, panels in zip(self._most[:2], sizes, strict=True):
            wanted = Counter(self._room(most, nbytes) for nbytes in panels)
            wanted[most] = min(wanted[most], _LARGE)
            rooms += wanted
        return rooms

    def _room(self, most: int, nbytes: int) -> int:
        """The size of the buffer for a panel, of which the largest has `most` bytes."""
        return nbytes if self._has_small and nbytes < NEARLY * most else most

    def close(self) -> None:
        """Have the devices drop what they still hold, but for what the next product uses."""
        for unit in self.units:
            self._cache.release_later(unit, (self._walk, *self._keys.values()))

    def _panels_of(self, number: int) -> tuple[Panel, Panel]:
        """The panels of A and B of a tile."""
        found = self._operands.get(number)
        if found is None:
            found = self._operands[number] = self._panel_a(self._tiles[number]), self._panel_b(self._tiles[number])
        return found

    def _names(self, tile: Tile) -> tuple[_Name, _Name]:
        """Of the panels of A and B: one whose rows are along k has another name where it comes in slices."""
        whole, slices = self._whole.problem, tile.slices
        a = "a", tile.first, tile.row, tile.rows, () if whole.trans_a else slices
        b = "b", tile.first, tile.column, tile.columns, slices if whole.trans_b else ()
        return a, b

    def _panel_a(self, tile: Tile) -> Panel:
        whole, name = self._whole.problem, self._names(tile)[0]
        at = (0, tile.row) if whole.trans_a else (tile.row, 0)
        panel = self._named(name, 0, whole.a_shape, self._problems[tile].a_shape, tile, at)
        return self._in_slices(panel, tile, along=not whole.trans_a)

    def _panel_b(self, tile: Tile) -> Panel:
        whole, name = self._whole.problem, self._names(tile)[1]
        at = (tile.column, 0) if whole.trans_b else (0, tile.column)
        panel = self._named(name, 1, whole.b_shape, self._problems[tile].b_shape, tile, at)
        return self._in_slices(panel, tile, along=whole.trans_b)

    def _in_slices(self, panel: Panel, tile: Tile, *, along: bool) -> Panel:
        """A panel as a tile has it, whose rows are along k or not."""
        item = self._whole.problem.itemsize if along else 1
        slices = tuple(item * k for k in tile.slices)
        return replace(panel, slices=slices, along=along) if slices else panel

    def _panel_c(self, tile: Tile) -> Panel:
        whole = self._whole.problem
        shapes = (whole.m, whole.n), (tile.rows, tile.columns)
        return self._panel(0, 2, *shapes, tile, (tile.row, tile.column))

    def _named(self, name: _Name, *what: Any) -> Panel:
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
        offset, rows, width = self._whole.offsets[which] + start * item, tile.count * part[0], part[1] * item
        most = self._most[which]
        room = self._room(most, rows * width) if key else most
        return Panel(key, offset, rows, width, whole[1] * item, room)
