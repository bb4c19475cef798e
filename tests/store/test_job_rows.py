"""The life of a job in the store, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import JobRepository
from tests.support.store.stored_records import JOB, NOW, add_job

pytest_plugins = ("tests.support.store.databases",)


def jobs(database: Database, *names: str, **other: Any) -> None:
    for name in names:
        add_job(database, name, **other)


def stored_job(database: Database, name: str = "job") -> JobRecord:
    record = database.read(lambda session: JobRepository(session).get(name))
    assert record is not None
    return record


class TestJobs:
    def test_a_job_comes_back_exactly_as_it_was_saved(self, database: Database) -> None:
        add_job(database)
        found = stored_job(database)
        assert found == JOB
        assert list(found.request) == ["shapes", "device", "seconds"]
        assert database.read(lambda session: JobRepository(session).get("none")) is None

    def test_two_jobs_of_one_id_are_refused(self, database: Database) -> None:
        add_job(database)
        with pytest.raises(ValueError, match="job job is refused"):
            add_job(database)

    def test_a_job_lives_from_its_start_to_its_end(self, database: Database) -> None:
        add_job(database)
        late = NOW + timedelta(minutes=1)
        error = {"code": "x", "error": "y"}

        def live(session: Session) -> None:
            jobs = JobRepository(session)
            jobs.start("job", 7, NOW)
            jobs.advance("job", 2.5)
            jobs.advance("job", 1.5)
            jobs.finish("job", "failed", {"best": []}, error, late)

        database.write(live)
        ended = replace(JOB, state="failed", done=2, total=7, best_ms=1.5, result={"best": []}, error=error)
        assert stored_job(database) == replace(ended, started_at=NOW, finished_at=late)

    def test_a_job_that_resumes_keeps_its_first_start(self, database: Database) -> None:
        add_job(database)
        database.write(lambda session: JobRepository(session).start("job", 7, NOW))
        database.write(lambda session: JobRepository(session).start("job", 7, NOW + timedelta(days=1)))
        assert stored_job(database).started_at == NOW

    def test_a_job_that_ended_stays_as_it_is(self, database: Database) -> None:
        add_job(database)
        database.write(lambda session: JobRepository(session).finish("job", "succeeded", None, None, NOW))
        ended = stored_job(database)

        def meddle(session: Session) -> None:
            jobs = JobRepository(session)
            assert not jobs.start("job", 7, NOW)
            jobs.advance("job", 1.0)
            jobs.request_cancel("job", NOW)
            jobs.finish("job", "failed", None, {"code": "late"}, NOW)

        database.write(meddle)
        assert stored_job(database) == ended

    @pytest.mark.parametrize(("started", "state"), [(False, "cancelled"), (True, "running")])
    def test_cancelling_ends_a_waiting_job_and_asks_a_running_one(
        self, database: Database, started: bool, state: str
    ) -> None:
        add_job(database)
        if started:
            assert database.write(lambda session: JobRepository(session).start("job", 7, NOW))
        database.write(lambda session: JobRepository(session).request_cancel("job", NOW))
        found = stored_job(database)
        assert (found.state, found.cancel_requested) == (state, True)
        assert found.finished_at == (None if started else NOW)

    def test_jobs_are_listed_newest_first_and_page_by_the_last_one_seen(self, database: Database) -> None:
        jobs(database, "d", "c", "b")
        jobs(database, "a", kind="matmul")
        database.write(lambda session: JobRepository(session).start("c", 7, NOW))

        def names(**filters: Any) -> list[str]:
            return [record.id for record in database.read(lambda session: JobRepository(session).list(**filters))]

        assert names() == ["a", "b", "c", "d"]
        assert names(limit=2) == ["a", "b"]
        assert names(before="b") == ["c", "d"]
        assert names(state="queued", kind="tune") == ["b", "d"]
        assert names(before="none") == []

    def test_unfinished_jobs_come_oldest_first(self, database: Database) -> None:
        jobs(database, "d", "c", "b")
        database.write(lambda session: JobRepository(session).start("c", 7, NOW))
        database.write(lambda session: JobRepository(session).finish("d", "cancelled", None, None, NOW))
        assert [record.id for record in database.read(lambda session: JobRepository(session).unfinished())] == [
            "c",
            "b",
        ]
        assert len(database.read(lambda session: JobRepository(session).unfinished("same work"))) == 2
        assert database.read(lambda session: JobRepository(session).unfinished("other work")) == []

    def test_the_same_work_is_found_while_it_is_under_way_and_after(self, database: Database) -> None:
        jobs(database, "old", "new", "failed", "stopping", "waiting", "other")

        def live(session: Session) -> None:
            jobs = JobRepository(session)
            jobs.start("stopping", 7, NOW)
            jobs.request_cancel("stopping")
            for name, state in (("old", "succeeded"), ("new", "succeeded"), ("failed", "failed")):
                jobs.finish(name, state, None, None, NOW)

        database.write(live)
        active = database.read(lambda session: JobRepository(session).active("same work"))
        finished = database.read(lambda session: JobRepository(session).finished("same work"))
        assert (active and active.id, finished and finished.id) == ("waiting", "new")
        assert database.read(lambda session: JobRepository(session).active("other work")) is None
