"""What the repository promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event

from app.store.database import Database
from app.store.records import TrialRecord
from app.store.repository import BestRepository, DeviceRepository, JobRepository, TrialRepository
from kernels.problem import Problem
from kernels.space import Config
from tests.support.store.stored_records import (
    CONFIG,
    DEVICE,
    LIMITS,
    NOW,
    PROBLEM,
    REJECTED,
    TRIAL,
    add_job,
    add_trial,
    best,
    promote,
    trial,
)

pytest_plugins = ("tests.support.store.databases",)


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The SQL that reads send meanwhile."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    engine = database.read(lambda session: session.get_bind())
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


# A kernel that compiled and answered wrong: the widest numbers that the columns hold.
COMPILED = replace(
    REJECTED,
    stage="verify",
    registers=255,
    compilation={"seconds": 0.1 + 0.2, "local_bytes": 0, "shared_bytes": 2**31, "grid": 2**40, "block": [32, 4]},
)


class TestTrials:
    @pytest.mark.rotating
    @pytest.mark.parametrize("record", [TRIAL, REJECTED, COMPILED], ids=["measured", "rejected", "compiled"])
    def test_a_trial_comes_back_exactly_as_it_was_saved(self, database: Database, record: TrialRecord) -> None:
        add_job(database)
        saved = add_trial(database, record)
        assert database.read(lambda session: TrialRepository(session).of_job("job")) == [saved]

    def test_a_config_keeps_the_order_of_its_parameters(self, database: Database) -> None:
        add_job(database)
        add_trial(database, TRIAL)
        (found,) = database.read(lambda session: TrialRepository(session).of_job("job"))
        assert list(found.config.items()) == list(CONFIG.items())

    def test_the_vendors_trial_has_an_empty_config(self, database: Database) -> None:
        add_job(database)
        saved = add_trial(database, replace(TRIAL, kernel="vendor", kernel_digest="BLAS 3", config=Config(())))
        assert database.read(lambda session: TrialRepository(session).search(kernel="vendor")) == [saved]

    def test_a_moment_comes_back_as_the_same_moment_in_utc(self, database: Database) -> None:
        add_job(database)
        add_trial(database, TRIAL)
        (found,) = database.read(lambda session: TrialRepository(session).of_job("job"))
        assert found.created_at == NOW
        assert found.created_at.tzinfo is UTC

    def test_a_moment_without_a_time_zone_is_refused(self, database: Database) -> None:
        add_job(database)
        naive = replace(TRIAL, created_at=NOW.replace(tzinfo=None))
        with pytest.raises(Exception, match="no time zone"):
            add_trial(database, naive)

    def test_a_compilers_odd_bytes_do_not_lose_the_trial(self, database: Database) -> None:
        add_job(database)
        add_trial(database, replace(REJECTED, reason="a\0b\udcffc"))
        (found,) = database.read(lambda session: TrialRepository(session).of_job("job"))
        assert found.reason == "a\N{REPLACEMENT CHARACTER}b?c"

    def test_the_same_config_twice_in_one_job_is_refused(self, database: Database) -> None:
        add_job(database)
        add_job(database, "other")
        saved = add_trial(database, TRIAL)
        with pytest.raises(ValueError, match="tiled BN=64,BM=8,BK=16 on float64/strict/nt/3x1000x1200x800 in job job"):
            add_trial(database, replace(TRIAL, median_ms=1.0))
        for differing in (
            {"job_id": "other"},
            {"kernel": "naive"},
            {"device_model": "B"},
            {"problem": Problem(1, 1, 1)},
        ):
            add_trial(database, replace(TRIAL, **differing))
        assert database.read(lambda session: TrialRepository(session).of_job("job"))[0] == saved

    def test_a_trial_of_an_unknown_job_is_refused(self, database: Database) -> None:
        with pytest.raises(ValueError, match="in job job is refused"):
            add_trial(database, TRIAL)

    def test_a_measured_trial_without_a_time_is_refused(self, database: Database) -> None:
        add_job(database)
        with pytest.raises(ValueError, match="measured"):
            add_trial(database, replace(TRIAL, median_ms=None))

    def test_ids_rise_with_commits_and_a_refused_trial_takes_none_away(self, database: Database) -> None:
        add_job(database)
        first = add_trial(database, trial(1)).id or 0
        with pytest.raises(ValueError, match="refused"):
            add_trial(database, trial(1))
        second = add_trial(database, trial(2)).id or 0
        assert 0 < first < second
        assert [
            record.id for record in database.read(lambda session: TrialRepository(session).of_job("job", first))
        ] == [second]

    def test_a_search_takes_every_filter_and_pages_by_id(self, database: Database) -> None:
        add_job(database)
        add_job(database, "other")
        kept = [add_trial(database, trial(number)) for number in range(1, 6)]
        small = add_trial(database, trial(9, job_id="other", device_model="B", problem=Problem(1, 2, 3)))
        refused = add_trial(database, replace(REJECTED, job_id="other"))

        def search(**filters: Any) -> list[TrialRecord]:
            return database.read(lambda session: TrialRepository(session).search(**filters))

        assert search() == [*kept, small, refused]
        assert search(limit=2) == kept[:2]
        assert search(limit=2, after=kept[1].id) == kept[2:4]
        assert search(job_id="other") == [small, refused]
        assert search(device_model="B") == search(problem_key="float32/strict/nn/1x1x2x3") == [small]
        assert search(kernel="naive") == search(state="rejected") == [refused]
        assert search(problem_key=PROBLEM.key, state="measured", job_id="job") == kept
        assert search(kernel="nothing") == []


class TestBests:
    def test_a_best_comes_back_with_all_its_trials(self, database: Database) -> None:
        add_job(database)
        tiled = add_trial(database, TRIAL)
        naive = add_trial(database, replace(TRIAL, kernel="naive"))
        vendor = add_trial(database, replace(TRIAL, kernel="vendor", config=Config(())))
        record = best(tiled, naive=naive, tiled=tiled, vendor=vendor, tuned_at=datetime.now(UTC))
        promote(database, record)
        assert database.read(lambda session: BestRepository(session).all()) == [record]

    def test_a_best_without_baselines_says_why(self, database: Database) -> None:
        add_job(database)
        record = best(add_trial(database, TRIAL), vendor_reason="not installed", tuned_at=NOW.astimezone(UTC))
        promote(database, record)
        assert database.read(lambda session: BestRepository(session).all()) == [record]

    def test_a_promotion_takes_the_place_of_the_one_before(self, database: Database) -> None:
        add_job(database)
        slow, fast = (add_trial(database, trial(number)) for number in (1, 2))
        other = add_trial(database, trial(3, problem=Problem(1, 1, 1)))
        promote(database, best(slow, vendor=fast), best(other))
        promote(database, best(fast, vendor_reason="gone"))
        found = database.read(lambda session: BestRepository(session).all())
        assert [(record.trial, record.vendor) for record in found] == [(other, None), (fast, None)]

    def test_all_bests_are_one_query(self, database: Database) -> None:
        add_job(database)
        for number in range(1, 20):
            saved = add_trial(database, trial(number, problem=Problem(number, 1, 1)))
            promote(database, best(saved, naive=saved))
        with statements(database) as seen:
            assert len(database.read(lambda session: BestRepository(session).all())) == 19
        assert len([statement for statement in seen if "SELECT" in statement]) == 1

    def test_a_best_of_an_unsaved_trial_is_refused(self, database: Database) -> None:
        with pytest.raises(ValueError, match="has not been saved"):
            promote(database, best(TRIAL))

    def test_a_best_of_another_problem_is_refused(self) -> None:
        with pytest.raises(ValueError, match="is no best of float32/strict/nn/1x1x1x1"):
            replace(best(TRIAL), problem=Problem(1, 1, 1))


class TestDevices:
    def test_a_device_comes_back_exactly_and_is_kept_once(self, database: Database) -> None:
        moved = replace(DEVICE, id="cuda:1", driver="580", limits=replace(LIMITS, sms=132, blocks_per_sm=32))
        twin = replace(DEVICE, uuid="GPU-5678", mig="1g.18gb")
        database.write(lambda session: DeviceRepository(session).save(DEVICE))
        database.write(lambda session: DeviceRepository(session).save(moved, twin))
        assert database.read(lambda session: DeviceRepository(session).all()) == [twin, moved]


class TestPlans:
    # SQLite says what it will do whatever the tables hold; PostgreSQL plans by their sizes.
    @pytest.mark.parametrize("shared_database", ["sqlite"], indirect=True)
    def test_the_hot_queries_use_their_indexes(self, database: Database) -> None:
        with statements(database) as seen:
            database.read(lambda session: TrialRepository(session).of_job("job", 5))
            database.read(lambda session: TrialRepository(session).search(problem_key="key", state="measured", after=5))
            database.read(lambda session: JobRepository(session).active("work"))
            database.read(lambda session: JobRepository(session).unfinished())
            database.read(lambda session: JobRepository(session).list(kind="tune", before="job"))
            database.read(lambda session: BestRepository(session).all())
        asked = [statement for statement in seen if statement.startswith("SELECT")]
        plans = database.read(lambda session: [_plan(session.connection(), statement) for statement in asked])
        assert ["ix_trials_job_id_id" in plans[0], "ix_trials_problem_key_id" in plans[1]] == [True, True], plans[:2]
        assert ["ix_jobs_fingerprint_number" in plans[2], "ix_jobs_state_number" in plans[3]] == [True, True], plans[
            2:4
        ]
        assert ["ix_jobs_kind_number" in plans[4], plans[5].count("USING INTEGER PRIMARY KEY")] == [True, 5], plans[4:]
        assert "TEMP B-TREE" not in "".join(plans[:3] + plans[4:])


def _plan(connection: Connection, statement: str) -> str:
    parameters = tuple(0 for _ in range(statement.count("?")))
    return "\n".join(str(row) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters))
