"""The open database: one writer, many readers, and nothing half done."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.errors import Closing, StartRefused, StoreFailed
from app.store.database import Database, current_revision, migrate, open_database
from app.store.repository import JobRepository, TrialRepository
from tests.support.store.stored_records import NOW, add_job, add_trial, trial

pytest_plugins = ("tests.support.store.databases",)


def names(database: Database) -> list[str]:
    return [record.id for record in database.read(lambda session: JobRepository(session).list())]


class TestWriting:
    @pytest.mark.rotating
    def test_what_fails_halfway_leaves_nothing(self, database: Database) -> None:
        def fail(session: Session) -> None:
            JobRepository(session).start("first", 1, NOW)
            raise KeyError("on purpose")

        add_job(database, "first")
        with pytest.raises(KeyError, match="on purpose"):
            database.write(fail)
        assert [record.state for record in database.read(lambda session: JobRepository(session).list())] == ["queued"]
        add_job(database, "second")
        assert names(database) == ["second", "first"]

    def test_every_write_is_in_one_thread(self, database: Database) -> None:
        with ThreadPoolExecutor(4) as pool:
            threads = set(pool.map(lambda _: database.write(lambda _: threading.get_ident()), range(20)))
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    def test_a_write_within_a_write_is_an_error_and_no_deadlock(self, database: Database) -> None:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            database.write(lambda _: database.write(lambda _: None))

    def test_a_read_cannot_write(self, database: Database) -> None:
        add_job(database)
        with pytest.raises(StoreFailed, match=r"readonly|read-only"):
            database.read(lambda session: JobRepository(session).start("job", 1, NOW))

    @pytest.mark.rotating
    def test_writes_asked_for_before_the_end_are_done_and_later_ones_refused(self, database_url: str) -> None:
        migrate(database_url)
        with open_database(database_url) as database:
            waiting = threading.Thread(target=database.write, args=[_slowly])
            waiting.start()
            time.sleep(0.05)
        waiting.join()
        for late in (database.write, database.read):
            with pytest.raises(Closing):
                late(lambda _: None)
        with open_database(database_url) as database:
            assert names(database) == ["slow"]


def _slowly(session: Session) -> None:
    time.sleep(0.2)
    session.execute(
        text(
            "INSERT INTO jobs (id, kind, state, fingerprint, request, done, total, cancel_requested, created_at, "
            "principal) "
            "VALUES ('slow', 'tune', 'queued', '', '{}', 0, 0, false, '2026-01-01 00:00:00.000000', 'anonymous')"
        )
    )


class TestReading:
    def test_a_read_sees_one_state_from_its_first_query_on(self, database: Database) -> None:
        def twice(session: Session) -> tuple[int, int]:
            before = len(JobRepository(session).list())
            add_job(database, "meanwhile")
            return before, len(JobRepository(session).list())

        assert database.read(twice) == (0, 0)
        assert names(database) == ["meanwhile"]

    @pytest.mark.slow
    def test_eight_threads_read_while_the_writer_writes(self, database: Database) -> None:
        add_job(database)
        done = threading.Event()

        def follow() -> int:
            seen: list[int] = []
            while not done.wait(0.002):  # as followers of events do; eight that spin would starve every other thread
                rows = database.read(lambda session: TrialRepository(session).of_job("job", seen[-1] if seen else 0))
                seen.extend(row.id or 0 for row in rows)
            rows = database.read(lambda session: TrialRepository(session).of_job("job", seen[-1] if seen else 0))
            seen.extend(row.id or 0 for row in rows)
            assert seen == sorted(set(seen)), "a trial committed later has the larger id"
            return len(seen)

        with ThreadPoolExecutor(8) as pool:
            followers = [pool.submit(follow) for _ in range(8)]
            for number in range(100):
                add_trial(database, trial(number))
            done.set()
            assert [follower.result() for follower in followers] == [100] * 8

    def test_more_threads_than_connections_wait_their_turn(self, database: Database) -> None:
        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(lambda _: len(names(database)), range(128))) == [0] * 128


class TestPromises:
    def test_sqlite_is_told_to_sync_every_commit(self, sqlite_url: str) -> None:
        migrate(sqlite_url)
        wanted = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000, "foreign_keys": 1}

        def told(session: Session) -> dict[str, object]:
            return {name: session.scalar(text(f"PRAGMA {name}")) for name in wanted}

        with open_database(sqlite_url) as database:
            assert database.write(told) == wanted
            assert database.read(told) == wanted

    def test_postgresql_waits_for_the_disk_whatever_its_default_is(self, postgres_url: str) -> None:
        migrate(postgres_url)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            name = postgres_url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
        with open_database(f"{postgres_url}?options=-c%20work_mem%3D5MB") as database:
            told = database.write(lambda session: session.scalar(text("SHOW synchronous_commit")))
            other = database.write(lambda session: session.scalar(text("SHOW work_mem")))
        assert (told, other) == ("on", "5MB")

    def test_a_lost_server_connection_costs_one_write_at_most(self, postgres_url: str) -> None:
        migrate(postgres_url)
        with open_database(postgres_url) as database:
            add_job(database, "before")
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            add_job(database, "after")
            assert names(database) == ["after", "before"]


class TestRefusals:
    @pytest.mark.parametrize(
        "url",
        ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "sqlite:///file:x.db?uri=true"],
    )
    def test_sqlite_without_a_plain_file_is_refused(self, url: str) -> None:
        with pytest.raises(StartRefused, match="names no plain file: SQLite in memory"):
            migrate(url)

    @pytest.mark.parametrize(("url", "reason"), [("mysql://host/name", "not mysql"), ("tilewise.db", "cannot be read")])
    def test_a_url_of_another_kind_is_refused(self, url: str, reason: str) -> None:
        with pytest.raises(StartRefused, match=reason):
            migrate(url)

    def test_a_file_that_is_no_database_is_refused_and_kept(self, tmp_path: Path) -> None:
        file = tmp_path / "notes.txt"
        file.write_text("no database " * 100)
        for ask in (migrate, current_revision):
            with pytest.raises(StartRefused, match=r"notes\.txt cannot be opened: file is not a database"):
                ask(f"sqlite:///{file}")
        assert file.read_text() == "no database " * 100

    def test_a_server_that_does_not_answer_is_told_without_the_password(self) -> None:
        with pytest.raises(StartRefused, match="cannot be opened") as refusal:
            migrate("postgres://user:secret@127.0.0.1:1/name")
        assert "secret" not in refusal.value.message
