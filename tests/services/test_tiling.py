"""Products that exceed a device: cut into tiles that fit, walked in a serpentine, made as those that fit are."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.devices.fleet import Fleet
from app.dtypes import Array, numpy_dtype
from app.errors import Cancelled, LaunchFailed, TooLarge
from app.main import opened
from app.services.matmul import device_cache, placement
from app.services.matmul.buffers import Product, Tile
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.device_queue import CancelToken
from app.services.matmul.tiles.memory import DeviceMemory
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.tuning.verify import tolerance
from app.worker.serving.device_memory import DeviceBufferCache
from app.worker.serving.tile_pipeline import TilePipeline
from kernels.problem import Problem
from tests.services.test_async_products import keeping
from tests.support.kernels.devices import H200
from tests.support.services.service_settings import settings
from tests.support.waiting import until

LIMIT = 2**20
LARGE = Problem(700, 600, 300)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that may take a mebibyte of its device for one product."""
    given = settings(tmp_path_factory.mktemp("small")).model_copy(update={"device_bytes": LIMIT})
    with opened(given, "the tests") as service:
        yield service


def tiles_of(service: Service, problem: Problem) -> tuple[Tile, ...]:
    found = service.matmul.memory.tiles(problem)
    assert found is not None
    return found


def made(service: Service, problem: Problem, **how: Any) -> Product:
    """One product, which has to be right."""
    with service.matmul.reserve(problem) as placed:
        a, b = tolerance.operands(problem, seed=problem.m)
        placed.a[...], placed.b[...] = a.reshape(placed.a.shape), b.reshape(placed.b.shape)
        placed.c[...] = np.nan
        result = service.matmul.multiply(placed, **how)
        left, right = tolerance.applied(problem, placed.a, placed.b)
        reference = left.astype(np.float64) @ right.astype(np.float64)
        assert (
            tolerance.judge(replace(problem, precision=result.precision), placed.a, placed.b, reference, placed.c)
            is None
        )
    return result


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("problem", [LARGE, replace(LARGE, batch=3), Problem(5000, 40, 90), Problem(33, 9000, 70)])
def test_tiles_cover_c_once_fit_the_memory_and_share_a_panel_with_the_next(small: Service, problem: Problem) -> None:
    found = tiles_of(small, problem)
    covered = np.zeros((problem.batch, problem.m, problem.n), np.int64)
    for each in found:
        part = each.problem(problem)
        assert part.a_bytes + part.b_bytes + 2 * max(part.a_bytes, part.b_bytes) + 2 * part.c_bytes <= LIMIT
        at = slice(each.first, each.first + each.count)
        covered[at, each.row : each.row + each.rows, each.column : each.column + each.columns] += 1
    assert (covered == 1).all()
    for one, other in pairwise(found):
        if one.first == other.first:
            assert one.row == other.row or one.column == other.column


def of_gpus(limit: int | None) -> DeviceMemory:
    """What fits two H200s, of which a product may take so many bytes."""
    unit = SimpleNamespace(device=H200)
    return DeviceMemory(cast("Fleet", SimpleNamespace(unit=lambda _: unit, units=[unit, unit])), limit)


@pytest.mark.parametrize("_round", range(40))
def test_tiles_that_overlap_copies_cover_c_once_and_fit(_round: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)  # noqa: S311 - sizes, no secret
    m, n, k = (int(2 ** rng.uniform(12, 16)) for _ in range(3))
    problem = Problem(m, n, k, dtype=rng.choice(["float32", "float64", "bfloat16"]), trans_a=rng.random() < 0.5)
    limit = 2 ** rng.randint(33, 36)
    found = of_gpus(limit).overlapped(problem, rng.randint(500, 40_000), rng.randint(1, 2)) or ()
    assert not found or (times_covered(found, m, n) == 1).all()
    parts = [one.problem(problem) for one in found]
    panels = 2 * (max(each.a_bytes for each in parts) + max(each.b_bytes for each in parts)) if parts else 0
    results = 4 if any(one.slices for one in found) else 2
    assert panels + results * max((each.c_bytes for each in parts), default=0) <= limit
    assert all(sum(one.slices) == k and all(each % 256 == 0 for each in one.slices[:-1]) for one in found if one.slices)


def times_covered(tiles: Sequence[Tile], m: int, n: int) -> Array:
    """How often tiles have the parts that their edges cut C into."""
    rows = sorted({0, m, *(edge for one in tiles for edge in (one.row, one.row + one.rows))})
    columns = sorted({0, n, *(edge for one in tiles for edge in (one.column, one.column + one.columns))})
    times = np.zeros((len(rows) - 1, len(columns) - 1), np.int64)
    for one in tiles:
        down = slice(rows.index(one.row), rows.index(one.row + one.rows))
        times[down, columns.index(one.column) : columns.index(one.column + one.columns)] += 1
    return times


def test_each_device_begins_with_a_small_tile_and_ends_with_one() -> None:
    found = of_gpus(2**34).overlapped(Problem(32768, 32768, 32768), 3500, 2) or ()
    areas = [one.rows * one.columns for one in found]
    half = len(areas) // 2
    assert areas[0] == areas[half] == min(areas)
    assert [one.column for one in found[:half]] < [one.column for one in found[half:]]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_without_copies_beside_launches_one_device_has_no_more_tiles_than_it_needs(small: Service, batch: int) -> None:
    memory = small.matmul.memory
    for problem in (Problem(64, 64, 64, batch=batch), replace(LARGE, batch=batch)):
        assert memory.overlapped(problem, 3000) == memory.tiles(problem)


def test_what_fits_is_one_launch_and_small_products_of_a_batch_share_a_tile(small: Service) -> None:
    assert small.matmul.memory.tiles(Problem(100, 100, 100)) is None
    found = tiles_of(small, Problem(64, 64, 64, batch=100))
    assert 1 < len(found) < 10
    assert sum(each.count for each in found) == 100


def test_a_sum_so_deep_that_no_two_panels_fit_is_refused(small: Service) -> None:
    with pytest.raises(TooLarge) as refused, small.matmul.reserve(Problem(100, 100, 20_000)):
        pass
    assert int(str(refused.value.facts["size"])) > int(str(refused.value.facts["limit"]))


@pytest.mark.slow
@pytest.mark.parametrize(("trans_a", "trans_b"), list(product([False, True], repeat=2)))
def test_they_are_right_however_they_are_stored(small: Service, trans_a: bool, trans_b: bool) -> None:
    result = made(small, replace(LARGE, trans_a=trans_a, trans_b=trans_b))
    assert result.tiles == len(tiles_of(small, LARGE)) > 4
    assert result.certificate is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [replace(LARGE, batch=2), Problem(64, 64, 64, batch=100), replace(LARGE, dtype="bfloat16")]
)
def test_batches_and_short_elements_are_right_and_certified(small: Service, problem: Problem) -> None:
    found = made(small, problem, verify="freivalds").certificate
    assert found is not None
    assert found.residual <= found.bound


@pytest.mark.slow
def test_each_element_is_summed_as_in_a_product_that_fits(small: Service, service: Service) -> None:
    """The naive kernel sums up in the same order whatever the tile: bit for bit the same."""
    kept = []
    for each in (small, service):
        with each.matmul.reserve(LARGE) as placed:
            rng = np.random.default_rng(1)
            for operand in (placed.a, placed.b):
                operand[...] = rng.standard_normal(operand.shape).astype(numpy_dtype(LARGE.dtype))
            each.matmul.multiply(placed, kernel="naive")
            kept.append(placed.c.copy())
    assert np.array_equal(kept[0], kept[1])


@pytest.mark.rotating
def test_panels_are_copied_once_a_row_and_dropped_at_the_end(small: Service) -> None:
    cache = small.matmul.device_cache
    made(small, LARGE)
    made(small, Problem(8, 8, 8))  # evictions go with the next product
    assert cache.bytes() == {"opencl:0": 0}
    assert not small.fleet.unit().products.call(held_panels)


def held_panels(held: Any, link: Any) -> bool:
    """Whether the worker has something left of tiles."""
    del link
    return bool(held.state(TilePipeline).walks) or bool(held.state(DeviceBufferCache).keys)


def counted_allocations(held: Any, link: Any) -> int:
    """How often the worker has allocated device memory since this was first asked."""
    del link
    backend = held.backend
    if "allocate" not in vars(backend):
        allocate, backend.allocations = backend.allocate, 0

        def counted(nbytes: int) -> Any:
            backend.allocations += 1
            return allocate(nbytes)

        backend.allocate = counted
    return int(backend.allocations)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has devices keep what a product left until another comes."""
    monkeypatch.setattr(device_cache, "_KEPT", 60.0)


def test_an_equal_product_has_the_memory_of_the_one_before(small: Service) -> None:
    worker = small.fleet.unit().products
    made(small, LARGE)
    before = worker.call(counted_allocations)
    made(small, LARGE)
    assert worker.call(counted_allocations) == before
    assert worker.call(held_panels)
    made(small, Problem(8, 8, 8))
    assert not worker.call(held_panels)


def test_operands_that_come_in_chunks_have_the_memory_of_the_product_before(small: Service) -> None:
    made(small, LARGE)
    ChunkedTransfer(small.matmul.device_cache, small.fleet.unit(), {"a": (2**26, 0)}, (0, 0)).close()
    await_dropped(small)


def test_an_idle_device_keeps_nothing_of_a_product(small: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_cache, "_KEPT", 0.01)
    made(small, LARGE)
    await_dropped(small)


def await_dropped(service: Service) -> None:
    """Wait until the worker has nothing left of tiles."""
    until(lambda: not service.fleet.unit().products.call(held_panels), 30, each=0.01)


def test_a_cancelled_one_ends_at_the_next_tile(small: Service) -> None:
    seen = []

    def begun() -> None:
        seen.append(1)
        if len(seen) == 2:
            token.cancel()

    token = CancelToken(begun)
    with small.matmul.reserve(LARGE) as placed:
        placed.a[...], placed.b[...] = 1, 1
        with pytest.raises(Cancelled):
            small.matmul.multiply(placed, token=token)
    assert len(seen) == 2
    made(small, LARGE)


def test_two_that_take_turns_on_a_device_lose_no_tile(small: Service) -> None:
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(made, small, replace(LARGE, m=LARGE.m + more)) for more in (0, 1)]:
            assert each.result().tiles > 1


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a worker asked for several tiles at once, as one whose copies go on beside launches is."""
    monkeypatch.setattr(placement, "_TOGETHER", {"opencl": 9})


@pytest.mark.rotating
@pytest.mark.usefixtures("together")
def test_tiles_that_are_asked_for_together_are_right_and_each_is_counted(small: Service) -> None:
    calls = []
    for problem in (LARGE, replace(LARGE, batch=3), replace(LARGE, trans_b=True)):
        assert made(small, problem, token=CancelToken(lambda: calls.append(1))).tiles == len(tiles_of(small, problem))
    assert len(calls) < len(tiles_of(small, LARGE)), "few calls make them"
    assert not small.fleet.unit().products.call(held_panels) or made(small, Problem(8, 8, 8)).tiles == 1


@pytest.mark.slow
@pytest.mark.usefixtures("together")
def test_after_several_that_failed_together_each_is_made_alone(small: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose fault it was nobody knows then: nothing is held against the first one's kernel."""
    multiply, failed = DeviceCacheDirectory.multiply, []

    def failing(self: Any, unit: Any, request: Any, *rest: Any) -> Any:
        if request.has_more:
            failed.append(rest[-1]())
            raise LaunchFailed("it is broken", fatal=False)
        return multiply(self, unit, request, *rest)

    before = made(small, LARGE)
    monkeypatch.setattr(DeviceCacheDirectory, "multiply", failing)
    result = made(small, LARGE)
    assert any(failed), "others had been given"
    assert result.tiles == len(tiles_of(small, LARGE))
    assert (result.kernel, result.config) == (before.kernel, before.config)


@pytest.mark.slow
def test_a_worker_that_is_replaced_between_tiles_loses_none(small: Service) -> None:
    seen = []

    def begun() -> None:
        seen.append(1)
        if len(seen) == 4:
            small.fleet.unit().products.kill()

    made(small, LARGE, token=CancelToken(begun))
    assert len(seen) > len(tiles_of(small, LARGE))


def test_a_job_always_has_a_certificate_and_resident_operands_serve(small: Service, tmp_path: Path) -> None:
    with keeping(small, tmp_path, most=2**24) as results, small.matmul.reserve(LARGE) as placed:
        placed.a[...], placed.b[...] = 1, 2
        job, seen = results.create(placed), set()
        unsubscribe = small.jobs.subscribe(job.id, lambda: seen.add(small.jobs.get(job.id).done))
        told = results.make(job.id, placed, None, None)
        assert told is not None
        unsubscribe()
        ended = small.jobs.get(job.id)
        assert told["certificate"]["method"] == "freivalds"
        assert ended.done == ended.total == told["tiles"] == len(tiles_of(small, LARGE))
        assert any(0 < done < ended.total for done in seen), "progress is told by tiles"
    one = np.full((700, 300), 3, np.float32)
    with small.matrices.reserve(ANONYMOUS, "tall", "float32", one.shape) as pending:
        small.matrices.view(pending.resident)[:] = one.tobytes()
        pending.keep()
    with small.matrices.pin(ANONYMOUS, "tall") as kept, small.matmul.reserve(LARGE, kept) as placed:
        placed.b[...] = 1
        small.matmul.multiply(placed)
        assert (placed.c == 900).all()
