"""Device memory of products' operands: copies of resident matrices, and panels of matrices that exceed the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.devices.backend import Buffer, WorkerContext
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
    """Rows of `width` bytes in the slab, `pitch` bytes apart, the first at `offset`; `key` names these bytes.

    On the device it has a buffer for `most` bytes, its own if that is 0: buffers of one size are used again. One with
    `slices` may come in slices of k, so many rows each; or, if k is `along` its rows, so many bytes of all rows, which
    lie together on the device, as a matrix of their own: nothing but a tile in slices has such a panel.
    """

    key: int
    offset: int
    rows: int
    width: int
    pitch: int
    most: int = 0
    slices: tuple[int, ...] = ()
    along: bool = False

    def __reduce__(self) -> tuple[Callable[..., Panel], tuple[Any, ...]]:
        """In order, which takes half the time that members by name take: a call's tiles have hundreds of these."""
        own = self.key, self.offset, self.rows, self.width, self.pitch, self.most
        return Panel, (*own, self.slices, self.along) if self.slices else own

    @property
    def nbytes(self) -> int:
        """Its bytes on the device, where they lie one after the other."""
        return self.rows * self.width

    @property
    def room(self) -> int:
        """Bytes of its buffer."""
        return self.most or self.nbytes

    @property
    def whole(self) -> Panel:
        """The same bytes, as one matrix on the device."""
        return replace(self, slices=()) if self.along else self

    def slice(self, number: int) -> PanelSlice:
        """Where one of its slices lies."""
        before, size = sum(self.slices[:number]), self.slices[number]
        part = slice(before, before + size)
        if self.along:
            return PanelSlice(slice(None), part, before * self.rows, size * self.rows)
        return PanelSlice(part, slice(None), before * self.width, size * self.width)


@dataclass(frozen=True, slots=True)
class PanelSlice:
    """The `rows` of a panel, and bytes of each, that a slice is; on the device `nbytes` from `offset` on."""

    rows: slice
    columns: slice
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PanelShare:
    """A panel that a later tile needs, and the share of what is missing of it that comes beside this one."""

    panel: Panel
    share: float

    def __reduce__(self) -> tuple[Callable[..., PanelShare], tuple[Panel, float]]:
        """As a panel's."""
        return PanelShare, (self.panel, self.share)


@dataclass(frozen=True, slots=True)
class TileTransfer:
    """The panels of A, B and C of one tile of the product `walk`, and those of the next tiles.

    All of the ones `ahead`, which the next tile needs, comes meanwhile, and of `later` ones a share. `rooms` are bytes
    of the buffers that the walk has for panels. Unless `is_last`, C is copied back while the next tile is made.
    """

    walk: int
    a: Panel
    b: Panel
    c: Panel
    ahead: tuple[Panel, ...] = ()
    later: tuple[PanelShare, ...] = ()
    rooms: tuple[int, ...] = ()
    is_last: bool = True

    def __reduce__(self) -> tuple[Callable[..., TileTransfer], tuple[Any, ...]]:
        """As a panel's."""
        own = self.walk, self.a, self.b, self.c
        return TileTransfer, (*own, self.ahead, self.later, self.rooms, self.is_last)

    @property
    def slices(self) -> int:
        """Slices of k that both panels come in; 0 if one does not."""
        return min(len(self.a.slices), len(self.b.slices))

    def slice_k(self, itemsize: int) -> tuple[int, ...]:
        """The k of each slice."""
        panel = self.b if self.a.along else self.a
        return tuple(size // itemsize for size in panel.slices) if panel.along else panel.slices

    @property
    def whole(self) -> TileTransfer:
        """The same with panels that come whole, the next ones' too."""
        if not self.slices:
            return self
        a, b, *ahead = (each.whole for each in (self.a, self.b, *self.ahead))
        later = tuple(replace(each, panel=each.panel.whole) for each in self.later)
        return replace(self, a=a, b=b, ahead=tuple(ahead), later=later)

    @property
    def following(self) -> tuple[Panel, ...]:
        """The panels of the next tiles, in the order in which they are needed."""
        return *self.ahead, *(each.panel for each in self.later)

    @property
    def budget(self) -> int:
        """Bytes of the panels that stay on the device."""
        return max(sum(self.rooms), sum(each.room for each in (self.a, self.b, *self.following)))

    @property
    def needed(self) -> tuple[int, ...]:
        """The keys of panels that stay."""
        return tuple(each.key for each in (self.a, self.b, *self.following))


@contextmanager
def unless_out_of_memory() -> Iterator[None]:
    """Go on after the block where it failed for want of device memory; other failures are raised."""
    try:
        yield
    except LaunchFailed as error:
        if error.facts.get("fatal", True):
            raise


def bytes_at(held: WorkerContext, offset: int, nbytes: int) -> Array:
    """Bytes of the slab."""
    return np.frombuffer(held.slab, dtype=np.uint8, count=nbytes, offset=offset)


def rows_at(held: WorkerContext, panel: Panel) -> Array:
    """The rows of a panel in the slab, as bytes."""
    return np.ndarray((panel.rows, panel.width), np.uint8, held.slab, panel.offset, (panel.pitch, 1))
