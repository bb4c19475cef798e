"""The database of the release before this one: upgraded it has all that it had, and so it has downgraded again."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from app.cli import main
from app.services.access.api_keys import ApiKeys
from app.store.database import Database, current_revision, migrate, open_database, revisions
from app.store.records import AnswerRecord
from app.store.repository import (
    BestRepository,
    DeviceRepository,
    FaultRepository,
    FirstAnswerRepository,
    JobRepository,
    MissRepository,
    TrialRepository,
)
from tests.support.store import release_database
from tests.support.store.release_database import ANSWER, MOMENT, RESULT, SECRET
from tests.support.store.stored_records import DEVICE, MODEL, PROBLEM, REJECTED, TRIAL, fault, miss

DATA = Path(__file__).parents[1] / "data"
RELEASED = sorted(path.name.partition(".")[0].rpartition("-")[2] for path in DATA.glob("tilewise-*.db.gz"))
LAST = RELEASED[-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the last release's database."""
    copy = tmp_path / "tilewise.db"
    copy.write_bytes(gzip.decompress((DATA / f"tilewise-{LAST}.db.gz").read_bytes()))
    return copy


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, as SQLite has it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        selects = {name: f"SELECT * FROM {name}" for name in names}  # noqa: S608 - names of SQLite's own list
        found = {name: [dict(row) for row in connection.execute(select)] for name, select in selects.items()}
    return {name: sorted(each, key=str) for name, each in found.items() if name != "sqlite_sequence"}


def test_what_the_script_writes_has_a_row_of_every_table(tmp_path: Path) -> None:
    with gzip.open(release_database.write(tmp_path)) as packed:
        (tmp_path / "new.db").write_bytes(packed.read())
    assert [name for name, found in rows(tmp_path / "new.db").items() if not found] == []


def test_every_answer_of_the_last_release_is_there_once_it_is_upgraded(file: Path) -> None:
    migrate(url(file))
    assert current_revision(url(file)) == revisions()[-1]
    with open_database(url(file)) as database:
        assert database.read(_told) == _expected()
        _expect_key(database)


def _told(session: Session) -> dict[str, Any]:
    jobs = {job.id: (job.state, job.kind, job.principal, job.result) for job in JobRepository(session).list()}
    trials = [
        (each.kernel, each.state, each.round, str(each.config)) for each in TrialRepository(session).of_job("tuned")
    ]
    (best,) = BestRepository(session).all()
    answer = FirstAnswerRepository(session).claim(AnswerRecord("ann", "key", "print", MOMENT))
    return {
        "jobs": jobs,
        "trials": trials,
        "first": TrialRepository(session).of_job("tuned")[0],
        "best": (best.trial.config, best.naive and best.naive.kernel, best.vendor_reason, best.tuned_at),
        "devices": DeviceRepository(session).all(),
        "misses": MissRepository(session).most_frequent(),
        "faults": sorted(each.kind for each in FaultRepository(session).of(MODEL, TRIAL.environment)),
        "answer": answer,
    }


def _expected() -> dict[str, Any]:
    others = [("tiled", "measured", "search", f"BM={number}") for number in range(3)]
    first = replace(TRIAL, id=1, job_id="tuned", round="final", created_at=MOMENT)
    return {
        "jobs": {
            "waiting": ("queued", "tune", "ann", None),
            "made": ("succeeded", "matmul", "ann", RESULT),
            "tuned": ("succeeded", "tune", "anonymous", None),
        },
        "trials": [
            ("tiled", "measured", "final", str(TRIAL.config)),
            ("naive", "rejected", "search", str(REJECTED.config)),
            *others,
            ("naive", "measured", "report", "BM=9"),
        ],
        "first": first,
        "best": (TRIAL.config, "naive", "there is no library", MOMENT),
        "devices": [DEVICE],
        "misses": [miss(PROBLEM, 5), miss(replace(PROBLEM, m=7), 2)],
        "faults": sorted(fault(kind).kind for kind in ("wrong", "compile")),
        "answer": AnswerRecord("ann", "key", "print", MOMENT, "tuned", *ANSWER),
    }


def _expect_key(database: Database) -> None:
    """The key that the release gave out still says who asks."""
    keys = ApiKeys(database, SECRET)
    keys.start()
    principal = keys.principal_of_token((DATA / f"tilewise-{LAST}.token").read_text().strip())
    assert principal.scopes == {"read", "tune"}
    assert (principal.name, principal.quota.jobs) == ("ann", 3)
    assert keys.principal_of_certificate("CN=ben").scopes == {"read"}


def test_every_row_of_the_last_release_is_there_once_it_is_downgraded_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(file)
    monkeypatch.setenv("TILEWISE_DATABASE_URL", url(file))
    assert main(["migrate"]) == 0
    assert main(["migrate", "--to", LAST]) == 0
    assert rows(file) == before
    assert main(["migrate"]) == 0  # and forward again
    with open_database(url(file)) as database:
        assert database.read(_told) == _expected()
