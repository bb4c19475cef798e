"""TilePipeline: while the device makes a tile, the next is queued, its panel comes, and C of the one before leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, gcd
from time import perf_counter
from typing import Any, Final, TypeAlias

from app.devices.backend import (
    AsyncExecution,
    Backend,
    Buffer,
    Operands,
    Program,
    SyncExecution,
    WorkerContext,
    nothing,
)
from app.dtypes import Array
from app.errors import LaunchFailed
from app.worker.serving.device_memory import DeviceBufferCache, Panel, TileTransfer, rows_at, unless_out_of_memory
from kernels.launch import Launch
from kernels.problem import Problem


@dataclass(frozen=True, slots=True)
class TileWork:
    """One tile to make: its problem, the launch with its program, None for the vendor's library, and its panels."""

    problem: Problem
    launch: Launch | None
    program: Program | None
    tile: TileTransfer


@dataclass(slots=True)
class TileSeconds:
    """Seconds that were waited for one tile's panels, its launch and its C, and the verdict of the launch."""

    h2d: float = 0.0
    kernel: float = 0.0
    d2h: float = 0.0
    declined: int = 0


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A tile whose launch was queued: `mark` ends with it."""

    tile: TileTransfer
    c: Buffer
    mark: Any
    seconds: TileSeconds


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The first `rows` of a panel are on the device once the mark of their copy is finished."""

    mark: Any = None
    rows: int = 0


_Marked: TypeAlias = tuple[Buffer, Any]  # and the mark of the copy after which it may be used
_ALIGNED = 4096  # bytes: parts of buffers begin at multiples
_POOLED: Final = 2**26  # bytes: backends may pool smaller buffers, and lend one again while a copy into it goes on
_RESULTS: Final = 2  # buffers of C: of the tile that is made, and of the one before, which leaves meanwhile


@dataclass(slots=True)
class _FreeBuffers:
    """Buffers of panels that nothing reads or writes, and of results, each with the mark of its copy back."""

    panels: list[_Marked] = field(default_factory=list)
    results: list[_Marked] = field(default_factory=list)


def _taken(free: list[_Marked], nbytes: int) -> _Marked | None:
    """A buffer of so many bytes that was used, if there is one."""
    at = next((number for number, (each, _) in enumerate(free) if each.nbytes == nbytes), None)
    return None if at is None else free.pop(at)


def _chosen(free: list[_Marked], rooms: Iterable[int]) -> list[_Marked]:
    """A buffer that was used for each of some sizes, where there is one."""
    return [used for nbytes in rooms if (used := _taken(free, nbytes)) is not None]


class TilePipeline:
    """Makes the tiles of products; what a product leaves on the device between two calls it keeps by its walk.

    That is the C of its last tile, unless it was the product's, and buffers that are used again, by the next product
    too: to give memory back waits for all that the device does.
    """

    def __init__(self) -> None:
        self._unsent: dict[int, tuple[Buffer, Panel]] = {}
        self._free: dict[int, _FreeBuffers] = {}
        self._panels: dict[int, dict[int, _Arrival]] = {}  # by product, of panels that are among the cache's copies

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
        left = _FreeBuffers()
        for key in self._panels.keys() - self._unsent.keys():
            self.recycle(cache, key, ())
            left.panels += self.free(key).panels
            left.results += self.free(key).results
            self.forget([key])
        self._panels[tile.walk] = {}
        panels, results = _chosen(left.panels, tile.rooms), _chosen(left.results, [tile.c.room] * _RESULTS)
        cache.make_room(sum(each.nbytes for each, _ in panels), tile.budget, tile.needed)
        self._free[tile.walk] = _FreeBuffers(panels, results)

    def make(
        self,
        held: WorkerContext,
        cache: DeviceBufferCache,
        works: Iterable[TileWork],
        begin: Callable[[int], None],
        goes_on: Callable[[float], bool] = lambda _: True,
    ) -> list[TileSeconds]:
        """Make tiles of one product in turn; `begin` is called before each, with its index, and may raise.

        Another one is begun if the call `goes_on` after so many seconds. All C is in the slab then but the last tile's,
        unless that `is_last`. A launch that declined is the last one. However it ends, nothing is copied any more, and
        no launch runs. Raises LaunchFailed.
        """
        tiles, started = _PipelinedTiles(self, held, cache), perf_counter()
        try:
            for number, work in enumerate(works):
                if number and not goes_on(perf_counter() - started):
                    break
                begin(number)
                tiles.start(work)
                if tiles.made[-1].declined:
                    break
            tiles.end()
        except BaseException as error:
            if not (isinstance(error, LaunchFailed) and error.facts.get("fatal", True)):
                tiles.settle()
            raise
        return tiles.made

    def take_unsent(self, walk: int) -> tuple[Buffer, Panel] | None:
        """C of a product's tile before, whose copy back has not begun."""
        return self._unsent.pop(walk, None)

    def keep_unsent(self, walk: int, c: Buffer, panel: Panel) -> None:
        """Keep a C until the next tile is made."""
        self._unsent[walk] = c, panel

    def has_unsent(self, walk: int) -> bool:
        """Whether there is such a C."""
        return walk in self._unsent

    def free(self, walk: int) -> _FreeBuffers:
        """The buffers of a product that are used again."""
        return self._free.setdefault(walk, _FreeBuffers())

    def panels(self, walk: int) -> dict[int, _Arrival]:
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


def run(
    backend: Backend,
    program: Program | None,
    launch: Launch | None,
    problem: Problem,
    operands: Operands,
    meanwhile: Callable[[], None] = nothing,
) -> int:
    """Launch and wait, the vendor's library where there is no launch; gives the kernel's verdict.

    `meanwhile` is called while the device computes, or before where it could not.
    """
    if program is None or launch is None:
        meanwhile()
        backend.vendor_run(problem, operands)
        return 0
    if meanwhile is not nothing and launch.verdict_at is None and isinstance(backend, AsyncExecution):
        mark = backend.start(program, launch, operands, ())
        meanwhile()
        backend.finish(mark)
        return 0
    meanwhile()
    backend.run(program, launch, operands)
    return backend.declined(launch)


def _part(panel: Panel, missing: int, share: float) -> int:
    """The rows of a share of a panel's missing ones, as many as end where a part of a buffer may begin."""
    step = _ALIGNED // gcd(panel.width, _ALIGNED)
    return min(missing, ceil(share * missing / step) * step)


class _PipelinedTiles:
    """The tiles of one call."""

    def __init__(self, pipeline: TilePipeline, held: WorkerContext, cache: DeviceBufferCache) -> None:
        self._pipeline, self._held, self._cache = pipeline, held, cache
        backend = held.backend
        self._device = backend if isinstance(backend, AsyncExecution) else SyncExecution(backend)
        self._running: _InFlight | None = None
        self.made: list[TileSeconds] = []

    def start(self, work: TileWork) -> None:
        """Queue a tile; the one before is over when it returns, and its C on the way."""
        tile, seconds, started = work.tile, TileSeconds(), perf_counter()
        self.made.append(seconds)
        is_missing = not {tile.a.key, tile.b.key} <= set(self._cache.keys)
        if self._running is not None and (is_missing or not self._pipeline.free(tile.walk).results):
            self._leave()  # it may have the only buffers that there are
        c, sent = self._result(tile)
        if is_idle := self._running is None:
            self._pipeline.recycle(self._cache, tile.walk, tile.needed)
        a, b = self._own(tile, tile.a), self._own(tile, tile.b)
        known = self._pipeline.panels(tile.walk)
        copied = (known[each.key].mark for each in (tile.a, tile.b) if each.key in known)
        after = [mark for mark in (*copied, sent) if mark is not None]
        if is_idle:
            self._expect_result(tile)
            for mark in after:
                self._device.finish(mark)
        seconds.h2d = perf_counter() - started
        mark = self._queue(work, Operands(a, b, c), seconds, after)
        if seconds.declined:
            return
        self._send_unsent(tile.walk)
        self._leave()
        self._running = _InFlight(tile, c, mark, seconds)
        self._fetch_ahead(tile)

    def _expect_result(self, tile: TileTransfer) -> None:
        """Allocate a buffer for C of the next tile; without memory for it, that has the one of this."""
        results = self._pipeline.free(tile.walk).results
        if not (tile.is_last or results or self._pipeline.has_unsent(tile.walk)):
            with unless_out_of_memory():
                results.append((self._held.backend.allocate(tile.c.room), None))

    def _result(self, tile: TileTransfer) -> _Marked:
        """A buffer for C, if need be that of the tile before; raises LaunchFailed."""
        if not self._pipeline.free(tile.walk).results:
            self._send_unsent(tile.walk)
        used = _taken(self._pipeline.free(tile.walk).results, tile.c.room)
        return used or (self._held.backend.allocate(tile.c.room), None)

    def end(self) -> None:
        """Wait for the last tile, and for all copies."""
        running, self._running = self._running, None
        if running is None:
            return
        self._wait(running)
        started = perf_counter()
        if running.tile.is_last:
            self._device.read_rows(running.c, self._rows(running.tile.c), wait=True)
            self._pipeline.free(running.tile.walk).results.append((running.c, None))
        else:
            self._pipeline.keep_unsent(running.tile.walk, running.c, running.tile.c)
        self._await_copies(running.tile)
        running.seconds.d2h += perf_counter() - started

    def _await_copies(self, tile: TileTransfer) -> None:
        """Wait for what is copied back, as the slab may be lent to others, and for panels of pooled buffers.

        Copies of large ones go on, beside whoever has the device next: their memory is freed only after them.
        """
        known, results = self._pipeline.panels(tile.walk), self._pipeline.free(tile.walk).results
        pooled = [each.key for each in tile.following if each.room <= _POOLED and each.key in known]
        for mark in (*(known[key].mark for key in pooled), *(sent for _, sent in results)):
            if mark is not None:
                self._device.finish(mark)

    def settle(self) -> None:
        """Wait until nothing runs and nothing is copied: the slab may be lent to others then."""
        self._device.settle()

    def _queue(self, work: TileWork, operands: Operands, seconds: TileSeconds, after: Sequence[Any]) -> Any:
        """Queue the launch after some marks; one that may decline, and the vendor's, are over when it returns."""
        backend, launch, started, mark = self._held.backend, work.launch, perf_counter(), None
        if launch is not None and work.program is not None and launch.verdict_at is None:
            mark = self._device.start(work.program, launch, operands, after)
        else:
            self._device.settle()
            seconds.declined = run(backend, work.program, launch, work.problem, operands)
        seconds.kernel = perf_counter() - started
        return mark

    def _leave(self) -> None:
        """Wait for the tile that runs, and begin to copy its C back."""
        running, self._running = self._running, None
        if running is not None:
            self._wait(running)
            self._send(running.tile.walk, running.c, running.tile.c)

    def _wait(self, running: _InFlight) -> None:
        started = perf_counter()
        if running.mark is not None:
            self._device.finish(running.mark)
        running.seconds.kernel += perf_counter() - started

    def _send_unsent(self, walk: int) -> None:
        unsent = self._pipeline.take_unsent(walk)
        if unsent is not None:
            self._send(walk, *unsent)

    def _send(self, walk: int, c: Buffer, panel: Panel) -> None:
        """Begin to copy a C back; its buffer may be used again after that."""
        mark = self._device.read_rows(c, self._rows(panel), wait=False)
        self._pipeline.free(walk).results.append((c, mark))

    def _fetch_ahead(self, tile: TileTransfer) -> None:
        """Begin to copy what the next tiles need; without memory for a panel, it is copied in its turn."""
        self._pipeline.recycle(self._cache, tile.walk, tile.needed)
        with unless_out_of_memory():
            for panel in tile.ahead:
                self._panel(tile, panel)
            for each in tile.later:
                self._panel(tile, each.panel, each.share)
                arrival = self._pipeline.panels(tile.walk).get(each.panel.key)
                if arrival is not None and arrival.rows < each.panel.rows:
                    break

    def _own(self, tile: TileTransfer, panel: Panel) -> Buffer:
        """A panel of the tile itself: without memory for it, those of later tiles give way. Raises LaunchFailed."""
        try:
            return self._panel(tile, panel)
        except LaunchFailed as error:
            if error.facts.get("fatal", True):
                raise
        self._pipeline.recycle(self._cache, tile.walk, (tile.a.key, tile.b.key))
        return self._panel(tile, panel)

    def _panel(self, tile: TileTransfer, panel: Panel, share: float = 1.0) -> Buffer:
        """A panel on the device, of which a share of what is missing begins to come; raises LaunchFailed."""
        known, buffer = self._pipeline.panels(tile.walk), self._cache.copy(panel.key)
        arrival = _Arrival() if buffer is None else known.get(panel.key, _Arrival(rows=panel.rows))
        buffer = buffer or self._fresh(tile, panel)
        if missing := panel.rows - arrival.rows:
            known[panel.key] = self._copied(panel, buffer, arrival, _part(panel, missing, share))
            self._cache.put(panel.key, buffer)
        return buffer

    def _copied(self, panel: Panel, buffer: Buffer, arrival: _Arrival, count: int) -> _Arrival:
        """What there is of a panel once so many more rows are copied, which begins now."""
        start, stop = arrival.rows, arrival.rows + count
        part = buffer.window(start * panel.width, count * panel.width)
        return _Arrival(self._device.write_rows(part, self._rows(panel)[start:stop], wait=False), stop)

    def _fresh(self, tile: TileTransfer, panel: Panel) -> Buffer:
        """A buffer for a panel, one that was used if there is one; raises LaunchFailed."""
        used = _taken(self._pipeline.free(tile.walk).panels, panel.room)
        if used is not None:
            return used[0]
        self._cache.make_room(panel.room, tile.budget, tile.needed)
        return self._held.backend.allocate(panel.room)

    def _rows(self, panel: Panel) -> Array:
        return rows_at(self._held, panel)
