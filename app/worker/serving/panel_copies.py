"""PanelCopies: panels of tiles on their way to the device, whole, in shares or in slices of k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import ceil, gcd
from typing import Any

from app.devices.backend import AsyncExecution, Buffer, WorkerContext
from app.errors import LaunchFailed
from app.worker.serving.device_memory import DeviceBufferCache, Panel, TileTransfer, rows_at, unless_out_of_memory
from app.worker.serving.tile_buffers import Arrival, TileBuffers, taken

_ALIGNED = 4096  # bytes: parts of buffers begin at multiples


@dataclass(frozen=True, slots=True)
class OperandSlices:
    """A and B of a slice of k, and the marks after which they are on the device."""

    a: Buffer
    b: Buffer
    after: tuple[Any, ...]


class PanelCopies:
    """The panels of the tiles of one call, in buffers that are used again."""

    def __init__(
        self, buffers: TileBuffers, held: WorkerContext, cache: DeviceBufferCache, device: AsyncExecution
    ) -> None:
        self._buffers, self._held, self._cache, self._device = buffers, held, cache, device

    def have_room(self, tile: TileTransfer) -> bool:
        """Whether the panels of a tile have buffers, and lie there in the layout that it wants if they do."""
        return all(each.key in self._cache.keys and not self._is_otherwise(tile, each) for each in (tile.a, tile.b))

    def take_room(self, tile: TileTransfer) -> None:
        """Take buffers for the panels of a tile, or allocate them; raises LaunchFailed."""
        for each in (tile.a, tile.b):
            self._with_room(tile, partial(self._begun, tile, each))

    def operands(self, tile: TileTransfer) -> tuple[Buffer, Buffer, list[Any]]:
        """A and B of a tile, and the marks after which they are there; raises LaunchFailed."""
        a, b = (self._with_room(tile, partial(self._panel, tile, each)) for each in (tile.a, tile.b))
        known = self._buffers.panels(tile.walk)
        return a, b, [known[each.key].mark for each in (tile.a, tile.b) if each.key in known]

    def slices(self, tile: TileTransfer) -> Iterator[OperandSlices]:
        """A and B of a tile slice by slice, one copied behind the other; raises LaunchFailed."""
        panels, known = (tile.a, tile.b), self._buffers.panels(tile.walk)
        buffers = [self._with_room(tile, partial(self._begun, tile, each)) for each in panels]
        arrivals = [self._arrival(tile, each) for each in panels]
        marks = [_marks(panel, each) for panel, each in zip(panels, arrivals, strict=True)]
        arriving = [at for at in (0, 1) if arrivals[at].rows < panels[at].rows]
        known.update((panels[at].key, Arrival()) for at in arriving)
        for number in range(tile.slices):
            for at in arriving:
                marks[at][number] = self._slice_copied(panels[at], buffers[at], number)
            a, b = (_slice(each, buffer, number) for each, buffer in zip(panels, buffers, strict=True))
            yield OperandSlices(a, b, (marks[0][number], marks[1][number]))
        for at in arriving:
            known[panels[at].key] = _arrived(panels[at], marks[at])

    def fetch_ahead(self, tile: TileTransfer) -> None:
        """Begin to copy what the next tiles need; without memory for a panel, it is copied in its turn."""
        self._buffers.recycle(self._cache, tile.walk, tile.needed)
        with unless_out_of_memory():
            for panel in tile.ahead:
                self._panel(tile, panel)
            for each in tile.later:
                self._panel(tile, each.panel, each.share)
                arrival = self._buffers.panels(tile.walk).get(each.panel.key)
                if arrival is not None and arrival.rows < each.panel.rows:
                    break

    def _with_room(self, tile: TileTransfer, take: Callable[[], Buffer]) -> Buffer:
        """A panel of the tile itself: without memory for it, what is not in use gives way. Raises LaunchFailed."""
        try:
            return take()
        except LaunchFailed as error:
            if error.facts.get("fatal", True):
                raise
        self._buffers.recycle(self._cache, tile.walk, (tile.a.key, tile.b.key))
        for _, mark in self._buffers.free(tile.walk).results:
            if mark is not None:
                self._device.finish(mark)
        self._buffers.free(tile.walk).results.clear()
        return take()

    def _panel(self, tile: TileTransfer, panel: Panel, share: float = 1.0) -> Buffer:
        """A panel on the device, of which a share of what is missing begins to come; raises LaunchFailed."""
        buffer = self._begun(tile, panel)
        arrival = self._arrival(tile, panel)
        if missing := panel.rows - arrival.rows:
            known = self._buffers.panels(tile.walk)
            known[panel.key] = arrival  # of one that lies there in another layout nothing is left, should the copy fail
            known[panel.key] = self._copied(panel, buffer, arrival, _part(panel, missing, share))
        return buffer

    def _begun(self, tile: TileTransfer, panel: Panel) -> Buffer:
        """The buffer of a panel, some of which may be there; raises LaunchFailed."""
        buffer = self._cache.copy(panel.key)
        if buffer is None:
            buffer = self._fresh(tile, panel)
            self._buffers.panels(tile.walk)[panel.key] = Arrival()
            self._cache.put(panel.key, buffer)
        return buffer

    def _arrival(self, tile: TileTransfer, panel: Panel) -> Arrival:
        """What there is of a panel in its buffer."""
        if self._is_otherwise(tile, panel):
            return Arrival()
        return self._buffers.panels(tile.walk).get(panel.key, Arrival(rows=panel.rows))

    def _is_otherwise(self, tile: TileTransfer, panel: Panel) -> bool:
        """Whether a panel lies in slices in its buffer and is wanted whole, or the other way round."""
        found = self._buffers.panels(tile.walk).get(panel.key, Arrival())
        return panel.along and bool(found.slices) != bool(panel.slices)

    def _copied(self, panel: Panel, buffer: Buffer, arrival: Arrival, count: int) -> Arrival:
        """What there is of a panel once so many more rows are copied, which begins now."""
        if panel.slices and count == panel.rows:
            return _arrived(panel, [self._slice_copied(panel, buffer, at) for at in range(len(panel.slices))])
        start, stop = arrival.rows, arrival.rows + count
        part = buffer.window(start * panel.width, count * panel.width)
        return Arrival(self._device.write_rows(part, rows_at(self._held, panel)[start:stop], wait=False), stop)

    def _slice_copied(self, panel: Panel, buffer: Buffer, number: int) -> Any:
        """Begin to copy a slice; gives its mark."""
        part = panel.slice(number)
        rows = rows_at(self._held, panel)[part.rows, part.columns]
        return self._device.write_rows(buffer.window(part.offset, part.nbytes), rows, wait=False)

    def _fresh(self, tile: TileTransfer, panel: Panel) -> Buffer:
        """A buffer for a panel, one that was used if there is one; raises LaunchFailed."""
        used = taken(self._buffers.free(tile.walk).panels, panel.room)
        if used is not None:
            return used[0]
        self._cache.make_room(panel.room, tile.budget, tile.needed)
        return self._held.backend.allocate(panel.room)


def _arrived(panel: Panel, marks: Sequence[Any]) -> Arrival:
    """What there is of a panel of which all slices are copied."""
    return Arrival(marks[-1], panel.rows, tuple(zip(accumulate(panel.slices), marks, strict=True)))


def _marks(panel: Panel, arrival: Arrival) -> list[Any]:
    """The marks after which slices of a panel are there, which may have come in others for the tile before."""
    came = arrival.slices
    return [next((mark for end, mark in came if end >= stop), arrival.mark) for stop in accumulate(panel.slices)]


def _slice(panel: Panel, buffer: Buffer, number: int) -> Buffer:
    part = panel.slice(number)
    return buffer.window(part.offset, part.nbytes)


def _part(panel: Panel, missing: int, share: float) -> int:
    """The rows of a share of a panel's missing ones, as many as end where a part of a buffer may begin."""
    step = missing if panel.along and panel.slices else _ALIGNED // gcd(panel.width, _ALIGNED)
    return min(missing, ceil(share * missing / step) * step)
