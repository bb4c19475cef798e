"""A backup is of one moment, is read to the byte, and comes back; on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import json
import random
import secrets
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.errors import BackupBroken, DatabaseOwned, SchemaUnknown, StartRefused
from app.store.backup import backup, restore, verify
from app.store.database import Database, current_revision, migrate, open_database, owned, revisions
from app.store.repository import JobRepository, TrialRepository
from tests.support.store.stored_records import JOB, TRIAL, add_job

pytest_plugins = ("tests.support.store.databases",)


def saved(url: str, tmp_path: Path, name: str = "backup.tar") -> Path:
    target = tmp_path / name
    backup(url, tmp_path / "secret", target, "1.0")
    return target


@pytest.fixture
def filled(database_url: str, tmp_path: Path) -> Iterator[Database]:
    """A database of each kind with a job, and a secret."""
    (tmp_path / "secret").write_bytes(b"s" * 32)
    migrate(database_url)
    with open_database(database_url) as database:
        add_job(database)
        yield database


def jobs(url: str) -> int:
    with open_database(url) as database:
        return sum(database.read(lambda session: JobRepository(session).tally()).values())


@pytest.mark.slow
def test_a_backup_comes_back_with_its_secret(filled: Database, tmp_path: Path) -> None:
    url, secret = filled.url, tmp_path / "secret"
    target = saved(url, tmp_path)
    assert target.stat().st_mode & 0o777 == 0o600
    assert verify(target).revision == revisions()[-1]
    add_job(filled, "later")
    filled.close()
    secret.write_bytes(b"another")
    restore(target, url, secret, replace=True)
    assert jobs(url) == 1
    assert secret.read_bytes() == b"s" * 32
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_backup_is_of_one_moment_while_the_service_writes(filled: Database, tmp_path: Path) -> None:
    """Each write adds a job and its trial in one transaction: no backup has one without the other."""
    stop = threading.Event()

    def write() -> None:
        for number in range(10**6):
            if stop.is_set():
                return

            def both(session: Session, number: int = number) -> None:
                JobRepository(session).add(replace(JOB, id=f"job-{number}"))
                TrialRepository(session).add(replace(TRIAL, job_id=f"job-{number}"))

            filled.write(both)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        targets = [saved(filled.url, tmp_path, f"{number}.tar") for number in range(5)]
    finally:
        stop.set()
        writer.join()
    counts = []
    for number, target in enumerate(targets):
        url = filled.url
        if url.startswith("sqlite"):
            url = f"sqlite:///{tmp_path / f'restored-{number}.db'}"
            restore(target, url, tmp_path / f"secret-{number}")
            with open_database(url) as database:
                count = database.read(
                    lambda session: [
                        session.scalar(text("SELECT count(*) FROM jobs")),
                        session.scalar(text("SELECT count(*) FROM trials")),
                    ]
                )
            assert count[0] == count[1] + 1
            counts.append(count[0])
        else:
            verify(target)
    assert counts == sorted(counts)


@pytest.mark.rotating
def test_what_is_there_is_kept_aside_and_not_replaced_unasked(filled: Database, tmp_path: Path) -> None:
    target = saved(filled.url, tmp_path)
    filled.close()
    with pytest.raises(StartRefused, match="--replace"):
        restore(target, filled.url, tmp_path / "secret")
    restore(target, filled.url, tmp_path / "secret", replace=True)
    if filled.url.startswith("sqlite"):
        assert len(list(tmp_path.rglob("*.before-restore"))) == 2


@pytest.mark.rotating
def test_a_service_that_runs_is_in_the_way_of_a_restore(filled: Database, tmp_path: Path) -> None:
    target = saved(filled.url, tmp_path)
    with owned(filled.url, "pid 7"), pytest.raises(DatabaseOwned):
        restore(target, filled.url, tmp_path / "secret", replace=True)


def test_a_file_that_is_there_is_not_written_over(filled: Database, tmp_path: Path) -> None:
    (tmp_path / "backup.tar").write_text("mine")
    with pytest.raises(FileExistsError):
        saved(filled.url, tmp_path)
    assert (tmp_path / "backup.tar").read_text() == "mine"


@pytest.mark.rotating
def test_a_newer_schema_is_neither_restored_nor_replaced(filled: Database, tmp_path: Path) -> None:
    target = saved(filled.url, tmp_path)
    filled.write(lambda session: session.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    newer = saved(filled.url, tmp_path, "newer.tar")
    filled.close()
    with pytest.raises(SchemaUnknown, match="9999"):
        verify(newer)
    for source in (target, newer):
        with pytest.raises(SchemaUnknown):
            restore(source, filled.url, tmp_path / "secret", replace=True)
    assert current_revision(filled.url) == "9999"


def test_nothing_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="no database"):
        saved(f"sqlite:///{tmp_path / 'none.db'}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    whole = saved(url, tmp_path).read_bytes()
    with tarfile.open(tmp_path / "backup.tar") as tar:
        spans = [(member.offset_data, member.size) for member in tar.getmembers()]
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - for tests
    broken = tmp_path / "broken.tar"
    for _ in range(60):
        start, size = draw.choice(spans[1:])
        at = start + draw.randrange(size)
        broken.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(BackupBroken):
            verify(broken)
        broken.write_bytes(whole[: draw.randrange(spans[-1][0] + spans[-1][1])])
        with pytest.raises(BackupBroken):
            verify(broken)


@pytest.mark.parametrize("members", [{"../evil": "0"}, {"/etc/passwd": "0"}, {}, {"secret": "0"}])
def test_a_manifest_that_names_other_members_is_refused(tmp_path: Path, members: dict[str, str]) -> None:
    manifest = {"format": 1, "version": "1.0", "created_at": "", "revision": revisions()[-1], "sha256": members}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "backup.tar", "w") as tar:
        tar.add(tmp_path / "manifest.json", "manifest.json")
    with pytest.raises(BackupBroken):
        verify(tmp_path / "backup.tar")
    assert not (tmp_path.parent / "evil").exists()
