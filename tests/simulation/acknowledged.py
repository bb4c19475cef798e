"""What a service acknowledged, looked for in its data after a cut of power, by the service's own code."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from app.errors import Unauthenticated
from app.main import opened
from app.services.access.api_keys import ApiKeys
from app.services.access.secret import read_secret
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import Idempotency
from app.services.jobs.service import ENDED, JobService, new_job
from app.services.principal import ANONYMOUS
from app.services.tuning.request import TuneSpec
from app.store.database import Database, migrate, open_database, owned
from app.store.records import AnswerRecord, JobRecord
from app.store.repository import BestRepository, JobRepository, TrialRepository
from tests.simulation.recorded_service import settings
from tests.support.services.tuning_fixture import brief_finals

_PATIENCE: Final = 90.0  # seconds
_KEPT: Final = 86400.0  # seconds of results and answers: none of them is over when its recording is cut
_ORDER: Final = {"queued": 0, "running": 1}
Fact = dict[str, Any]


def facts(lines: Iterable[bytes]) -> list[Fact]:
    """What was acknowledged, of the log's lines."""
    return [json.loads(line) for line in lines]


def expect(data: Path, known: Sequence[Fact]) -> int:
    """Open the data as a service does, and expect what was acknowledged; gives the number of jobs to resume.

    Raises AssertionError, or what opening raises.
    """
    chosen = settings(data)
    data.mkdir(parents=True, exist_ok=True)
    with owned(chosen.database, "after the cut"):
        migrate(chosen.database)
        _expect_sound(chosen.database)
        with open_database(chosen.database) as database:
            resumable = _expect_jobs(database, known)
            _expect_trials(database, known)
            _expect_results(database, data, known)
            _expect_answers(database, known)
            _expect_keys(database, chosen.secret, known)
            _expect_writable(database)
    return resumable


def expect_resumed(data: Path, known: Sequence[Fact]) -> int:
    """As `expect`, of a whole service that is opened and does what was left of its tune jobs."""
    expect(data, known)
    asked = {fact["id"] for fact in known if fact["kind"] == "job"}
    with brief_finals(), opened(settings(data), "after the cut") as service:
        jobs = service.database.read(lambda session: JobRepository(session).unfinished())
        left = [job.id for job in jobs if job.kind == "tune" and job.id in asked]
        for job_id in left:
            ended = service.jobs.wait(job_id, _PATIENCE)
            assert ended.state == "succeeded", f"{job_id} is {ended.state}: {ended.error}"
    expect(data, known)
    return len(left)


def _expect_sound(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def _expect_jobs(database: Database, known: Sequence[Fact]) -> int:
    """Expect every job to be as far as it was said to be, and what is unfinished to be readable for its thread."""
    unfinished = database.read(lambda session: JobRepository(session).unfinished())
    resumable = {job.id for job in unfinished if job.kind == "tune" and TuneSpec.from_json(job.request).problems}
    for fact in known:
        if fact["kind"] not in {"job", "product"}:
            continue
        job = _job(database, fact["id"])
        if fact["state"] in ENDED:
            assert job.state == fact["state"], f"{fact} is {job.state}"
            assert job.result == fact.get("result", job.result), f"{fact} has {job.result}"
        else:
            assert _ORDER.get(job.state, 2) >= _ORDER[fact["state"]], f"{fact} is {job.state}"
            assert job.kind != "tune" or job.state in ENDED or job.id in resumable, f"{fact} is not resumed"
    return len(resumable)


def _job(database: Database, job_id: str) -> JobRecord:
    job = database.read(lambda session: JobRepository(session).get(job_id))
    assert job is not None, f"job {job_id} is lost"
    return job


def _expect_trials(database: Database, known: Sequence[Fact]) -> None:
    trials = database.read(lambda session: {one.id: one for one in TrialRepository(session).search(limit=10_000)})
    bests = database.read(lambda session: BestRepository(session).all())
    promoted = {(best.device_model, best.problem.key): best.trial.id or 0 for best in bests}
    for fact in known:
        if fact["kind"] == "trial":
            assert fact["id"] in trials, f"{fact} is lost"
            found = trials[fact["id"]]
            assert (found.job_id, found.median_ms) == (fact["job_id"], fact["median_ms"]), f"{fact} is {found}"
        elif fact["kind"] == "best":
            assert promoted.get((fact["model"], fact["problem"]), 0) >= fact["trial"], f"{fact} is lost"


def _expect_results(database: Database, data: Path, known: Sequence[Fact]) -> None:
    """Expect results whole or not at all, and every product that was accepted to have ended."""
    jobs = JobService(database)
    products = AsyncProducts(database, jobs, cast("Any", None), data / "results", _KEPT)
    products.start()
    try:
        accepted = [fact["job_id"] for fact in known if fact["kind"] == "attached"]
        assert all(_job(database, job_id).state in ENDED for job_id in accepted), "a product never ends"
        for fact in known:
            if fact["kind"] == "product":
                _expect_whole(products, _job(database, fact["id"]), fact["digest"])
    finally:
        products.stop()


def _expect_whole(products: AsyncProducts, job: JobRecord, digest: str) -> None:
    """Expect the bytes of a result; raises NoResult if the file was lost."""
    with products.open(job) as file:
        assert sha256(file.read()).hexdigest() == digest, f"the result of {job.id} is torn"


def _expect_answers(database: Database, known: Sequence[Fact]) -> None:
    """Expect no repeated request to be done again, and answers to be what they were."""
    idempotency = Idempotency(database, _KEPT)
    idempotency.start()
    for fact in known:
        if fact["kind"] in {"attached", "answered"}:
            found = idempotency.claim(ANONYMOUS, fact["key"], fact["print"])
            assert isinstance(found, AnswerRecord), f"{fact} is lost"
            if fact["kind"] == "attached":
                assert found.job_id == fact["job_id"], f"{fact} is {found}"
            else:
                assert (found.status, found.body) == (fact["status"], fact["body"]), f"{fact} is {found}"


def _expect_keys(database: Database, secret: Path, known: Sequence[Fact]) -> None:
    """Expect keys to be known unless they were revoked, and none that was revoked."""
    made = [fact for fact in known if fact["kind"] == "key"]
    revoked = {fact["token"] for fact in known if fact["kind"] == "revoked"}
    keys = ApiKeys(database, read_secret(secret))
    keys.start()
    under_way = {record.id for record in keys.list() if record.revoked_at is not None}
    for fact in made:
        found = None
        with suppress(Unauthenticated):
            found = keys.principal_of_token(fact["token"])
        if found is None:
            assert fact["id"] in under_way, f"{fact} is lost"
        else:
            assert found.name == fact["name"], f"{fact} is another's"
            assert fact["token"] not in revoked, f"{fact} is known again"


def _expect_writable(database: Database) -> None:
    job = new_job("tune", {})
    database.write(lambda session: JobRepository(session).add(job))
    database.write(lambda session: JobRepository(session).finish(job.id, "cancelled", None, None, datetime.now(UTC)))
    assert _job(database, job.id).state == "cancelled"
