"""How long a device waits for its tiles' panels, in virtual time: the real walk and pipeline, and a model of a GPU."""

from __future__ import annotations

import mmap
import random
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from weakref import finalize

import numpy as np
import pytest

from app.devices.backend import AsyncExecution, Buffer, Operands, WorkerContext
from app.devices.fleet import Fleet
from app.dtypes import Array
from app.services.matmul.buffers import OperandBuffers, Tile
from app.services.matmul.placement import TileQueue
from app.services.matmul.tiles import memory
from app.services.matmul.tiles.forecast import Walk, ended
from app.services.matmul.tiles.memory import DeviceMemory, soonest
from app.services.matmul.tiles.walk import TileWalk
from app.worker.serving.device_memory import DeviceBufferCache
from app.worker.serving.sliced_launch import SlicedLaunch
from app.worker.serving.tile_pipeline import TilePipeline, TileWork
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200

LIMIT = 2**34
NO_RESERVE = 0x4000  # MAP_NORESERVE: the operands are never touched
TOGETHER = 32
BANDWIDTH = 4e12  # bytes a second of device memory


@dataclass
class VirtualDevice:
    """An AsyncExecution that computes and copies nothing, and knows when it would have: seconds since its first call.

    It launches one tile after the other at a `rate`, and copies at `link` bytes a second each way.
    """

    rate: float
    link: float
    slab: int = 0
    now: float = 0.0
    computed: float = 0.0
    to_device: float = 0.0
    to_host: float = 0.0
    busy: float = 0.0
    allocated: int = 0
    in_use: int = 0
    most: int = 0
    copied: Counter[int] = field(default_factory=Counter)

    def allocate(self, nbytes: int) -> Buffer:
        """Take memory, which is given back once nobody has the buffer."""
        self.allocated += nbytes
        self.in_use += nbytes
        self.most = max(self.most, self.in_use)
        handle = _Memory()
        finalize(handle, self._free, nbytes)
        return Buffer(handle, nbytes)

    def _free(self, nbytes: int) -> None:
        self.in_use -= nbytes

    def write_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> float:
        """Copy after the copies before."""
        assert (buffer.nbytes, wait) == (rows.nbytes, False)
        self.copied[rows.ctypes.data - self.slab] += 1
        self.to_device = max(self.now, self.to_device) + rows.nbytes / self.link
        return self.to_device

    def read_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> float:
        """Copy back."""
        assert buffer.nbytes >= rows.nbytes
        self.to_host = max(self.now, self.to_host) + rows.nbytes / self.link
        if wait:
            self.finish(self.to_host)
        return self.to_host

    def start(self, program: Any, launch: Launch, operands: Operands, after: Sequence[float]) -> float:
        """Launch after the marks."""
        del program, operands
        is_adding = launch.kernel == "accumulate"
        took = 3 * launch.problem.c_bytes / BANDWIDTH if is_adding else launch.problem.flops / self.rate
        self.busy += 0 if is_adding else took
        self.computed = max(self.now, self.computed, *after) + took
        return self.computed

    def finish(self, mark: float) -> None:
        """Wait."""
        self.now = max(self.now, mark)

    def settle(self) -> None:
        """Wait for everything."""
        self.finish(max(self.computed, self.to_device, self.to_host))


class _Memory:
    """What a buffer keeps alive."""


@dataclass(frozen=True)
class _Launch:
    problem: Problem
    verdict_at: int | None = None
    kernel: str = "naive"


def memory_of(problem: Problem, side: int) -> tuple[DeviceMemory, tuple[Tile, ...]]:
    """An H200 of which a product may take 16 GiB, and its tiles."""
    unit = SimpleNamespace(device=H200)
    memory = DeviceMemory(cast("Fleet", SimpleNamespace(unit=lambda _: unit, units=[unit])), LIMIT)
    found = memory.overlapped(problem, side)
    assert found is not None
    return memory, found


def walk_of(problem: Problem, rate: float, cache: Any) -> TileWalk:
    """The walk of a product's tiles, with keys of a cache's; the operands' copies are what their sides are made for."""
    memory, tiles = memory_of(problem, int(1.25 * rate * problem.itemsize / 8e10))
    nowhere = np.empty(0)
    offsets = 0, problem.a_bytes, problem.a_bytes + problem.b_bytes
    buffers = OperandBuffers(problem, nowhere, nowhere, nowhere, offsets, (None, None, None), None)
    return TileWalk(buffers, tiles, cache, [cast("Any", SimpleNamespace(device=H200))], memory.product_bytes)


def walked(problem: Problem, rate: float, link: float = 55e9) -> VirtualDevice:
    """A device that has made all tiles of a product."""
    return Walks(VirtualDevice(rate, link)).walked(problem)


@dataclass
class Walks:
    """A worker that makes one product after the other."""

    device: VirtualDevice
    pipeline: TilePipeline = field(default_factory=TilePipeline)
    cache: DeviceBufferCache = field(default_factory=DeviceBufferCache)
    keys: Iterator[int] = field(default_factory=lambda: count(1))

    def new_key(self) -> int:
        """A key that nothing has."""
        return next(self.keys)

    def walked(self, problem: Problem) -> VirtualDevice:
        """The device, once it has made all tiles of one more."""
        walk = walk_of(problem, self.device.rate, self)
        slab = mmap.mmap(-1, problem.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        self.device.slab = np.frombuffer(slab, np.uint8).ctypes.data
        held, queue, made = WorkerContext(cast("Any", self.device), memoryview(slab)), TileQueue(len(walk), 1), 0
        while made < len(walk):
            first, works = queue.take(0), list[TileWork]()
            assert first is not None
            for each in (first, *queue.take_more(0, TOGETHER - 1)):
                buffers = walk.buffers(each.number, each.after, is_last=each.is_last)
                assert buffers.tile is not None
                launch = cast("Launch", _Launch(buffers.problem))
                work = TileWork(buffers.problem, launch, cast("Any", object()), buffers.tile)
                works.append(replace(work, sliced=sliced_launch(work)))
            self.pipeline.take_over(self.cache, works[0].tile)
            made += len(self.pipeline.make(held, self.cache, works, lambda _: None))
        assert made == len(walk)
        return self.device


def sliced_launch(work: TileWork) -> SlicedLaunch | None:
    """Of a tile whose panels come in slices."""
    if not work.tile.slices:
        return None
    problem, program = work.problem, cast("Any", object())
    each = tuple(cast("Launch", _Launch(replace(problem, k=k))) for k in work.tile.slice_k(problem.itemsize))
    return SlicedLaunch(program, each, cast("Launch", _Launch(problem, kernel="accumulate")), program)


def drawn_problem(rng: random.Random) -> Problem:
    """A problem that takes some tiles."""
    m, n, k = (int(2 ** rng.uniform(14, 16)) for _ in range(3))
    return Problem(m, n, k, dtype=rng.choice(["float32", "float64", "bfloat16"]), trans_a=rng.random() < 0.5)


def test_a_virtual_device_is_one_that_overlaps() -> None:
    assert isinstance(cast("Any", VirtualDevice(1.0, 1.0)), AsyncExecution)


@pytest.mark.parametrize(
    ("problem", "rate", "share"),
    [
        (Problem(32768, 32768, 32768), 55e12, 0.995),
        (Problem(32768, 32768, 32768, trans_a=True, trans_b=True), 55e12, 0.995),
        (Problem(32768, 32768, 32768, dtype="float64"), 57.8e12, 0.985),
        (Problem(32768, 32768, 32768, dtype="float64", trans_a=True), 48e12, 0.985),
        (Problem(32768, 32768, 32768, dtype="float64", trans_b=True), 48e12, 0.98),
        (Problem(65536, 65536, 65536, dtype="bfloat16"), 646e12, 0.92),
        (Problem(60000, 20000, 40000, dtype="float16"), 646e12, 0.82),
    ],
    ids=lambda value: value.key if isinstance(value, Problem) else "",
)
def test_copies_hide_behind_products(problem: Problem, rate: float, share: float) -> None:
    device = walked(problem, rate)
    assert device.busy / device.now > share
    assert device.allocated <= LIMIT


@pytest.mark.parametrize(
    ("problem", "rate", "share"),
    [
        (Problem(49152, 49152, 49152, dtype="float64", trans_b=True), 57.8e12, 0.97),
        (Problem(73342, 25506, 53984, dtype="float64"), 57.8e12, 0.97),
        (Problem(36283, 17626, 83008, dtype="float64", trans_a=True, trans_b=True), 57.8e12, 0.85),
    ],
    ids=lambda value: value.key if isinstance(value, Problem) else "",
)
def test_where_k_is_deep_tiles_are_wide_enough_to_hide_copies(problem: Problem, rate: float, share: float) -> None:
    device = walked(problem, rate)
    assert device.busy / device.now > share
    assert device.allocated <= LIMIT


@pytest.mark.parametrize("_round", range(5))
def test_a_forecast_is_what_a_device_in_virtual_time_takes(monkeypatch: pytest.MonkeyPatch, _round: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)  # noqa: S311 - sizes, no secret
    problem, rate, link = drawn_problem(rng), rng.uniform(10e12, 60e12), rng.uniform(30e9, 60e9)
    chosen = list[Walk]()

    def noted(*given: Any) -> Sequence[Walk]:
        chosen.extend(soonest(*given))
        return chosen[-1:]

    monkeypatch.setattr(memory, "soonest", noted)
    device = walked(problem, rate, link)
    rows = ended(chosen[-1], rate * problem.itemsize / (2 * link), problem.k)
    assert rows * problem.k * problem.itemsize / link == pytest.approx(device.now, rel=0.1)


def test_a_slow_link_is_kept_busy() -> None:
    """Where copies take longer than products, the device has waited for little else."""
    device = walked(Problem(65536, 65536, 65536, dtype="bfloat16"), 646e12, link=15e9)
    assert device.busy < device.to_device
    assert device.to_device > 0.9 * device.now


@pytest.mark.parametrize("_round", range(5))
def test_a_walk_keeps_to_its_memory(_round: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)  # noqa: S311 - sizes, no secret
    problem = drawn_problem(rng)
    device = walked(problem, rng.uniform(10e12, 600e12), rng.uniform(10e9, 60e9))
    assert device.allocated <= LIMIT
    assert device.busy == pytest.approx(problem.flops / device.rate)


@pytest.mark.parametrize(("dtype", "rate"), [("float32", 55e12), ("float64", 48e12), ("bfloat16", 646e12)])
def test_the_panels_that_a_walk_goes_across_are_copied_once(dtype: str, rate: float) -> None:
    problem = Problem(32768, 32768, 32768, dtype=dtype)
    device = walked(problem, rate)
    across = {
        at: times for at, times in device.copied.items() if problem.a_bytes <= at < problem.a_bytes + problem.b_bytes
    }
    assert set(across.values()) == {1}


@pytest.mark.parametrize("problem", [Problem(32768, 32768, 32768), Problem(60000, 20000, 40000, dtype="float16")])
def test_an_equal_product_allocates_nothing(problem: Problem) -> None:
    walks = Walks(VirtualDevice(1e14, 55e9))
    first = walks.walked(problem).allocated
    assert walks.walked(problem).allocated == first
    assert walks.device.most == walks.device.in_use == first
    walks.pipeline.spare()
    walks.cache.spare(())
    assert walks.device.in_use == 0


def test_copies_of_matrices_give_way_to_buffers_that_are_used_again() -> None:
    walks = Walks(VirtualDevice(1e14, 55e9))
    first = walks.walked(Problem(32768, 32768, 32768)).in_use
    walks.cache.put(walks.new_key(), walks.device.allocate(2**20))
    assert walks.walked(Problem(32768, 32768, 32768)).in_use == first


@pytest.mark.drawn(3)
@pytest.mark.parametrize("_round", range(10))
def test_no_product_takes_more_memory_for_what_was_before_it(_round: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)  # noqa: S311 - sizes, no secret
    rate, link = rng.uniform(10e12, 600e12), rng.uniform(10e9, 60e9)
    problems = [drawn_problem(rng) for _ in range(3)]
    walks = Walks(VirtualDevice(rate, link))
    for problem in problems:
        walks.device.most = 0
        alone = walked(problem, rate, link)
        assert walks.walked(problem).most <= alone.most
        assert walks.device.in_use <= alone.most
        assert walks.device.most <= memory_of(problem, 1)[0].product_bytes
