"""The program whose calls are recorded: a service on the CPU's device that tells what it acknowledged, as it does.

`python -m tests.simulation.recorded_service DATA ACKNOWLEDGED SHAPES`: a database of an older revision is migrated,
then the service tunes, makes products as jobs, and keeps first answers in it. Each line of the second file is written
after the call returned.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from alembic import command

from app.main import opened
from app.services.jobs.idempotency import IdempotentRequest, fingerprint
from app.services.jobs.service import ENDED
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.settings import Settings
from app.store.database import migrate, open_database
from app.store.repository import JobRepository
from app.store.schema import changing, configuration
from app.tuning.budget import Budget
from kernels.problem import Problem
from tests.support.services.tuning_fixture import brief_finals
from tests.support.store.stored_records import TRIAL, add_job, add_trial, best, promote

OLDER: Final = ("0002", "0005")  # revisions that are migrated from
SLAB: Final = 2**22
JOB: Final = "0" * 32  # the one that is stored before the service begins


class Log:
    """The file of what was acknowledged: a write for each line, so that each has its place among the calls."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def __call__(self, kind: str, **facts: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **facts}).encode() + b"\n")


def settings(data: Path) -> Settings:
    """Settings of the recorded service, and of those that take its data up."""
    return Settings(
        data_dir=data, devices="opencl", slab_bytes=SLAB, max_body_bytes=SLAB, idle_tuning="off", result_ttl=86400
    )


def migrations(url: str, log: Log) -> None:
    """Make a database, store rows in it, and take it down to older revisions and up again."""
    migrate(url)
    log("migrated")
    with open_database(url) as database:
        spec = TuneSpec((Problem(8, 8, 8),), ("opencl:0",), ("naive",), budget=Budget(2, 60.0))
        add_job(database, JOB, request=spec.to_json())
        log("job", id=JOB, state="queued")
        trial = add_trial(database, replace(TRIAL, job_id=JOB))
        log("trial", job_id=JOB, id=trial.id, median_ms=trial.median_ms)
        promote(database, best(trial))
        log("best", model=trial.device_model, problem=trial.problem.key, trial=trial.id)
        database.write(lambda session: JobRepository(session).finish(JOB, "succeeded", None, None, trial.created_at))
        log("job", id=JOB, state="succeeded")
    for revision in OLDER:
        with changing(url) as connection:
            command.downgrade(configuration(connection), revision)
        log("revision", revision=revision)
        migrate(url)
        log("migrated")


def tune(service: Service, problem: Problem, log: Log) -> str:
    """Tune a shape, and tell each trial once a client would see it."""
    budget = Budget(trials=4, seconds=60.0)
    spec = TuneSpec((problem,), (), ("naive", "tiled"), budget=budget)
    job = service.tuning.submit(spec, ANONYMOUS)
    log("job", id=job.id, state=job.state)
    seen = 0
    while True:
        record = service.jobs.wait(job.id, 0.05)
        for event in service.jobs.events(job.id, seen):
            seen = event.id
            if event.name == "trial":
                log("trial", job_id=job.id, id=event.data["id"], median_ms=event.data["median_ms"])
        if record.state in ENDED:
            break
    log("job", id=job.id, state=record.state, result=record.result)
    unit = service.fleet.unit()
    found = service.best.record(unit.device.model, problem)
    assert found is not None
    log("best", model=unit.device.model, problem=problem.key, trial=found.trial.id)
    return job.id


def product(service: Service, number: int, log: Log) -> None:
    """Make a product as a job of a request with an Idempotency-Key, and answer it."""
    rng, key, problem = np.random.default_rng(number), f"key {number}", Problem(9 + number % 7, 8, 40)
    print_ = fingerprint("POST", "/matmul", b"", b"%d" % number)
    attempt = service.idempotency.claim(ANONYMOUS, key, print_)
    assert isinstance(attempt, IdempotentRequest)
    with service.matmul.reserve(problem) as buffers:
        buffers.a[...], buffers.b[...] = rng.standard_normal(problem.a_shape), rng.standard_normal(problem.b_shape)
        job = service.results.create(buffers, attempt.record_job)
        log("job", id=job.id, state=job.state)
        log("attached", key=key, print=print_, job_id=job.id)
        service.results.make(job.id, buffers, None, None)
        record, digest = service.jobs.get(job.id), sha256(buffers.result.tobytes()).hexdigest()
    log("product", id=job.id, state=record.state, result=record.result, digest=digest)
    body = json.dumps({"id": job.id})
    service.idempotency.answered(attempt, 202, {"location": f"/jobs/{job.id}"}, body)
    log("answered", key=key, print=print_, status=202, body=body)


def keys(service: Service, number: int, log: Log) -> None:
    """Make two keys, and revoke one of them."""
    made = [service.access.keys.create(f"caller {number} {each}", frozenset({"read"})) for each in range(2)]
    for record, token in made:
        log("key", id=record.id, token=token, name=record.principal)
    record, token = made[0]
    service.access.keys.revoke(record.id)
    log("revoked", id=record.id, token=token)


def main() -> None:
    """Migrate, make keys, tune and multiply."""
    data, log, shapes = Path(sys.argv[1]), Log(Path(sys.argv[2])), int(sys.argv[3])
    chosen = settings(data)
    migrations(chosen.database, log)
    with brief_finals(), opened(chosen, "the recorded service") as service:
        log("opened")
        for number in range(shapes):
            keys(service, number, log)
            for each in range(3):
                product(service, 3 * number + each, log)
            tune(service, Problem(24 + 8 * number, 16, 32), log)
    log("closed")


if __name__ == "__main__":
    main()
