"""What many followers of a job cost whoever tunes: what is committed close together is sent together, once to each."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.store.records import JobRecord, TrialRecord
from app.store.repository import JobRepository, TrialRepository
from app.tuning.budget import Budget
from kernels.space import Config
from tests.support.api.service_in_process import Running, running
from tests.support.services.trial_rows import PROBLEM, trial

pytestmark = pytest.mark.slow
TRIALS, EVERY, FOLLOWERS = 60, 0.01, 3
PAUSE = 0.05  # seconds of a stream between two tellings
JOB = "1" * 32


def pieces(port: int, begun: threading.Barrier) -> list[bytes]:
    """What comes of the job's stream, as it comes, until the last trial is there; the first piece comes at once."""
    found: list[bytes] = []
    with httpx.stream("GET", f"http://127.0.0.1:{port}/jobs/{JOB}/events", timeout=60) as answer:
        for piece in answer.iter_raw():
            found.append(piece)
            if len(found) == 1:
                begun.wait(30)
            if b"".join(found).count(b"event: trial") == TRIALS:
                break
    return found


def commit(service: Service, tried: TrialRecord) -> None:
    service.database.write(lambda session: TrialRepository(session).add(tried))
    service.jobs.notify(JOB)


def follow(live: Running, followers: int) -> tuple[list[list[bytes]], float]:
    """What each follower is sent of trials that are committed every few milliseconds, and how long these took."""
    service, device = live.service, live.service.fleet.units[0].device
    spec, now = TuneSpec((PROBLEM,), (device.id,), ("tiled",), budget=Budget(TRIALS, 60.0)), datetime.now(UTC)
    record = JobRecord(JOB, "tune", "running", JOB, spec.to_json(), 0, TRIALS, None, None, None, False, now, now, None)
    service.database.write(lambda session: JobRepository(session).add(record))
    made = trial(device, job_id=JOB, id=None)
    begun = threading.Barrier(followers + 1)
    with ThreadPoolExecutor(followers) as pool:
        sent = [pool.submit(pieces, live.port, begun) for _ in range(followers)]
        begun.wait(30)
        began = time.monotonic()
        for number in range(TRIALS):
            commit(service, replace(made, config=Config.of({"BM": number + 1, "BN": 16, "BK": 8})))
            time.sleep(EVERY)
        return [each.result() for each in sent], time.monotonic() - began


def told(sent: list[bytes]) -> list[bytes]:
    """The trials of a stream."""
    return [event for event in b"".join(sent).split(b"\n\n") if b"event: trial" in event]


def test_trials_close_together_are_sent_together_and_each_once(tmp_path: Path) -> None:
    with running(tmp_path) as live:
        sent, took = follow(live, FOLLOWERS)
    assert len(set(told(sent[0]))) == TRIALS
    for each in sent:
        assert told(each) == told(sent[0])
        assert len(each) <= took / PAUSE + 3
