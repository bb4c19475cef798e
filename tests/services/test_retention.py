"""Jobs, trials and misses beyond a count or an age are pruned, and nothing that anything refers to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from app.main import opened
from app.services.jobs import retention
from app.services.jobs.retention import Keep, Retention, RetentionLimits
from app.store.database import Database
from app.store.records import AnswerRecord
from app.store.repository import (
    FaultRepository,
    FirstAnswerRepository,
    JobRepository,
    MissRepository,
    TrialRepository,
)
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.store.stored_records import MODEL, TRIAL, add_job, add_trial, best, fault, job, miss, promote, trial
from tests.support.waiting import until

pytest_plugins = ("tests.support.store.databases",)

NOW = datetime.now(UTC)
ALL = Keep(10**6)


def pruning(
    database: Database,
    jobs: Keep = ALL,
    trials: Keep = ALL,
    misses: Keep = ALL,
    is_kept: Callable[[str], bool] = lambda _: False,
) -> None:
    Retention(database, RetentionLimits(jobs, trials, misses), is_kept).prune()


def jobs(database: Database) -> list[str]:
    return [each.id for each in database.read(lambda session: JobRepository(session).list(limit=10_000))]


def ended(database: Database, *names: str, **other: Any) -> None:
    for name in names:
        add_job(database, name, **{"state": "succeeded", "finished_at": NOW, **other})


@pytest.mark.slow
def test_the_oldest_jobs_go_first_and_what_has_not_ended_stays(database: Database) -> None:
    add_job(database, "waiting")
    ended(database, "a", "b", "c", "d")
    pruning(database, jobs=Keep(4))
    assert jobs(database) == ["d", "c", "b", "a", "waiting"]
    pruning(database, jobs=Keep(2))
    assert jobs(database) == ["d", "c", "waiting"]


@pytest.mark.slow
def test_jobs_that_anything_names_stay(database: Database) -> None:
    ended(database, "tried", "answered", "kept", "fault")
    add_trial(database, replace(TRIAL, job_id="tried"))

    def add(session: Session) -> None:
        FirstAnswerRepository(session).claim(AnswerRecord("ann", "key", "print", NOW, "answered"))
        FaultRepository(session).add(fault("wrong", job_id="fault"))

    database.write(add)
    pruning(database, jobs=Keep(0), is_kept=lambda name: name == "kept")
    assert jobs(database) == ["kept", "answered", "tried"]
    (found,) = database.read(lambda session: FaultRepository(session).of(MODEL, TRIAL.environment))
    assert found.job_id is None, "what the job found out holds without it"


@pytest.mark.rotating
def test_trials_go_unless_a_best_refers_to_them_and_then_their_jobs(database: Database) -> None:
    ended(database, "old", "new")
    add_job(database, "under way", state="running")
    first = [add_trial(database, trial(number, job_id="old")) for number in range(4)]
    for name in ("new", "under way"):
        add_trial(database, trial(9, job_id=name))
    promote(database, best(first[1], naive=first[2]))
    pruning(database, trials=Keep(0), jobs=Keep(0))
    left = database.read(lambda session: TrialRepository(session).search())
    assert [each.id for each in left[:2]] == [first[1].id, first[2].id]
    assert [each.job_id for each in left[2:]] == ["under way"]
    assert jobs(database) == ["under way", "old"]


def test_what_is_too_old_goes_however_few_there_are(database: Database) -> None:
    ended(database, "old", finished_at=NOW - timedelta(days=31))
    ended(database, "new", finished_at=NOW - timedelta(days=29))
    add_trial(database, trial(1, job_id="new", created_at=NOW - timedelta(days=31)))
    seen = NOW - timedelta(days=31)
    database.write(
        lambda session: MissRepository(session).add([miss(Problem(8, 8, 8), 9, first_at=seen, last_at=seen)])
    )
    pruning(database, jobs=Keep(100, 30), trials=Keep(100, 30), misses=Keep(100, 30))
    assert jobs(database) == ["new"]
    assert database.read(lambda session: TrialRepository(session).search()) == []
    assert database.read(lambda session: MissRepository(session).most_frequent()) == []


def test_the_rarest_misses_go_first(database: Database) -> None:
    found = [miss(Problem(size, 8, 8), count) for size, count in ((1, 5), (2, 1), (3, 7), (4, 2))]
    database.write(lambda session: MissRepository(session).add(found))
    pruning(database, misses=Keep(2))
    left = database.read(lambda session: MissRepository(session).most_frequent())
    assert [each.problem.m for each in left] == [3, 1]


@pytest.mark.slow
def test_many_rows_go_in_small_transactions(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [job(str(number), state="succeeded", finished_at=NOW) for number in range(1200)]

    def add(session: Session) -> None:
        for each in records:
            JobRepository(session).add(each)

    database.write(add)
    writes, write = list[int](), database.write

    def counted(work: Callable[[Session], Any]) -> Any:
        before = len(jobs(database))
        done = write(work)
        writes.append(before - len(jobs(database)))
        return done

    monkeypatch.setattr(database, "write", counted)
    pruning(database, jobs=Keep(100))
    assert [count for count in writes if count] == [500, 500, 100]
    assert len(jobs(database)) == 100


def test_the_service_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PERIOD", 0.05)
    few = settings(tmp_path).model_copy(update={"devices": "none", "jobs_kept": 1})
    with opened(few, "the tests") as service:
        ended(service.database, "a", "b")
        until(lambda: jobs(service.database) == ["b"], 60)
