"""A disk that is full for a while: no job is left that never ends, and none that nobody works on is joined."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from app.services.jobs.service import JobService, new_job
from app.services.jobs.write_retry import WriteRetry
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec, fingerprint, normalize
from app.store.repository import JobRepository
from app.tuning.budget import Budget
from kernels.problem import Problem

FULL: Final = """
import json, resource, sys, threading
from pathlib import Path
from tests.support.services.service_settings import settings
from tests.support.waiting import until
from app.errors import StoreFailed
from app.main import opened
from app.services.principal import ANONYMOUS
from app.services.tuning.request import TuneSpec
from app.tuning.budget import Budget
from kernels.problem import Problem

folder, size = Path(sys.argv[1]), Problem(40, 41, 42)
order = TuneSpec((size,), kernels=("tiled",), budget=Budget(seconds=60.0))

def limit(nbytes):  # what a file may grow to: a write beyond it fails, as one to a full disk does
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

with opened(settings(folder), "the test") as service:
    jobs, woken, told = service.jobs, threading.Event(), {}
    job = service.tuning.submit(order, ANONYMOUS)
    jobs.subscribe(job.id, woken.set)
    with service.matmul.reserve(Problem(3, 4, 5)) as placed:
        placed.a[...], placed.b[...] = 1, 2
        product = service.results.create(placed)
        until(lambda: jobs.trials(job_id=job.id))
        limit(next(folder.rglob("*.db-wal")).stat().st_size)
        until(lambda: not service.tuning.kept)
        service.results.make(product.id, placed, None, None)
    told["full"] = [jobs.get(each.id).state for each in (job, product)]
    try:
        service.tuning.submit(order, ANONYMOUS)
    except StoreFailed as error:
        told["order"] = error.code
    woken.clear()
    limit(resource.RLIM_INFINITY)
    if sys.argv[2] == "delete":
        jobs.cancel(job.id, ANONYMOUS)
    told["ended"] = [jobs.wait(each.id, 10).state for each in (job, product)]
    told["woken"] = woken.is_set()
    told["events"] = [event.name for event in jobs.events(job.id)][-1]
    again = service.tuning.submit(TuneSpec((size,), kernels=("naive",), budget=Budget(trials=1)), ANONYMOUS)
    told["again"] = [again.id != job.id, jobs.wait(again.id, 60).state]
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["wait", "delete"])
def test_jobs_that_meet_a_full_disk_end_once_there_is_room(tmp_path: Path, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), then],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["full"][0] == "running"
    assert told["order"] == "store_failed"
    assert told["ended"][0] in ({"failed"} if then == "wait" else {"failed", "cancelled"})
    assert told["ended"][1] == "succeeded"
    assert (told["woken"], told["events"]) == (True, "end")
    assert told["again"] == [True, "succeeded"]


@pytest.mark.slow
def test_job_without_a_thread_is_cancelled_at_once(service: Service) -> None:
    order = TuneSpec((Problem(21, 22, 23),), kernels=("naive",), budget=Budget(trials=1))
    spec = normalize(order, service.fleet)
    lost = new_job("tune", spec.to_json(), fingerprint(ANONYMOUS, spec))
    for step in (lambda rows: rows.add(lost), lambda rows: rows.start(lost.id, 4, datetime.now(UTC))):
        service.database.write(lambda session, step=step: step(JobRepository(session)))  # type: ignore[misc]
    assert service.jobs.get(lost.id).state == "running"
    other = service.tuning.submit(order, ANONYMOUS)
    assert other.id != lost.id
    assert service.jobs.cancel(lost.id, ANONYMOUS).state == "cancelled"
    assert service.jobs.events(lost.id)[-1].name == "end"
    assert service.jobs.wait(other.id, 60).state == "succeeded"


def test_a_result_that_cannot_be_stored_fails_its_job(service: Service) -> None:
    jobs, job = JobService(service.database), new_job("matmul", {})
    service.database.write(lambda session: JobRepository(session).add(job))
    jobs.end(job.id, "succeeded", {"gflops": float("nan")})
    ended = jobs.get(job.id)
    assert (ended.state, ended.result) == ("failed", None)
    assert ended.error is not None
    assert ended.error["code"] == "internal"


def test_what_waits_to_be_written_is_tried_at_the_end_and_no_more() -> None:
    tried = []

    def write() -> None:
        tried.append(1)
        raise OSError

    writer = WriteRetry((OSError,), lambda _name, _error: write)
    writer.start()
    writer.write("it", write)
    writer.write("it", write)
    writer.stop()
    assert len(tried) == 3
