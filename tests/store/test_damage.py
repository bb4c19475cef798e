"""A damaged database is refused with what to do, or goes on with what is sound; never is it empty without a word."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import DatabaseOwned, StartRefused
from app.store.database import migrate, open_database, owned
from app.store.database_state import is_marked, mark_made
from app.store.repository import JobRepository
from tests.support.store.stored_records import add_job, process

OWNER = """
import sys
from app.store.database import migrate, open_database, owned
from tests.support.store.stored_records import add_job
with owned(sys.argv[1], "pid 7"):
    migrate(sys.argv[1])
    with open_database(sys.argv[1]) as database:
        add_job(database, "first")
        print("stored", flush=True)
        for line in sys.stdin:
            add_job(database, line.strip())
            print("stored", flush=True)
"""

MARKING = """
import sys
from pathlib import Path
from app.store.database_state import mark_made
mark_made(Path(sys.argv[1]), "0001")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database whose owner was killed before anything left its log, which has a job."""
    found = tmp_path / "tilewise.db"
    with process(OWNER, url(found)) as (child, output):
        assert output.readline() == "stored\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    return found


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def start(file: Path) -> list[str]:
    """The jobs that a start finds."""
    with owned(url(file), "the next"):
        migrate(url(file))
        with open_database(url(file)) as database:
            return [job.id for job in database.read(lambda session: JobRepository(session).list())]


@pytest.mark.rotating
def test_a_start_after_a_kill_finds_everything(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert start(file) == ["first"]
    assert not caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["log removed and file emptied", "file emptied", "file removed"])
def test_a_database_that_is_empty_now_is_refused_until_that_is_wanted(file: Path, damage: str) -> None:
    if "log removed" in damage:
        log_of(file).unlink()
    if "emptied" in damage:
        file.write_bytes(b"")
    if damage == "file removed":
        file.unlink()
    for _ in range(2):
        with pytest.raises(StartRefused, match="though there was a database: restore a backup, or remove"):
            start(file)
    assert log_of(file).exists() == ("log removed" not in damage), "what could be mended is still there"
    file.with_name(f"{file.name}.schema").unlink()
    assert start(file) == [], "SQLite drops the log of an empty file"


@pytest.mark.rotating
def test_a_log_that_is_gone_is_told_of_and_what_was_in_the_file_is_served(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(file)  # it folds the log into the file
    with process(OWNER.replace("first", "second"), url(file)) as (child, output):
        assert output.readline() == "stored\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    log_of(file).unlink()
    assert start(file) == ["first"]
    assert caplog.messages == [f"{log_of(file)} is gone, though pid 7 was ended: what it stored last may be lost"]


@pytest.mark.rotating
def test_a_log_of_garbage_is_moved_aside_and_told_of(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(file)
    log_of(file).write_bytes(b"garbage" * 1000)
    assert start(file) == ["first"]
    assert "is no log of SQLite's" in caplog.text
    assert log_of(file).with_name("tilewise.db-wal.damaged").read_bytes() == b"garbage" * 1000


@pytest.mark.rotating
def test_a_missing_table_is_refused_by_name(file: Path) -> None:
    start(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE misses")
        connection.commit()
    with pytest.raises(StartRefused, match="the database has no misses any more: restore a backup"):
        start(file)


@pytest.mark.rotating
def test_tables_without_a_schemas_number_are_refused(file: Path) -> None:
    start(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE alembic_version")
        connection.commit()
    with pytest.raises(StartRefused, match="does not say of which schema"):
        start(file)


@pytest.mark.rotating
@pytest.mark.parametrize("more", [False, True], ids=["a name", "a name and the statement"])
def test_a_damaged_text_of_the_schema_is_refused(file: Path, *, more: bool) -> None:
    start(file)
    content, damaged = file.read_bytes(), b"\xff" * len("misses")
    content = content.replace(b"misses", damaged)
    file.write_bytes(content.replace(b"CREATE TABLE " + damaged, b"\xfe" * 19) if more else content)
    with pytest.raises(StartRefused, match="is damaged" if more else "cannot be opened"):
        start(file)


@pytest.mark.rotating
def test_a_lock_that_was_removed_lets_no_second_owner_in(tmp_path: Path) -> None:
    file = tmp_path / "tilewise.db"
    with process(OWNER, url(file)) as (child, output):
        assert output.readline() == "stored\n"
        file.with_name("tilewise.db.lock").unlink()
        for _ in range(2):
            with pytest.raises(DatabaseOwned):
                start(file)
        with closing(sqlite3.connect(file)) as other:  # another program's end must not fold the owner's log
            assert other.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
        assert child.stdin is not None
        child.stdin.write("second\n")
        child.stdin.flush()
        assert output.readline() == "stored\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert start(file) == ["second", "first"]


@pytest.mark.rotating
def test_a_copy_of_the_file_alone_is_a_database(file: Path, tmp_path: Path) -> None:
    start(file)
    copy = tmp_path / "copy" / "tilewise.db"
    copy.parent.mkdir()
    shutil.copy(file, copy)
    assert start(copy) == ["first"]
    with open_database(url(copy)) as database:
        add_job(database, "more")


def test_two_processes_that_mark_a_database_at_once_both_have_it_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "tilewise.db", os.fsync

    def sync_while_another_marks(descriptor: int) -> None:
        synced(descriptor)
        if not is_marked(file):
            subprocess.run([sys.executable, "-c", MARKING, str(file)], check=True)

    monkeypatch.setattr(os, "fsync", sync_while_another_marks)
    mark_made(file, "0001")
    assert [path.name for path in tmp_path.iterdir()] == ["tilewise.db.schema"]
