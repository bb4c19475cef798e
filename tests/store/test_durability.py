"""What was acknowledged survives kill -9 of the process that wrote it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from app.store.database import migrate, open_database
from app.store.repository import JobRepository, TrialRepository
from tests.support.store.stored_records import add_job, process

pytest_plugins = ("tests.support.store.databases",)

ROUNDS = 3
WRITER = """
import sys
from tests.support.store.stored_records import trial
from app.store.database import open_database
from app.store.repository import JobRepository, TrialRepository
url, name = sys.argv[1:3]
with open_database(url) as database:
    for number in range(1, 1_000_000):
        def save(session):
            JobRepository(session).advance(name, float(number))
            return TrialRepository(session).add(trial(number, job_id=name))
        print(database.write(save), flush=True)
"""


def killed_writer(url: str, name: str, seconds: float) -> list[int]:
    """The ids that a writer printed, each after its commit, until it was killed `seconds` after the first."""
    with process(WRITER, url, name) as (child, output):
        seen = [int(output.readline())]
        timer = threading.Timer(seconds, child.send_signal, [signal.SIGKILL])
        timer.start()
        lines = output.read().splitlines(keepends=True)
        timer.join()
        return seen + [int(line) for line in lines if line.endswith("\n")]


def kept(url: str, name: str) -> tuple[list[int], int]:
    """The ids of a job's trials, and how many the job says there are."""
    with open_database(url) as database:
        trials = database.read(lambda session: TrialRepository(session).of_job(name))
        job = database.read(lambda session: JobRepository(session).get(name))
    assert job is not None
    return [trial.id or 0 for trial in trials], job.done


@pytest.mark.slow
def test_every_acknowledged_trial_survives_a_kill(database_url: str) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    kills = np.random.default_rng(seed)
    migrate(database_url)
    for number in range(ROUNDS):
        name = f"round {number}"
        with open_database(database_url) as database:
            add_job(database, name)
        acknowledged = killed_writer(database_url, name, kills.uniform(0, 0.3))
        stored, done = kept(database_url, name)
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) <= len(acknowledged) + 1
        assert done == len(stored), "a trial and its job's progress are one transaction"


@pytest.mark.rotating
def test_a_killed_writer_leaves_a_sound_file(sqlite_url: str) -> None:
    migrate(sqlite_url)
    with open_database(sqlite_url) as database:
        add_job(database)
    assert killed_writer(sqlite_url, "job", 0.2)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_what_another_process_opens_stays_this_ones(sqlite_url: str) -> None:
    """Whoever closes a file that no other process has locked removes its log: looking at the file must keep locks."""
    path = sqlite_url.removeprefix("sqlite:///")
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); n = c.execute('SELECT count(*) FROM jobs').fetchone()"
    )

    def seen_by_another() -> str:
        command = [sys.executable, "-c", f"{look}; c.close(); print(*n)", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    migrate(sqlite_url)
    with open_database(sqlite_url) as database:
        for number in range(1, 4):
            add_job(database, f"{number}")
            database.probe()
            assert seen_by_another() == f"{number}"
