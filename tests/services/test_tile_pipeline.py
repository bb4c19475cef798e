"""Tiles on a device that does nothing before it has to, and then in any order that it may."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest

from app.devices.backend import AsyncExecution, Buffer, Operands, WorkerContext
from app.devices.process.worker_main import CallStopped
from app.dtypes import Array
from app.errors import LaunchFailed
from app.worker.serving import panel_copies, tile_pipeline
from app.worker.serving.device_memory import DeviceBufferCache, Panel, PanelShare, TileTransfer
from app.worker.serving.sliced_launch import SlicedLaunch
from app.worker.serving.tile_pipeline import TilePipeline, TileWork
from kernels.launch import Launch
from kernels.problem import Problem

ITEM = 4


@dataclass(eq=False)
class Queued:
    """Something that the device is to do, after others."""

    do: Callable[[], None]
    after: list[Queued]
    is_over: bool = False


@dataclass
class LateDevice:
    """An AsyncExecution of NumPy, which does what was queued in an order drawn from those that it promises."""

    rng: random.Random
    fails: Callable[[str], None] = lambda _: None
    queued: list[Queued] = field(default_factory=list)
    copies: dict[str, Queued] = field(default_factory=dict)
    allocated: int = 0

    def allocate(self, nbytes: int) -> Buffer:
        """Memory with something in it."""
        self.fails("allocate")
        self.allocated += 1
        return Buffer(np.full(nbytes, 0xA5, np.uint8), nbytes)

    def write_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Queued:
        """Copy rows, sooner or later."""
        self.fails("write")
        target = buffer.handle[buffer.offset : buffer.offset + rows.size].reshape(rows.shape)
        return self._copy("write", lambda: np.copyto(target, rows), wait)

    def read_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Queued:
        """Copy into rows, sooner or later."""
        source = buffer.handle[: rows.size].reshape(rows.shape)
        return self._copy("read", lambda: np.copyto(rows, source), wait)

    def start(self, program: Any, launch: Launch, operands: Operands, after: Sequence[Queued]) -> Queued:
        """Queue a product after some marks, beside other products."""
        del program
        self.fails("start")
        do = add if launch.kernel == "accumulate" else multiply
        return self._queue(lambda: do(launch.problem, operands), list(after))

    def finish(self, mark: Queued) -> None:
        """Do something, and what the mark is of at last."""
        for each in self.rng.sample(self.queued, len(self.queued) // 2):
            self._do(each)
        self._do(mark)

    def settle(self) -> None:
        """Do all of it."""
        for each in self.rng.sample(self.queued, len(self.queued)):
            self._do(each)

    @property
    def left(self) -> list[Queued]:
        """What is not done yet."""
        return [each for each in self.queued if not each.is_over]

    def _copy(self, way: str, do: Callable[[], None], wait: bool) -> Queued:
        self.copies[way] = self._queue(do, [self.copies[way]] if way in self.copies else [])
        if wait:
            self._do(self.copies[way])
        return self.copies[way]

    def _queue(self, do: Callable[[], None], after: list[Queued]) -> Queued:
        self.queued.append(Queued(do, after))
        if self.rng.random() < 0.2:
            self._do(self.rng.choice(self.queued))
        return self.queued[-1]

    def _do(self, queued: Queued) -> None:
        if queued.is_over:
            return
        for each in queued.after:
            self._do(each)
        queued.is_over = True
        queued.do()


def multiply(problem: Problem, operands: Operands) -> None:
    """C on the device."""
    a, b, c = (
        matrix(operands.a, problem.m, problem.k),
        matrix(operands.b, problem.k, problem.n),
        matrix(operands.c, problem.m, problem.n),
    )
    c[...] = a @ b


def add(problem: Problem, operands: Operands) -> None:
    """Add what is in A to C."""
    a, c = (matrix(each, problem.m, problem.n) for each in (operands.a, operands.c))
    c += a


def matrix(buffer: Buffer, rows: int, columns: int) -> Array:
    """What a buffer holds."""
    start = buffer.offset
    found: Array = buffer.handle[start : start + ITEM * rows * columns].view(np.float32).reshape(rows, columns)
    return found


@dataclass
class Walk:
    """A product in tiles of drawn sizes, in the order of a serpentine, with its memory."""

    rng: random.Random
    key: int
    m: int = 24
    n: int = 20
    k: int = 8
    slab: Array = field(init=False)
    sliced: float = field(init=False)  # part of the tiles whose panels come in slices
    slices: list[list[int]] = field(init=False)  # of k, by which tiles differ

    def __post_init__(self) -> None:
        """Integers, whose products are exact."""
        drawn = np.random.default_rng(self.rng.randrange(2**32))
        self.a = drawn.integers(-8, 8, (self.m, self.k)).astype(np.float32)
        self.b = drawn.integers(-8, 8, (self.k, self.n)).astype(np.float32)
        self.sliced = self.rng.choice([0, 0.3, 1])
        self.slices = [[len(each) for each in self.cuts(self.k)] for _ in range(2)]
        c = np.full((self.m, self.n), np.nan, np.float32)
        self.slab = np.concatenate([each.ravel() for each in (self.a, self.b, c)]).view(np.uint8)

    @property
    def c(self) -> Array:
        """What is in the slab of C."""
        return self.slab.view(np.float32)[-self.m * self.n :].reshape(self.m, self.n)

    def works(self) -> list[TileWork]:
        """The tiles, each with the panel that the next one needs."""
        downs, acrosses = self.cuts(self.m), self.cuts(self.n)
        at = [(r, c) for i, r in enumerate(downs) for c in (acrosses if i % 2 == 0 else acrosses[::-1])]
        most, most_c = max(self.m, self.n) * self.k * ITEM, self.m * self.n * ITEM
        tiles = []
        start_b, start_c, row = self.m * self.k, self.m * self.k + self.k * self.n, self.k * ITEM
        for rows, columns in at:
            key_a, key_b = 1000 * self.key + rows.start, 1000 * self.key + 500 + columns.start
            a = Panel(-key_a, rows.start * row, len(rows), row, row, most)
            b = Panel(-key_b, (start_b + columns.start) * ITEM, self.k, len(columns) * ITEM, self.n * ITEM, most)
            if self.rng.random() < self.sliced:
                slices = self.rng.choice(self.slices)
                of_slices = 100 * (1 + self.slices.index(slices))
                a = replace(a, key=-key_a - of_slices, slices=tuple(ITEM * k for k in slices), along=True)
                b = replace(b, slices=tuple(slices))
            c_at = (start_c + rows.start * self.n + columns.start) * ITEM
            c = Panel(0, c_at, len(rows), len(columns) * ITEM, self.n * ITEM, most_c)
            tiles.append(TileTransfer(self.key, a, b, c, rooms=(most,) * 4, is_last=False))
        works = []
        for number, tile in enumerate(tiles):
            later = tiles[number + 1 :][: self.rng.randint(1, 3)]
            panels = {panel.key: panel for each in later for panel in (each.a, each.b)}
            ahead = tuple(panel for key, panel in panels.items() if key not in {tile.a.key, tile.b.key})
            count = self.rng.randint(0, 2)
            problem = Problem(tile.c.rows, tile.c.width // ITEM, self.k)
            launch = cast("Launch", _Launch(problem))
            shares = tuple(PanelShare(panel, self.rng.uniform(0.1, 1)) for panel in ahead[count:2])
            made = replace(tile, ahead=ahead[:count], later=shares, is_last=not later)
            works.append(TileWork(problem, launch, cast("Any", object()), made, self.sliced_launch(made, problem)))
        return works

    def sliced_launch(self, tile: TileTransfer, problem: Problem) -> SlicedLaunch | None:
        """Of most tiles whose panels come in slices: others are made by launches that need all of k."""
        if not tile.slices or self.rng.random() < 0.2:
            return None
        each = tuple(cast("Launch", _Launch(replace(problem, k=k))) for k in tile.slice_k(ITEM))
        program = cast("Any", object())
        return SlicedLaunch(program, each, cast("Launch", _Launch(problem, kernel="accumulate")), program)

    def cuts(self, size: int) -> list[range]:
        """Parts of a size."""
        count = self.rng.randint(1, 5)
        inner = sorted(self.rng.sample(range(1, size), count - 1))
        return [range(start, end) for start, end in zip([0, *inner], [*inner, size], strict=True)]


@dataclass(frozen=True)
class _Launch:
    problem: Problem
    verdict_at: int | None = None
    kernel: str = "naive"


def groups(rng: random.Random, works: list[TileWork]) -> list[list[TileWork]]:
    """The tiles of one call each."""
    found = []
    while works:
        count = rng.randint(1, 4)
        found.append(works[:count])
        works = works[count:]
    return found


def held(device: LateDevice, walk: Walk) -> WorkerContext:
    """A worker with a device and a product's memory."""
    return WorkerContext(cast("Any", device), memoryview(cast("Any", walk.slab)))


def nothing(_: int) -> None:
    """Nothing happens before a tile."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of panels may begin anywhere."""
    monkeypatch.setattr(panel_copies, "_ALIGNED", 1)


@pytest.fixture
def rng() -> random.Random:
    """Random numbers, whose seed is told where a test fails."""
    seed = secrets.randbits(32)
    print("seed", seed)
    return random.Random(seed)  # noqa: S311 - an order, no secret


@pytest.mark.parametrize("_round", range(40))
def test_c_is_right_in_whatever_order_the_device_does_what_it_may(rng: random.Random, _round: int) -> None:
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    assert isinstance(cast("Any", device), AsyncExecution)
    for group in groups(rng, walk.works()):
        made = pipeline.make(held(device, walk), cache, group, nothing)
        assert len(made) == len(group)
        assert not device.left, "nothing goes on between two calls"
    assert np.array_equal(walk.c, walk.a @ walk.b)


def going_on(times: int) -> Callable[[float], bool]:
    """What says so many times that a call is to go on, and then that it is not."""
    left = chain([True] * times, [False])
    return lambda _: next(left)


def test_a_call_makes_one_tile_at_least_and_no_other_where_it_is_not_to_go_on(rng: random.Random) -> None:
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    works, number = walk.works(), 0
    while number < len(works):
        count = rng.randint(1, 4)
        made = pipeline.make(held(device, walk), cache, works[number:], nothing, going_on(count - 1))
        assert len(made) == min(count, len(works) - number)
        number += len(made)
    assert np.array_equal(walk.c, walk.a @ walk.b)


def test_buffers_are_used_again_rather_than_given_back(rng: random.Random) -> None:
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    works = walk.works()
    pipeline.make(held(device, walk), cache, works, nothing)
    assert device.allocated <= 4 + 2 + 2, "four panels, two of C and two of slices' products"
    pipeline.forget([7])
    cache.forget(cache.keys)
    assert not pipeline.walks


@pytest.mark.parametrize("_round", range(20))
def test_tiles_do_with_little_memory(rng: random.Random, _round: int) -> None:
    """With that of two panels and one result, if need be, at whatever tile it turns out."""
    most, device = rng.randint(3, 6), LateDevice(rng)

    def fails(what: str) -> None:
        if what == "allocate" and device.allocated >= most:
            raise LaunchFailed("out of memory", fatal=False)

    device.fails = fails
    pipeline, cache, walk = TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    for group in groups(rng, walk.works()):
        pipeline.make(held(device, walk), cache, group, nothing)
    assert np.array_equal(walk.c, walk.a @ walk.b)


@pytest.mark.parametrize("_round", range(10))
def test_two_products_take_turns(rng: random.Random, _round: int) -> None:
    device, pipeline, cache = LateDevice(rng), TilePipeline(), DeviceBufferCache()
    walks = [Walk(rng, 7), Walk(rng, 8)]
    left = [groups(rng, walk.works()) for walk in walks]
    while any(left):
        number = rng.choice([number for number, each in enumerate(left) if each])
        pipeline.make(held(device, walks[number]), cache, left[number].pop(0), nothing)
    for walk in walks:
        assert np.array_equal(walk.c, walk.a @ walk.b)


@pytest.mark.parametrize("_round", range(40))
def test_products_use_the_buffers_of_those_before(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, _round: int
) -> None:
    """In turns that overlap, of two shapes, some of them cancelled, and while copies of panels go on."""
    monkeypatch.setattr(tile_pipeline, "_POOLED", -1)
    device, pipeline, cache = LateDevice(rng), TilePipeline(), DeviceBufferCache()
    walks = [Walk(rng, key, m=rng.choice([16, 24])) for key in range(1, 7)]
    left = {walk.key: groups(rng, walk.works()) for walk in walks}
    cancelled = {walk.key for walk in walks if rng.random() < 0.2}
    while left:
        walk = walks[rng.choice(list(left)[:2]) - 1]
        group = left[walk.key].pop(0)
        pipeline.take_over(cache, group[0].tile)
        pipeline.make(held(device, walk), cache, group, nothing)
        if not left[walk.key] or walk.key in cancelled:
            del left[walk.key]
            if rng.random() < 0.5:
                cache.forget([key for key in cache.keys if -key // 100 == walk.key])
                pipeline.forget([walk.key])
    for walk in walks:
        assert walk.key in cancelled or np.array_equal(walk.c, walk.a @ walk.b)


def test_a_buffer_is_not_written_before_the_mark_that_came_with_it(rng: random.Random) -> None:
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 2)
    works, out = walk.works(), np.zeros(64, np.uint8)
    c = device.allocate(works[0].tile.c.room)
    copy = Queued(lambda: np.copyto(out, c.handle[:64]), [])
    pipeline.free(1).results.append((c, copy))
    pipeline.panels(1)
    pipeline.take_over(cache, works[0].tile)
    assert pipeline.free(2).results, "it is handed on"
    pipeline.make(held(device, walk), cache, works, nothing)
    device.finish(copy)
    assert (out == 0xA5).all()


@pytest.mark.parametrize("_round", range(20))
def test_a_group_that_failed_is_made_again_with_the_tile_before_it(rng: random.Random, _round: int) -> None:
    """As the service has it: C of the tile before may be lost with those that failed."""
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    works, number, failures = walk.works(), 0, 0

    def fails(_: str) -> None:
        if rng.random() < 0.1:
            raise LaunchFailed("out of memory", fatal=False)

    while number < len(works):
        device.fails = fails if failures < 8 else lambda _: None
        count = rng.randint(1, 4)
        try:
            pipeline.make(held(device, walk), cache, works[number : number + count], nothing)
            number += count
        except LaunchFailed:
            failures += 1
            number = max(0, number - 1)
            assert not device.left, "the slab may be lent to others"
    assert np.array_equal(walk.c, walk.a @ walk.b)


def test_one_that_is_stopped_between_two_tiles_leaves_nothing_on_its_way(rng: random.Random) -> None:
    device, pipeline, cache, walk = LateDevice(rng), TilePipeline(), DeviceBufferCache(), Walk(rng, 7)
    works = [*walk.works(), *walk.works()]  # more than one

    def stops(number: int) -> None:
        if number == 1:
            raise CallStopped

    with pytest.raises(CallStopped):
        pipeline.make(held(device, walk), cache, works, stops)
    assert not device.left
