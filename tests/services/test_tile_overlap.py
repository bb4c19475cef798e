"""How long a device waits for its tiles' panels, in virtual time: the real walk and pipeline, and a model of a GPU."""

from __future__ import annotations

import mmap
import random
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.devices.backend import AsyncExecution, Buffer, Operands, WorkerContext
from app.devices.fleet import Fleet
from app.dtypes import Array
from app.services.matmul.buffers import OperandBuffers, Tile
from app.services.matmul.placement import TileQueue
from app.services.matmul.tile_walk import TileWalk
from app.services.matmul.tiling import DeviceMemory
from app.worker.serving.device_memory import DeviceBufferCache
from app.worker.serving.tile_pipeline import TilePipeline, TileWork
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200

LIMIT = 2**34
NO_RESERVE = 0x4000  # MAP_NORESERVE: the operands are never touched
TOGETHER = 32


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
    copied: Counter[int] = field(default_factory=Counter)

    def allocate(self, nbytes: int) -> Buffer:
        """Take memory, which is not given back here."""
        self.allocated += nbytes
        return Buffer(None, nbytes)

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
        took = launch.problem.flops / self.rate
        self.busy += took
        self.computed = max(self.now, self.computed, *after) + took
        return self.computed

    def finish(self, mark: float) -> None:
        """Wait."""
        self.now = max(self.now, mark)

    def settle(self) -> None:
        """Wait for everything."""
        self.finish(max(self.computed, self.to_device, self.to_host))


@dataclass(frozen=True)
class _Launch:
    problem: Problem
    verdict_at: int | None = None


def memory_of(problem: Problem, side: int) -> tuple[DeviceMemory, tuple[Tile, ...]]:
    """An H200 of which a product may take 16 GiB, and its tiles."""
    unit = SimpleNamespace(device=H200)
    memory = DeviceMemory(cast("Fleet", SimpleNamespace(unit=lambda _: unit, units=[unit])), LIMIT)
    found = memory.overlapped(problem, side)
    assert found is not None
    return memory, found


def walk_of(problem: Problem, side: int) -> TileWalk:
    """The walk of a product's tiles."""
    memory, tiles = memory_of(problem, side)
    keys = count(1)
    cache: Any = SimpleNamespace(new_key=lambda: next(keys))
    nowhere = np.empty(0)
    offsets = 0, problem.a_bytes, problem.a_bytes + problem.b_bytes
    buffers = OperandBuffers(problem, nowhere, nowhere, nowhere, offsets, (None, None, None), None)
    return TileWalk(buffers, tiles, cache, [cast("Any", SimpleNamespace(device=H200))], memory.product_bytes)


def walked(problem: Problem, rate: float, link: float = 55e9) -> VirtualDevice:
    """A device that has made all tiles of a product, whose operands' copies the tiles' sides are made for."""
    walk = walk_of(problem, int(1.25 * rate * problem.itemsize / 8e10))
    slab = mmap.mmap(-1, problem.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    device = VirtualDevice(rate, link, np.frombuffer(slab, np.uint8).ctypes.data)
    pipeline, cache = TilePipeline(), DeviceBufferCache()
    held, queue, made = WorkerContext(cast("Any", device), memoryview(slab)), TileQueue(len(walk), 1), 0
    while made < len(walk):
        dealt = queue.take(0, TOGETHER)
        works = []
        for each in dealt:
            buffers = walk.buffers(each.number, each.after, is_last=each.is_last)
            assert buffers.tile is not None
            launch = cast("Launch", _Launch(buffers.problem))
            works.append(TileWork(buffers.problem, launch, cast("Any", object()), buffers.tile))
        made += len(pipeline.make(held, cache, works, lambda _: None))
    assert made == len(walk)
    return device


def test_a_virtual_device_is_one_that_overlaps() -> None:
    assert isinstance(cast("Any", VirtualDevice(1.0, 1.0)), AsyncExecution)


@pytest.mark.parametrize(
    ("problem", "rate", "share"),
    [
        (Problem(32768, 32768, 32768), 55e12, 0.985),
        (Problem(32768, 32768, 32768, trans_a=True, trans_b=True), 55e12, 0.985),
        (Problem(32768, 32768, 32768, dtype="float64"), 48e12, 0.965),
        (Problem(65536, 65536, 65536, dtype="bfloat16"), 646e12, 0.92),
        (Problem(60000, 20000, 40000, dtype="float16"), 646e12, 0.78),
    ],
    ids=lambda value: value.key if isinstance(value, Problem) else "",
)
def test_copies_hide_behind_products(problem: Problem, rate: float, share: float) -> None:
    device = walked(problem, rate)
    assert device.busy / device.now > share
    assert device.allocated <= LIMIT


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
    m, n, k = (int(2 ** rng.uniform(14, 16)) for _ in range(3))
    problem = Problem(m, n, k, dtype=rng.choice(["float32", "float64", "bfloat16"]), trans_a=rng.random() < 0.5)
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
