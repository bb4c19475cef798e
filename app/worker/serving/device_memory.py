"""Device memory of products' operands: copies of resident matrices, and panels of matrices that exceed the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from app.devices.backend import Buffer, GatheredRows, RowCopies, WorkerContext
from app.dtypes import Array
from app.errors import LaunchFailed


class DeviceBufferCache:
    """Device copies by key, the least recently used first; a key names the same bytes for as long as it is known."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys that there are copies of."""
        return tuple(self._buffers)

    def copy(self, key: int | None) -> Buffer | None:
        """The buffer of a key, now the most recently used; None if there is none."""
        buffer = None if key is None else self._buffers.pop(key, None)
        if key is not None and buffer is not None:
            self._buffers[key] = buffer
        return buffer

    def make_room(self, nbytes: int, budget: int, needed: Collection[int | None]) -> bool:
        """Evict buffers other than the needed ones until `nbytes` more fit the budget; whether they do."""
        bound = sum(buffer.nbytes for key, buffer in self._buffers.items() if key in needed)
        if bound + nbytes > budget:
            return False
        total = sum(buffer.nbytes for buffer in self._buffers.values())
        for key in [key for key in self._buffers if key not in needed]:
            if total + nbytes <= budget:
                break
            total -= self._buffers.pop(key).nbytes
        return True

    def put(self, key: int, buffer: Buffer) -> None:
        """Keep a copy that there is room for."""
        self._buffers[key] = buffer

    def forget(self, keys: Iterable[int]) -> None:
        """Drop the copies of matrices that are gone."""
        for key in keys:
            self._buffers.pop(key, None)

    def spare(self, needed: Collection[int | None]) -> bool:
        """Drop everything but the needed copies; whether there was anything to drop."""
        others = [key for key in self._buffers if key not in needed]
        self.forget(others)
        return bool(others)


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows of `width` bytes in the slab, `pitch` bytes apart, the first at `offset`; `key` names these bytes."""

    key: int
    offset: int
    rows: int
    width: int
    pitch: int

    @property
    def nbytes(self) -> int:
        """Its bytes on the device, where they lie one after the other."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class TileTransfer:
    """The panels of A, B and C of one tile of the product `walk`, and the one that the next tile needs beside them.

    Unless `is_last`, C may be copied back while the next tile is made.
    """

    walk: int
    a: Panel
    b: Panel
    c: Panel
    ahead: Panel | None = None
    is_last: bool = True

    @property
    def budget(self) -> int:
        """Bytes of the panels that stay on the device."""
        return self.a.nbytes + self.b.nbytes + (self.ahead.nbytes if self.ahead else 0)

    @property
    def needed(self) -> tuple[int, ...]:
        """The keys of panels that stay."""
        return (self.a.key, self.b.key, *((self.ahead.key,) if self.ahead else ()))


class TileCopies:
    """By product, the C of its tile before, which is copied back beside its next launch."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[Buffer, Panel]] = {}

    @property
    def walks(self) -> tuple[int, ...]:
        """The products that have something to copy back."""
        return tuple(self._results)

    def begin(self, held: WorkerContext, cache: DeviceBufferCache, tile: TileTransfer) -> None:
        """Begin to copy C of the tile before back, and the next tile's panel here; raises LaunchFailed.

        Without memory for the panel it is copied in its turn.
        """
        if tile.walk in self._results:
            buffer, panel = self._results[tile.walk]
            _copies(held).read_rows(buffer, _rows(held, panel), wait=False)
        if tile.ahead is None:
            return
        try:
            fetch(held, cache, tile, tile.ahead, wait=False)
        except LaunchFailed as error:
            if error.facts.get("fatal", True):
                raise

    def settle(self, held: WorkerContext, cache: DeviceBufferCache, tile: TileTransfer) -> None:
        """After a launch that failed, wait until nothing is copied back, and drop what may not be here yet.

        The slab may be lent to others then.
        """
        if tile.ahead is not None:
            cache.forget([tile.ahead.key])
        if tile.walk in self._results:
            buffer, panel = self._results[tile.walk]
            _copies(held).read_rows(buffer, _rows(held, panel), wait=True)

    def forget(self, keys: tuple[int, ...]) -> None:
        """Drop what a product left that has ended."""
        for key in keys:
            self._results.pop(key, None)

    def end(self, held: WorkerContext, tile: TileTransfer, c: Buffer) -> None:
        """Take the tile's C, after its launch: copies that were begun before it are over. Raises LaunchFailed."""
        self._results.pop(tile.walk, None)
        if tile.is_last:
            _copies(held).read_rows(c, _rows(held, tile.c), wait=True)
        else:
            self._results[tile.walk] = (c, tile.c)


def fetch(
    held: WorkerContext, cache: DeviceBufferCache, tile: TileTransfer, panel: Panel, *, wait: bool = True
) -> Buffer:
    """A panel on the device: the copy that is there, or a fresh one; the panels of other tiles give way to it.

    Unless it is waited for, it is there after the next launch. Raises LaunchFailed.
    """
    copy = cache.copy(panel.key)
    if copy is not None:
        return copy
    cache.make_room(panel.nbytes, tile.budget, tile.needed)
    fresh = held.backend.allocate(panel.nbytes)
    _copies(held).write_rows(fresh, _rows(held, panel), wait=wait)
    cache.put(panel.key, fresh)
    return fresh


def bytes_at(held: WorkerContext, offset: int, nbytes: int) -> Array:
    """Bytes of the slab."""
    return np.frombuffer(held.slab, dtype=np.uint8, count=nbytes, offset=offset)


def _copies(held: WorkerContext) -> RowCopies:
    return held.backend if isinstance(held.backend, RowCopies) else GatheredRows(held.backend)


def _rows(held: WorkerContext, panel: Panel) -> Array:
    """The rows of a panel in the slab, as bytes."""
    return np.ndarray((panel.rows, panel.width), np.uint8, held.slab, panel.offset, (panel.pitch, 1))
