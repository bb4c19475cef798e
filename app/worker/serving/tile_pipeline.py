"""TilePipeline: while the device makes a tile, the next is queued, its panel comes, and C of the one before leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

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
from app.worker.serving.panel_copies import PanelCopies
from app.worker.serving.sliced_launch import SlicedLaunch
from app.worker.serving.tile_buffers import PARTIALS, Marked, TileBuffers, taken
from kernels.launch import Launch
from kernels.problem import Problem

_POOLED: Final = 2**26  # bytes: backends may pool smaller buffers, and lend one again while a copy into it goes on


@dataclass(frozen=True, slots=True)
class TileWork:
    """One tile to make: its problem, the launch with its program, None for the vendor's library, and its panels.

    With `sliced` it is made as its panels come, slice by slice, where there is memory for that.
    """

    problem: Problem
    launch: Launch | None
    program: Program | None
    tile: TileTransfer
    sliced: SlicedLaunch | None = None


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


class TilePipeline(TileBuffers):
    """Makes the tiles of products."""

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


class _PipelinedTiles:
    """The tiles of one call."""

    def __init__(self, pipeline: TilePipeline, held: WorkerContext, cache: DeviceBufferCache) -> None:
        self._pipeline, self._held, self._cache = pipeline, held, cache
        backend = held.backend
        self._device = backend if isinstance(backend, AsyncExecution) else SyncExecution(backend)
        self._panels = PanelCopies(pipeline, held, cache, self._device)
        self._running: _InFlight | None = None
        self.made: list[TileSeconds] = []

    def start(self, work: TileWork) -> None:
        """Queue a tile; the one before is over when it returns, and its C on the way."""
        tile, seconds, started = work.tile, TileSeconds(), perf_counter()
        self.made.append(seconds)
        sliced = work.sliced
        tile = tile if sliced is not None else tile.whole
        is_missing = not self._panels.have_room(tile)
        if self._running is not None and (is_missing or not self._pipeline.free(tile.walk).results):
            self._leave()  # it may have the only buffers that there are
        c, sent = self._result(tile)
        if is_idle := self._running is None:
            self._pipeline.recycle(self._cache, tile.walk, tile.needed)
        if sliced is not None and (partials := self._partials(tile)):
            if is_idle:
                self._expect_result(tile)
            mark = self._queue_slices(sliced, tile, (c, sent), partials)
            seconds.kernel = perf_counter() - started
        else:
            tile = tile.whole
            if not self._panels.have_room(tile):
                self._leave()
            mark = self._queue_whole(work, tile, (c, sent), seconds, is_idle=is_idle)
        if seconds.declined:
            return
        self._send_unsent(tile.walk)
        self._leave()
        self._running = _InFlight(tile, c, mark, seconds)
        self._panels.fetch_ahead(tile)

    def _queue_whole(
        self, work: TileWork, tile: TileTransfer, given: Marked, seconds: TileSeconds, *, is_idle: bool
    ) -> Any:
        """Queue the launch of a tile behind its panels, for which an idle device waits; gives its mark."""
        started, (c, sent) = perf_counter(), given
        a, b, copied = self._panels.operands(tile)
        after = [mark for mark in (*copied, sent) if mark is not None]
        if is_idle:
            self._expect_result(tile)
            for mark in after:
                self._device.finish(mark)
        seconds.h2d = perf_counter() - started
        return self._queue(work, Operands(a, b, c), seconds, after)

    def _queue_slices(self, sliced: SlicedLaunch, tile: TileTransfer, c: Marked, partials: Sequence[Marked]) -> Any:
        """Queue the launches of a tile's slices behind these; gives the mark of the last. Raises LaunchFailed."""
        mark = sliced.queue(self._device, self._panels.slices(tile), c, partials)
        self._pipeline.free(tile.walk).results.extend((buffer, mark) for buffer, _ in partials)
        return mark

    def _partials(self, tile: TileTransfer) -> list[Marked]:
        """Buffers for the products of a tile's slices, as many as there is memory for beside its panels."""
        self._panels.take_room(tile)
        found, results = list[Marked](), self._pipeline.free(tile.walk).results
        with unless_out_of_memory():
            while len(found) < min(PARTIALS, tile.slices - 1):
                found.append(taken(results, tile.c.room) or (self._held.backend.allocate(tile.c.room), None))
        return found

    def _expect_result(self, tile: TileTransfer) -> None:
        """Allocate a buffer for C of the next tile; without memory for it, that has the one of this."""
        results = self._pipeline.free(tile.walk).results
        if not (tile.is_last or results or self._pipeline.has_unsent(tile.walk)):
            with unless_out_of_memory():
                results.append((self._held.backend.allocate(tile.c.room), None))

    def _result(self, tile: TileTransfer) -> Marked:
        """A buffer for C, if need be that of the tile before; raises LaunchFailed."""
        if not self._pipeline.free(tile.walk).results:
            self._send_unsent(tile.walk)
        used = taken(self._pipeline.free(tile.walk).results, tile.c.room)
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

    def _rows(self, panel: Panel) -> Array:
        return rows_at(self._held, panel)
