"""Products that several devices make: their tiles, dealt to two workers of a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import Cancelled, ChildDied, DeviceCordoned, Invalid
from app.main import opened
from app.services.matmul import placement
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.device_queue import CancelToken
from app.services.matmul.placement import Dealt, TileQueue
from app.services.matmul.tiles import memory
from app.services.service import Service
from app.tuning.verify import tolerance
from benchmarks.serving.two_cpus import two_cpus
from kernels.problem import Problem
from tests.services.test_async_products import keeping
from tests.support.services.service_settings import settings

LARGE = Problem(1100, 900, 300)
BOTH = {"opencl:0", "opencl:1"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[Service]:
    """A service of two devices."""
    folder = tmp_path_factory.mktemp("two")
    with opened(settings(folder), "the tests", fleets=partial(two_cpus, cache_dir=binaries)) as service:
        yield service


@contextmanager
def placed(service: Service, problem: Problem, **how: Any) -> Iterator[OperandBuffers]:
    """A product's buffers, its operands there; at the end C has to be right."""
    with service.matmul.reserve(problem, **how) as buffers:
        a, b = tolerance.operands(problem, seed=problem.m)
        buffers.a[...], buffers.b[...] = a.reshape(buffers.a.shape), b.reshape(buffers.b.shape)
        buffers.c[...] = np.nan
        yield buffers
        left, right = tolerance.applied(problem, buffers.a, buffers.b)
        reference = left.astype(np.float64) @ right.astype(np.float64)
        assert tolerance.judge(problem, buffers.a, buffers.b, reference, buffers.c) is None


def made(service: Service, problem: Problem, token: CancelToken | None = None, **how: Any) -> Product:
    with placed(service, problem, **how) as buffers:
        return service.matmul.multiply(buffers, token=token)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "problem",
    [
        LARGE,
        pytest.param(replace(LARGE, trans_a=True, trans_b=True), marks=pytest.mark.slow),
        pytest.param(replace(LARGE, batch=2), marks=pytest.mark.slow),
        pytest.param(Problem(64, 64, 64, batch=500), marks=pytest.mark.slow),
        Problem(12_000, 20, 100),
    ],
)
def test_all_devices_make_a_right_product(two: Service, problem: Problem) -> None:
    found = made(two, problem, placement="all")
    assert set(found.devices) == BOTH
    assert sum(found.devices.values()) == found.tiles > 2


@pytest.mark.slow
def test_one_device_makes_it_where_that_is_asked_for_or_it_is_small(two: Service) -> None:
    for problem, where in ((LARGE, "one"), (LARGE, "auto"), (Problem(100, 100, 100), "all")):
        found = made(two, problem, placement=where)
        assert (found.tiles, found.devices) == (1, {})


def test_auto_takes_all_where_one_would_take_long(two: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_PAYS", 1e-9)
    monkeypatch.setattr(placement, "_FEW", 1)
    assert set(made(two, LARGE).devices) == BOTH
    assert not made(two, LARGE, device_id="opencl:1").devices


def test_one_device_makes_tiles_of_a_long_product_to_hide_its_copies(
    two: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_PAYS", 1e-9)
    monkeypatch.setattr(placement, "_FEW", 1)
    monkeypatch.setattr(memory, "_WAVES", {"opencl": 256})
    found = made(two, LARGE, device_id="opencl:1")
    assert found.tiles > 1
    assert not found.devices
    plan = partial(two.matmul.planner.plan, LARGE, "one", None)
    assert plan(resident=False, arriving=False).tiles is not None
    assert plan(resident=False, arriving=False).fits
    assert plan(resident=False, arriving=True).tiles is None, "what arrives is copied as it comes"
    assert plan(resident=True, arriving=False).tiles is None
    monkeypatch.setattr(memory, "_WAVES", {})
    assert plan(resident=False, arriving=False).tiles is None, "copies that go on beside no launch"


def test_all_and_a_device_disagree(two: Service) -> None:
    with pytest.raises(Invalid), two.matmul.reserve(LARGE, device_id="opencl:1", placement="all"):
        pass


@pytest.mark.rotating
def test_the_tile_of_a_killed_worker_is_made_all_the_same(two: Service) -> None:
    seen, lock = list[int](), threading.Lock()

    def begun() -> None:
        with lock:
            seen.append(1)
            if len(seen) == 5:
                two.fleet.unit("opencl:1").products.kill()

    found = made(two, LARGE, CancelToken(begun), placement="all")
    assert found.tiles < len(seen), "some were begun twice"
    assert "opencl:0" in {found.device.id, *found.devices}


def test_others_go_on_without_a_device_that_is_cordoned(two: Service) -> None:
    seen, lock, unit = list[int](), threading.Lock(), two.fleet.unit("opencl:0")

    def begun() -> None:
        with lock:
            seen.append(1)
            if len(seen) == 3:
                unit.products.refuse(DeviceCordoned("opencl:0 is cordoned"))

    try:
        found = made(two, LARGE, CancelToken(begun), placement="all")
    finally:
        unit.products.refuse(None)
    assert found.device.id == "opencl:1"
    assert found.devices.get("opencl:0", 0) < found.tiles / 2


def test_without_any_device_left_the_product_fails(two: Service) -> None:
    def begun() -> None:
        for unit in two.fleet.units:
            unit.products.refuse(DeviceCordoned(f"{unit.device.id} is cordoned"))

    try:
        with two.matmul.reserve(LARGE, placement="all") as buffers:
            buffers.a[...], buffers.b[...] = 1, 1
            with pytest.raises(DeviceCordoned):
                two.matmul.multiply(buffers, token=CancelToken(begun))
    finally:
        for unit in two.fleet.units:
            unit.products.refuse(None)


def test_a_cancelled_one_ends_on_every_device_between_tiles(two: Service) -> None:
    seen, lock = list[int](), threading.Lock()

    def begun() -> None:
        with lock:
            seen.append(1)
        if len(seen) == 4:
            token.cancel()

    token = CancelToken(begun)
    with two.matmul.reserve(LARGE, placement="all") as buffers:
        buffers.a[...], buffers.b[...] = 1, 1
        with pytest.raises(Cancelled):
            two.matmul.multiply(buffers, token=token)
    assert 4 <= len(seen) <= 5
    assert set(made(two, LARGE, placement="all").devices) == BOTH


def test_others_products_take_their_turn_between_tiles(two: Service) -> None:
    deep, seen = replace(LARGE, k=4 * LARGE.k), list[int]()
    between = threading.Event()

    def begun() -> None:
        seen.append(1)
        between.set()

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(made, two, deep, CancelToken(begun), placement="all")
        assert between.wait(60)
        made(two, Problem(50, 40, 30), device_id="opencl:0")
        assert not long.done(), "it waited for a tile, not for the product"
        tiles = long.result().tiles
    assert tiles == len(seen)


@pytest.mark.rotating
def test_a_job_goes_on_where_a_device_is_lost_and_tells_what_each_made(two: Service, tmp_path: Path) -> None:
    with keeping(two, tmp_path, most=2**24) as results, two.matmul.reserve(LARGE, placement="all") as buffers:
        buffers.a[...], buffers.b[...] = 1, 2
        job = results.create(buffers)
        killed = threading.Event()

        def kill() -> None:
            if two.jobs.get(job.id).done > 2 and not killed.is_set():
                killed.set()
                two.fleet.unit("opencl:1").products.kill()

        unsubscribe = two.jobs.subscribe(job.id, kill)
        told = results.make(job.id, buffers, None, None)
        unsubscribe()
        assert told is not None
        assert two.jobs.get(job.id).state == "succeeded"
        assert killed.is_set()
        assert told["tiles"] == sum((told["devices"] or {told["device"]: told["tiles"]}).values())
        assert told["certificate"]["method"] == "freivalds"
        assert (buffers.c == 2 * LARGE.k).all()


def test_a_queue_deals_neighbours_and_then_what_others_have_left() -> None:
    queue = TileQueue(8, 2)
    first = queue.take(0)
    assert first is not None
    assert (first.number, first.after, first.is_last) == (0, (1, 2, 3), False)
    taken = [each.number for _ in range(6) if (each := queue.take(1))]
    assert taken == [4, 5, 6, 7, 3, 2], "what is sure to follow another is not taken"
    queue.leave(0, ChildDied("lost"))
    queue.give_back(0, [0])
    again = [each.number for _ in range(2) if (each := queue.take(1))]
    assert sorted(again) == [0, 1]
    queue.made(8)
    assert queue.take(1) is None
    with pytest.raises(ChildDied):
        queue.leave(1, ChildDied("lost"))


def of_a_call(queue: TileQueue, most: int) -> list[Dealt]:
    """A tile and those that follow it."""
    first = queue.take(0)
    assert first is not None
    return [first, *queue.take_more(0, most - 1)]


def test_tiles_that_follow_are_sure_to_and_come_again_where_they_were_not_made() -> None:
    queue = TileQueue(6, 1)
    dealt = of_a_call(queue, 4)
    assert [each.number for each in dealt] == [0, 1, 2, 3]
    assert not any(each.is_last for each in dealt)
    queue.put_back(0, dealt[2:])
    again = of_a_call(queue, 9)
    assert queue.take_more(0, 1) == []
    assert [each.number for each in again] == [2, 3, 4, 5]
    assert [each.is_last for each in again] == [False, False, False, True]
