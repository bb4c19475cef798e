"""Services in processes of their own on one PostgreSQL: whatever ends one, its jobs end once, and all answer alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.services.null_services import NullService, null_service, null_services
from tests.support.waiting import until

pytest_plugins = ("tests.support.store.databases",)
pytestmark = pytest.mark.slow

TOLD = 1.0  # seconds until every service answers what one has committed
LONG = 60  # trials: a few seconds


@pytest.fixture
def database(module_postgres_url: str) -> str:
    return module_postgres_url


@pytest.fixture
def services(database: str, tmp_path: Path) -> Iterator[Sequence[NullService]]:
    with null_services(tmp_path, database, 2) as running:
        yield running


def apart(services: Sequence[NullService], job_id: str) -> tuple[NullService, NullService]:
    """Who works on a job, and who does not."""
    until(lambda: any(service.attempts(job_id) for service in services), 30)
    one, two = services
    return (one, two) if one.attempts(job_id) else (two, one)


def stored(database: str, job_id: str) -> tuple[object, ...]:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT state, fence, finished_at FROM jobs WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row


def test_a_job_runs_once_and_both_answer_it(services: Sequence[NullService], database: str) -> None:
    job_id = services[0].tune(64, 2)
    until(lambda: services[1].state(job_id) == "succeeded", 60)
    for service in services:
        until(lambda service=service: service.match(64) == "exact", TOLD)  # type: ignore[misc]
    assert stored(database, job_id)[:2] == ("succeeded", 1)
    assert [service.attempts(job_id) for service in services].count(True) == 1
    problem = {"m": 64, "n": 64, "k": 64}
    assert httpx.delete(f"{services[1].url}/bests", params=problem, timeout=30).is_success
    until(lambda: services[0].match(64) != "exact", TOLD)


def test_a_killed_services_job_is_ended_by_another(services: Sequence[NullService], database: str) -> None:
    job_id = services[0].tune(96, LONG)
    runs, other = apart(services, job_id)
    runs.kill()
    until(lambda: other.state(job_id) == "succeeded", 90)
    until(lambda: other.match(96) == "exact", TOLD)
    assert stored(database, job_id)[:2] == ("succeeded", 2)


def test_a_frozen_service_writes_nothing_of_a_job_that_it_lost(services: Sequence[NullService], database: str) -> None:
    job_id = services[0].tune(128, LONG)
    runs, other = apart(services, job_id)
    runs.freeze()
    until(lambda: other.state(job_id) == "succeeded", 90)
    ended = stored(database, job_id)
    runs.thaw()
    until(lambda: runs.match(128) == "exact", TOLD + 2)
    # Its next write is refused, or finds that the server has ended the transaction that was frozen.
    gave_up = ("another service's now", "left for whoever claims it")
    until(lambda: any(told in runs.log.read_text() for told in gave_up), 30)
    assert stored(database, job_id) == ended


def test_a_job_is_cancelled_through_another_service(services: Sequence[NullService], database: str) -> None:
    job_id = services[0].tune(160, 500)
    _, other = apart(services, job_id)
    assert httpx.delete(f"{other.url}/jobs/{job_id}", timeout=30).status_code in {200, 202}
    until(lambda: other.state(job_id) == "cancelled", 10)
    assert stored(database, job_id)[0] == "cancelled"


def test_a_key_is_known_and_revoked_on_all(module_postgres_url: str, tmp_path: Path) -> None:
    admin = tmp_path / "admin"
    admin.write_text("an-admin-key-of-a-test")
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / "secret").write_bytes(bytes(32))
        (folder / "secret").chmod(0o600)
    keys = {"auth": "keys", "admin_key_file": str(admin)}
    with (
        null_service(tmp_path / "one", module_postgres_url, **keys) as one,
        null_service(tmp_path / "two", module_postgres_url, **keys) as two,
        httpx.Client(headers={"Authorization": "Bearer an-admin-key-of-a-test"}, timeout=30) as client,
    ):
        made = client.post(f"{one.url}/keys", json={"principal": "ann", "scopes": ["read"]}).json()
        bearer = {"Authorization": f"Bearer {made['key']}"}
        until(lambda: httpx.get(f"{two.url}/jobs", headers=bearer).status_code == 200, TOLD)
        assert client.delete(f"{one.url}/keys/{made['id']}").is_success
        until(lambda: httpx.get(f"{two.url}/jobs", headers=bearer).status_code == 401, TOLD)


def test_a_newer_schema_is_answered_from_and_not_worked_for(services: Sequence[NullService], database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        before = connection.execute("UPDATE alembic_version SET version_num = '9999' RETURNING 1").fetchone()
        try:
            job_id = services[0].tune(192, 2)
            until(lambda: all("schema 9999" in service.log.read_text() for service in services), 10)
            assert [service.state(job_id) for service in services] == ["queued", "queued"]
        finally:
            connection.execute("UPDATE alembic_version SET version_num = '0015'")
    assert before == (1,)
    until(lambda: services[1].state(job_id) == "succeeded", 60)
