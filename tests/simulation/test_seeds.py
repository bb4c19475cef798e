"""Queue, lease, batches, workers and jobs hold what they promise in any order of their threads that a seed draws."""

from __future__ import annotations

import gc
import os
import random
import threading
from typing import cast
from unittest.mock import patch

import pytest

from app.devices.lease import PriorityLock
from app.services.jobs.service import JobService, new_job
from app.services.matmul.admission import Admission
from app.services.tuning.job_queue import JobQueue
from app.store.database import Database
from tests.simulation import stored_jobs
from tests.simulation.scheduler import Simulation
from tests.simulation.seeds import RUNS, runs


@pytest.mark.rotating
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("turns", 100),
        ("products", 20),
        ("jobs", 4),
        pytest.param("turns", 300, marks=pytest.mark.slow),
        pytest.param("products", 300, marks=pytest.mark.slow),
        pytest.param("jobs", 100, marks=pytest.mark.slow),
    ],
)
def test_no_seed_breaks_what_is_promised(what: str, count: int) -> None:
    first = random.Random(os.environ.get("TEST_SEED")).randrange(2**32)
    tally = runs(what, range(first, first + count))
    assert tally.failures == {}
    assert tally.runs == count


@pytest.mark.rotating
def test_simulated_jobs_tune_and_multiply() -> None:
    """Runs in which none succeeds hold whatever is promised of those that do."""
    outcomes = runs("jobs", range(6)).outcomes
    assert outcomes["tune succeeded"] > 0
    assert outcomes["matmul succeeded"] > 0


@pytest.mark.rotating
@pytest.mark.parametrize("what", RUNS)
def test_a_seed_is_the_same_run_whenever_it_is_run(what: str) -> None:
    run = RUNS[what]
    assert [run(seed)[0].digest for seed in range(2)] == [run(seed)[0].digest for seed in range(2)]


def test_a_service_beside_a_run_has_no_part_in_it() -> None:
    """As one that stays open for other tests does: it takes locks, starts threads, waits for them, and makes jobs."""
    digest, over, made = stored_jobs.run(0)[0].digest, threading.Event(), 0

    def work() -> None:
        nonlocal made
        while not over.is_set():
            beside = JobService(cast("Database", None))
            beside.start()
            made += new_job("tune", {}).state == "queued"
            beside.stop()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert stored_jobs.run(0)[0].digest == digest
    finally:
        over.set()
    thread.join()
    assert made > 1


def test_no_garbage_is_collected_in_a_run() -> None:
    seen: list[bool] = []
    simulation = Simulation(0)
    simulation.spawn(lambda: seen.append(gc.isenabled()), "a thread")
    simulation.run()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_place_that_is_kept_is_found() -> None:
    with patch.object(Admission, "release_bytes", lambda _self, _ticket: None):
        assert set(runs("products", range(3)).failures.values()) == {"AssertionError: bytes are held"}


def test_a_turn_that_is_given_to_a_later_one_is_found() -> None:
    def advance(self: PriorityLock) -> None:
        if self._holder is None and self._queue:
            self._holder = self._queue.pop()
            self._holder.granted.set()
        self._changed()

    with patch.object(PriorityLock, "_advance", advance):
        found = runs("turns", range(10)).failures.values()
    assert any("is served first" in one for one in found)


@pytest.mark.rotating
def test_a_lost_wake_up_is_found() -> None:
    def put(self: JobQueue, job_id: str, *, idle: bool = False) -> None:
        with self._changed, patch.object(self._changed, "notify", lambda: None):
            original(self, job_id, idle=idle)

    original = JobQueue.put
    with patch.object(JobQueue, "put", put):
        found = runs("jobs", range(4)).failures.values()
    assert any("is queued after 120.0 s" in one or "waits for" in one for one in found)


@pytest.mark.rotating
def test_an_end_that_is_told_and_not_kept_is_found() -> None:
    def end(self: JobService, job_id: str, *_: object, **__: object) -> None:
        self.mark_inactive(job_id)
        self.notify(job_id)

    with patch.object(JobService, "end", end):
        assert runs("jobs", range(4)).failures
