"""Products made as jobs: kept for a while, cancelled while they wait, lost with a restart, and said to be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from app.devices.lease import Priority
from app.devices.process import Worker
from app.dtypes import Array
from app.errors import Cancelled, NoResult, TooLarge
from app.main import opened
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.result_store import ResultStore
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.store.records import JobRecord
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.waiting import until


@contextmanager
def keeping(service: Service, folder: Path, ttl: float = 60, most: int = 2**20) -> Iterator[AsyncProducts]:
    results = AsyncProducts(service.database, service.jobs, service.matmul, folder, ttl, most)
    results.start()
    try:
        yield results
    finally:
        results.stop()


def made(service: Service, results: AsyncProducts, kernel: str | None = None) -> JobRecord:
    with service.matmul.reserve(Problem(3, 4, 5)) as placed:
        placed.a[...], placed.b[...] = 1, 2
        job = results.create(placed)
        results.make(job.id, placed, None, kernel)
    return service.jobs.get(job.id)


def read(results: AsyncProducts, job: JobRecord) -> Array:
    assert job.result is not None
    with results.open(job) as file:
        return np.frombuffer(file.read(), job.result["dtype"]).reshape(job.result["shape"])


@contextmanager
def held(service: Service) -> Iterator[None]:
    """The device is busy with somebody else's product."""
    entered, leave = threading.Event(), threading.Event()
    child = service.fleet.unit().products
    assert isinstance(child, Worker)

    def hold() -> None:
        with child.calls.held(Priority.PRODUCT):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(30)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.slow
def test_a_result_is_kept_and_then_its_time_is_over(service: Service, tmp_path: Path) -> None:
    for ttl, kept in ((3600, True), (0, False)):
        with keeping(service, tmp_path / str(ttl), ttl) as results:
            job = made(service, results)
            assert job.state == "succeeded"
            if kept:
                assert np.array_equal(read(results, job), np.full((3, 4), 10, np.float32))
            else:
                with pytest.raises(NoResult):
                    results.open(job)


@pytest.mark.slow
def test_beyond_so_many_bytes_the_oldest_results_go_first(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path, most=2 * 4096) as results:
        first, second, third = (made(service, results) for _ in range(3))
        with pytest.raises(NoResult):
            results.open(first)
        assert read(results, second).shape == read(results, third).shape == (3, 4)
        assert results.store.nbytes == 2 * 4096, "blocks of the disk"
        with service.matmul.reserve(Problem(3000, 4, 5)) as placed, pytest.raises(TooLarge) as refused:
            results.create(placed)
    assert refused.value.facts == {"limit": 8192, "size": 48000}


def test_beyond_so_many_files_the_oldest_results_go_first(tmp_path: Path) -> None:
    shelf = ResultStore(tmp_path, 60, 2**30, files=3)
    shelf.start()
    for number in range(10):
        shelf.put(str(number), np.zeros(1, np.uint8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8", "9"]
    assert [shelf.holds(str(number)) for number in (6, 7)] == [False, True]
    assert shelf.nbytes == 3 * 4096
    shelf.stop()


def test_a_result_that_is_open_is_read_to_its_end_though_its_time_is_over(tmp_path: Path) -> None:
    now = [0.0]
    shelf = ResultStore(tmp_path, 10, 2**20, lambda: now[0])
    shelf.start()
    shelf.put("one", np.arange(5, dtype=np.uint8))
    file = shelf.open("one", "")
    assert file is not None
    now[0] = 10.0
    assert shelf.open("one", "") is None
    with file:
        assert file.read() == bytes(range(5))
    shelf.stop()


def test_what_is_too_old_leaves_the_disk_though_nobody_comes(tmp_path: Path) -> None:
    shelf = ResultStore(tmp_path, 0.05, 2**20)
    shelf.start()
    shelf.put("one", np.zeros(5))
    until(lambda: not list(tmp_path.iterdir()), 10)
    shelf.stop()


def test_concurrent_results_keep_within_their_bytes(tmp_path: Path) -> None:
    size, most = 2**20, 3 * 2**20
    shelf, over, seen = ResultStore(tmp_path, 60, most), threading.Event(), list[int]()
    shelf.start()

    def look() -> None:
        while not over.is_set():
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                seen.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
            reserved.append(shelf.nbytes)

    def put(number: int) -> None:
        for again in range(8):
            shelf.put(f"{number} {again}", np.full(size, number, np.uint8))

    reserved = list[int]()
    writers = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    looker = threading.Thread(target=look)
    for thread in (looker, *writers):
        thread.start()
    for thread in writers:
        thread.join(30)
        assert not thread.is_alive(), "it still waits for room"
    over.set()
    looker.join(10)
    assert max(reserved) <= most
    assert max(seen) <= most
    assert shelf.nbytes == most
    shelf.stop()


def test_what_cannot_be_written_leaves_its_room_to_others(tmp_path: Path) -> None:
    shelf = ResultStore(tmp_path / "gone", 60, 100)
    with pytest.raises(FileNotFoundError):
        shelf.put("one", np.zeros(80, np.uint8))
    assert shelf.nbytes == 0
    shelf.start()
    shelf.put("two", np.zeros(80, np.uint8))
    assert shelf.nbytes == 4096
    shelf.stop()


@pytest.mark.slow
def test_an_end_that_cannot_be_written_is_written_later(service: Service, tmp_path: Path) -> None:
    write = service.database.write
    fault = "CREATE TRIGGER fault BEFORE UPDATE OF finished_at ON jobs BEGIN SELECT a_function_that_is_not_there(); END"
    with keeping(service, tmp_path) as results:
        write(lambda session: session.execute(text(fault)))
        try:
            job = made(service, results)
        finally:
            write(lambda session: session.execute(text("DROP TRIGGER fault")))
        assert job.state in {"queued", "running"}
        ended = service.jobs.wait(job.id, 10)
        assert ended.state == "succeeded"
        assert read(results, ended).shape == (3, 4)


def test_cancellations_are_forgotten_once_their_jobs_are_over(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path) as results, service.matmul.reserve(Problem(3, 4, 5)) as placed:
        for _ in range(3):
            job = results.create(placed)
            assert service.jobs.cancel(job.id, ANONYMOUS).state == "cancelled"
            assert service.jobs.is_cancelled(job.id), "nobody has heeded it yet"
            assert results.make(job.id, placed, None, None) is None
            assert not service.jobs.is_cancelled(job.id)
            service.jobs.cancel(job.id, ANONYMOUS)
            assert not service.jobs.is_cancelled(job.id)
    until(lambda: not service.jobs.kept["active"])
    assert not service.jobs.kept["cancelled"]


def test_an_error_is_the_jobs_error(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path) as results:
        ended = made(service, results, kernel="magic")
        assert results.error(ended).code == "unknown_kernel"
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "unknown_kernel"


@pytest.mark.slow
def test_a_disk_that_does_not_take_the_result_is_the_jobs_error(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path / "gone") as results:
        (tmp_path / "gone").rmdir()
        ended = made(service, results)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "store_failed"


@pytest.mark.slow
def test_a_job_waits_in_line_and_leaves_it_at_once_when_it_is_cancelled(service: Service, tmp_path: Path) -> None:
    line = service.matmul.batcher.queue(service.fleet.unit())
    with keeping(service, tmp_path) as results, service.matmul.reserve(Problem(3, 4, 5)) as placed, held(service):
        first, second = results.create(placed), results.create(placed)
        threads = []
        for job in (first, second):
            threads.append(threading.Thread(target=results.make, args=(job.id, placed, None, None)))
            threads[-1].start()
            until(lambda: len(line) >= len(threads), 10, each=0.005)
        assert service.jobs.get(second.id).state == "queued"
        service.jobs.cancel(second.id, ANONYMOUS)
        threads[1].join(10)
        assert not threads[1].is_alive(), "it still waits for the device"
        assert len(line) == 1
    threads[0].join(30)
    assert service.jobs.get(second.id).state == "cancelled"
    assert isinstance(results.error(service.jobs.get(second.id)), Cancelled)
    assert service.jobs.get(first.id).state == "succeeded"


def test_a_running_job_that_is_cancelled_before_its_launch_costs_no_child(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path) as results, service.matmul.reserve(Problem(3, 4, 5)) as placed:
        job, generation = results.create(placed), service.fleet.unit().products.generation
        thread = threading.Thread(target=results.make, args=(job.id, placed, None, None))
        with held(service):
            thread.start()
            until(lambda: service.jobs.get(job.id).state == "running", 10, each=0.005)
            asked = service.jobs.cancel(job.id, ANONYMOUS)
            assert (asked.state, asked.cancel_requested) == ("cancelling", True)
        thread.join(30)
        assert service.jobs.get(job.id).state == "cancelled"
        assert service.fleet.unit().products.generation == generation, "a launch of a moment is not worth a child"
        with pytest.raises(NoResult):
            results.open(service.jobs.get(job.id))


def test_cancelled_job_leaves_the_matrix_it_was_to_replace(service: Service, tmp_path: Path) -> None:
    matrices = service.matrices
    with matrices.reserve(ANONYMOUS, "kept", "float32", (3, 4)) as old:
        old.keep()
    with (
        keeping(service, tmp_path) as results,
        matrices.reserve(ANONYMOUS, "kept", "float32", (3, 4)) as new,
        service.matmul.reserve(Problem(3, 4, 5), c=new) as placed,
    ):
        job = results.create(placed)
        thread = threading.Thread(target=results.make, args=(job.id, placed, None, None))
        with held(service):
            thread.start()
            until(lambda: service.jobs.get(job.id).state == "running", 10, each=0.005)
            service.jobs.cancel(job.id, ANONYMOUS)
        thread.join(30)
    assert service.jobs.get(job.id).state == "cancelled"
    assert matrices.get(ANONYMOUS, "kept")[0] == old.resident
    matrices.delete(ANONYMOUS, "kept")


@pytest.mark.slow
def test_after_a_restart_an_unfinished_product_is_lost_and_says_so(tmp_path: Path) -> None:
    with opened(settings(tmp_path), "the first") as first, first.matmul.reserve(Problem(3, 4, 5)) as placed:
        job = first.results.create(placed)
    with opened(settings(tmp_path), "the second") as second:
        ended = second.jobs.get(job.id)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "lost"


@pytest.mark.rotating
def test_results_survive_a_restart_with_their_age_and_what_no_job_names_goes(service: Service, tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with keeping(service, tmp_path) as results:
        first, second = made(service, results), made(service, results)
    (tmp_path / "stranger").write_bytes(b"x")
    (tmp_path / f"{first.id}.part").write_bytes(b"x")
    with keeping(service, tmp_path) as results:
        assert {path.name for path in tmp_path.iterdir()} == {"lost+found", first.id, second.id}
        assert results.store.nbytes == 2 * 4096
        assert np.array_equal(read(results, first), np.full((3, 4), 10, np.float32))
    with keeping(service, tmp_path, ttl=0.05) as results:
        time.sleep(0.1)
        with pytest.raises(NoResult):
            results.open(first)


def test_a_result_that_was_damaged_between_two_processes_is_not_served(service: Service, tmp_path: Path) -> None:
    with keeping(service, tmp_path) as results:
        job = made(service, results)
    (tmp_path / job.id).write_bytes(bytes(48))
    with keeping(service, tmp_path) as results, pytest.raises(NoResult):
        results.open(job)
    assert not (tmp_path / job.id).exists()
