"""One running service owns a database: a second is told by whom, and whatever ends the first frees it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from app.errors import DatabaseOwned, StartRefused
from app.store.database import migrate, open_database, owned
from tests.support.store.stored_records import process

pytest_plugins = ("tests.support.store.databases",)

FIRST = "pid 1234 at http://127.0.0.1:8000"
OWNER = """
import sys, time
from app.store.database import owned
with owned(sys.argv[1], sys.argv[2]):
    print("owned", flush=True)
    time.sleep(60)
"""


def test_a_second_owner_is_told_who_the_first_is(database_url: str) -> None:
    with owned(database_url, FIRST), pytest.raises(DatabaseOwned, match=FIRST) as refusal, owned(database_url, "me"):
        pass
    assert refusal.value.facts == {"owner": FIRST}


def test_a_database_is_free_again_once_its_owner_is_done(database_url: str) -> None:
    for who in (FIRST, "the next"):
        with owned(database_url, who):
            pass


def test_an_owner_migrates_reads_and_writes(database_url: str) -> None:
    with owned(database_url, FIRST):
        migrate(database_url)
        with open_database(database_url):
            pass


@pytest.mark.rotating
def test_an_owner_killed_outright_frees_its_database(database_url: str) -> None:
    with process(OWNER, database_url, FIRST) as (child, output):
        assert output.readline() == "owned\n"
        with pytest.raises(DatabaseOwned, match=FIRST), owned(database_url, "me"):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        with owned(database_url, "me"):
            pass


def test_two_databases_have_two_owners(sqlite_url: str, tmp_path: Path) -> None:
    with owned(sqlite_url, FIRST), owned(f"sqlite:///{tmp_path / 'other.db'}", "another"):
        pass


def test_one_file_by_two_names_has_one_owner(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with (
        owned(sqlite_url, FIRST),
        pytest.raises(DatabaseOwned, match=FIRST),
        owned(f"sqlite:///{tmp_path / 'link' / 'tilewise.db'}", "me"),
    ):
        pass


def test_a_long_name_is_cut_where_the_server_would_cut_it(postgres_url: str) -> None:
    who = "pid 1234 at http://" + "long." * 20
    with (
        owned(postgres_url, who),
        pytest.raises(DatabaseOwned, match=r"pid 1234 at http://long\.long\."),
        owned(postgres_url, "me"),
    ):
        pass


def test_a_lock_file_that_cannot_be_made_is_told() -> None:
    with pytest.raises(StartRefused, match="the lock file beside"), owned("sqlite:////proc/none/tilewise.db", FIRST):
        pass


def test_a_lock_file_that_a_power_cut_tore_is_taken_and_written_anew(sqlite_url: str) -> None:
    lock = Path(f"{sqlite_url.removeprefix('sqlite:///')}.lock")
    lock.parent.mkdir(exist_ok=True)
    lock.write_bytes(b"pid 7 \xfe\x90\x80")
    with owned(sqlite_url, FIRST):
        assert lock.read_text(encoding="utf-8") == f"{FIRST}\n"
