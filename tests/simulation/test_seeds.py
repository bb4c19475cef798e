"""Queue, lease, batches, workers and jobs hold what they promise in any order of their threads that a seed draws."""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest

from app.devices.lease import PriorityLock
from app.services.jobs.service import JobService
from app.services.matmul.admission import Admission
from app.services.tuning.job_queue import JobQueue
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
