"""TileBuffers: the buffers and panels that products in tiles keep on the device from one call to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from app.devices.backend import Buffer
from app.worker.serving.device_memory import DeviceBufferCache, Panel, TileTransfer

Marked: TypeAlias = tuple[Buffer, Any]  # and the mark of the copy after which it may be used
PARTIALS: Final = 2  # buffers of a slice's product: of the one that is added to C, and of the next one
RESULTS: Final = 2  # buffers of C: of the tile that is made, and of the one before, which leaves meanwhile


@dataclass(frozen=True, slots=True)
class Arrival:
    """The first `rows` of a panel are on the device once the mark of their copy is finished.

    One that came in `slices` has the end of each, in rows or in their bytes as the panel's are, and its mark.
    """

    mark: Any = None
    rows: int = 0
    slices: tuple[tuple[int, Any], ...] = ()


@dataclass(slots=True)
class FreeBuffers:
    """Buffers of panels that nothing reads or writes, and of results, each with the mark of its copy back."""

    panels: list[Marked] = field(default_factory=list)
    results: list[Marked] = field(default_factory=list)


def taken(free: list[Marked], nbytes: int) -> Marked | None:
    """A buffer of so many bytes that was used, if there is one."""
    at = next((number for number, (each, _) in enumerate(free) if each.nbytes == nbytes), None)
    return None if at is None else free.pop(at)


def _chosen(free: list[Marked], rooms: Iterable[int]) -> list[Marked]:
    """A buffer that was used for each of some sizes, where there is one."""
    return [used for nbytes in rooms if (used := taken(free, nbytes)) is not None]


class TileBuffers:
    """What products that are made in tiles leave on the device between two calls, by their walks.

    That is the C of its last tile, unless it was the product's, and buffers that are used again, by the next product
    too: to give memory back waits for all that the device does.
    """

    def __init__(self) -> None:
        self._unsent: dict[int, tuple[Buffer, Panel]] = {}
        self._free: dict[int, FreeBuffers] = {}
        self._panels: dict[int, dict[int, Arrival]] = {}  # by product, of panels that are among the cache's copies

    @property
    def walks(self) -> tuple[int, ...]:
        """The products of which something is kept."""
        return (*self._unsent, *self._free)

    def forget(self, keys: Sequence[int]) -> None:
        """Drop what a product left that has ended."""
        for key in keys:
            for kept in (self._unsent, self._free, self._panels):
                kept.pop(key, None)

    def spare(self) -> bool:
        """Give back the buffers that are in no use; whether there were any."""
        found = any(each.panels or each.results for each in self._free.values())
        self._free.clear()
        return found

    def take_over(self, cache: DeviceBufferCache, tile: TileTransfer) -> None:
        """Have a product that begins with a tile use the buffers of those that have ended.

        It takes as many of a size as it is to have; the others are given back. A product has ended if no C of its is
        left to copy back; one that goes on nevertheless, after a failure, has buffers allocated anew.
        """
        if tile.walk in self._panels:
            return
        left = FreeBuffers()
        for key in self._panels.keys() - self._unsent.keys():
            self.recycle(cache, key, ())
            left.panels += self.free(key).panels
            left.results += self.free(key).results
            self.forget([key])
        self._panels[tile.walk] = {}
        count = RESULTS + (PARTIALS if tile.slices else 0)
        panels, results = _chosen(left.panels, tile.rooms), _chosen(left.results, [tile.c.room] * count)
        cache.make_room(sum(each.nbytes for each, _ in panels), tile.budget, tile.needed)
        self._free[tile.walk] = FreeBuffers(panels, results)

    def take_unsent(self, walk: int) -> tuple[Buffer, Panel] | None:
        """C of a product's tile before, whose copy back has not begun."""
        return self._unsent.pop(walk, None)

    def keep_unsent(self, walk: int, c: Buffer, panel: Panel) -> None:
        """Keep a C until the next tile is made."""
        self._unsent[walk] = c, panel

    def has_unsent(self, walk: int) -> bool:
        """Whether there is such a C."""
        return walk in self._unsent

    def free(self, walk: int) -> FreeBuffers:
        """The buffers of a product that are used again."""
        return self._free.setdefault(walk, FreeBuffers())

    def panels(self, walk: int) -> dict[int, Arrival]:
        """What there is of a product's panels, by their keys."""
        return self._panels.setdefault(walk, {})

    def recycle(self, cache: DeviceBufferCache, walk: int, needed: Collection[int]) -> None:
        """Take back the buffers of a product's panels but the needed ones."""
        known = self.panels(walk)
        for key in known.keys() - set(needed):
            arrival, buffer = known.pop(key), cache.copy(key)
            if buffer is not None:
                cache.forget([key])
                self.free(walk).panels.append((buffer, arrival.mark))
