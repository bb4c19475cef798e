"""Writes the database of a release, for the tests of the next one's upgrade, which begin with it.

Run it before a revision is added, and commit what it makes:

    python -m tests.support.store.release_database tests/data
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from sqlalchemy.orm import Session

from app.services.access.api_keys import ApiKeys
from app.services.principal import UsageQuota
from app.store.database import Database, migrate, open_database, revisions
from app.store.records import (
    AnswerRecord,
    CacheRecord,
    CordonRecord,
    ImportedSpaceRecord,
    ImportRecord,
    ProfileRecord,
    WorkloadRecord,
)
from app.store.repository import (
    CacheRepository,
    CordonRepository,
    DeviceRepository,
    FaultRepository,
    FirstAnswerRepository,
    ImportRepository,
    MissRepository,
    ProfileRepository,
    WorkloadRepository,
)
from tests.support.store.stored_records import (
    DEVICE,
    NOW,
    PROBLEM,
    REJECTED,
    TRIAL,
    add_job,
    add_trial,
    best,
    fault,
    miss,
    promote,
    trial,
)

SECRET: Final = bytes(range(32))  # of keys, in the tests alone
MOMENT: Final = NOW.astimezone(UTC)
RESULT: Final[dict[str, Any]] = {"sha256": "cd" * 32, "shape": [1, 2], "dtype": "float32"}
ANSWER: Final = 202, {"Location": "/jobs/tuned"}, '{"id":"tuned"}'  # status, headers, body
IMPORT: Final = ImportRecord("import", "ann", "csv", "ef" * 32, 512, {"added": 1}, MOMENT, None)
IMPORTED: Final = ImportedSpaceRecord("import", "space", "A device", PROBLEM, "tiled", TRIAL.config, 0.3, b"packed")


def content(database: Database) -> str:
    """Fill a database with a row or more of every kind; the token of its key."""
    add_job(database, "tuned", state="succeeded", done=7, started_at=MOMENT, finished_at=MOMENT)
    add_job(database, "made", kind="matmul", state="succeeded", result=RESULT, finished_at=MOMENT, principal="ann")
    add_job(database, "waiting", state="queued", principal="ann")
    fastest = add_trial(database, replace(TRIAL, job_id="tuned", round="final"))
    add_trial(database, replace(REJECTED, job_id="tuned"))
    for number in range(3):
        add_trial(database, trial(number, job_id="tuned"))
    naive = add_trial(database, trial(9, job_id="tuned", kernel="naive", round="report"))
    promote(database, best(fastest, naive=naive, vendor_reason="there is no library"))

    def add(session: Session) -> None:
        DeviceRepository(session).save(DEVICE)
        FaultRepository(session).add(fault("wrong", job_id="tuned"), fault("compile", job_id="tuned"))
        ImportRepository(session).add(IMPORT, [IMPORTED])
        CordonRepository(session).save(CordonRecord("GPU-1234", "a fan is broken", "operator", MOMENT))
        MissRepository(session).add([miss(PROBLEM, 5), miss(replace(PROBLEM, m=7), 2)])
        FirstAnswerRepository(session).claim(AnswerRecord("ann", "key", "print", MOMENT, "tuned"))
        session.flush()
        FirstAnswerRepository(session).answer("ann", "key", *ANSWER)

        CacheRepository(session).save(CacheRecord("ann", "helion", "k", b"1", "application/json", "e", MOMENT, None))
        content = {"kernels": [], "findings": ["tiled is 2 times as fast as naive."]}
        profiled = ProfileRecord("tuned", "cuda:0", "a GPU", "a driver", PROBLEM, content, MOMENT)
        ProfileRepository(session).save(profiled, 1000)
        WorkloadRepository(session).add(
            WorkloadRecord(
                "ab" * 16, "ann", "mine", "shapes", {"problems": [], "skipped": []}, MOMENT, "tuned", "cuda:0"
            )
        )

    database.write(add)
    keys = ApiKeys(database, SECRET)
    keys.start()
    _, token = keys.create("ann", frozenset({"read", "tune"}), UsageQuota(jobs=3))
    keys.create("CN=ben", frozenset({"read"}), certificate=True)
    return str(token)


def write(folder: Path) -> Path:
    """A compressed database of this program's schema, which it is named by; the token of its key lies beside it."""
    revision = revisions()[-1]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tilewise.db"
        migrate(f"sqlite:///{file}")
        with open_database(f"sqlite:///{file}") as database:
            token = content(database)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE").close()
            connection.execute("VACUUM").close()
        target = folder / f"tilewise-{revision}.db.gz"
        target.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        target.with_suffix("").with_suffix(".token").write_text(f"{token}\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
