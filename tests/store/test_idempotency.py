"""First answers to requests with an Idempotency-Key, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest
from alembic import command
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from app.store.database import Database, migrate, open_database
from app.store.records import AnswerRecord
from app.store.repository import FirstAnswerRepository
from app.store.schema import changing, configuration
from tests.support.store.stored_records import NOW, add_job

pytest_plugins = ("tests.support.store.databases",)

FIRST = AnswerRecord("anonymous", "a key", "f" * 64, NOW.astimezone(UTC))


def claim(database: Database, record: AnswerRecord = FIRST) -> AnswerRecord | None:
    return database.write(lambda session: FirstAnswerRepository(session).claim(record))


def test_key_is_claimed_once_by_a_principal(database: Database) -> None:
    assert claim(database) is None
    assert claim(database, replace(FIRST, fingerprint="other")) == FIRST
    assert claim(database, replace(FIRST, principal="somebody")) is None


def test_the_answer_comes_back_to_the_letter(database: Database) -> None:
    add_job(database)
    claim(database)
    headers, body = {"Location": "/jobs/job", "Retry-After": "1"}, '{"id": "job", "z": 1, "a": 0.30000000000000004}'

    def answer(session: Session) -> None:
        FirstAnswerRepository(session).attach("anonymous", "a key", "job")
        FirstAnswerRepository(session).answer("anonymous", "a key", 202, headers, body)

    database.write(answer)
    assert claim(database) == replace(FIRST, job_id="job", status=202, headers=headers, body=body)


def test_what_came_to_nothing_is_released_and_an_answer_is_not(database: Database) -> None:
    claim(database)
    database.write(lambda session: FirstAnswerRepository(session).release("anonymous", "a key"))
    assert claim(database) is None
    database.write(lambda session: FirstAnswerRepository(session).answer("anonymous", "a key", 200, {}, None))
    database.write(lambda session: FirstAnswerRepository(session).release("anonymous", "a key"))
    found = claim(database)
    assert found is not None
    assert found.status == 200


def test_what_is_old_is_forgotten_unless_it_is_under_way(database: Database) -> None:
    claim(database)
    claim(database, replace(FIRST, key="answered", service_seconds=7.0))
    assert database.read(lambda session: FirstAnswerRepository(session).newest()) == 7.0
    database.write(lambda session: FirstAnswerRepository(session).answer("anonymous", "answered", 202, {}, "{}"))
    database.write(lambda session: FirstAnswerRepository(session).forget(7.0))
    assert claim(database, replace(FIRST, key="answered")) is not None, "it is not older than that moment"
    database.write(lambda session: FirstAnswerRepository(session).forget(8.0))
    assert claim(database, replace(FIRST, key="answered")) is None
    assert claim(database) == FIRST


def test_after_a_restart_what_made_no_job_may_be_tried_again(database: Database) -> None:
    add_job(database)
    for key in ("no job", "a job"):
        claim(database, replace(FIRST, key=key))
    database.write(lambda session: FirstAnswerRepository(session).attach("anonymous", "a job", "job"))
    database.write(lambda session: FirstAnswerRepository(session).abandon())
    assert claim(database, replace(FIRST, key="no job")) is None
    assert claim(database, replace(FIRST, key="a job")) == replace(FIRST, key="a job", job_id="job")


@pytest.mark.rotating
def test_going_back_forgets_keys_and_going_forward_keeps_jobs(database_url: str) -> None:
    migrate(database_url)
    with open_database(database_url) as opened:
        add_job(opened)
        claim(opened, replace(FIRST, job_id="job"))
    with changing(database_url) as connection:
        command.downgrade(configuration(connection), "0002")
    with changing(database_url) as connection:
        assert "answers" not in inspect(connection).get_table_names()
    migrate(database_url)
    with open_database(database_url) as opened:
        with pytest.raises(ValueError, match="job job is refused"):
            add_job(opened)
        assert claim(opened) is None
