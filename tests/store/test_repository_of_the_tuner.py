"""What the store tells a tuner, on SQLite and on PostgreSQL alike: rounds, faults, misses, and other places' times."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.store.database import Database
from app.store.records import CrossRecord, FaultRecord, KnownRecord, MissRecord, TrialRecord
from app.store.repository import BestRepository, FaultRepository, JobRepository, MissRepository, TrialRepository
from kernels.problem import Problem
from kernels.space import Config
from tests.support.store.stored_records import (
    MODEL,
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

pytest_plugins = ("tests.support.store.databases",)

DIGEST, ENVIRONMENT = TRIAL.kernel_digest, TRIAL.environment


def config(number: int) -> Config:
    return Config((("BM", number),))


class TestRounds:
    @pytest.mark.rotating
    def test_a_config_has_one_trial_of_each_round_in_a_job(self, database: Database) -> None:
        add_job(database)
        saved = [add_trial(database, replace(TRIAL, round=name)) for name in ("search", "final", "report")]
        with pytest.raises(ValueError, match="is refused"):
            add_trial(database, replace(TRIAL, round="final"))
        assert database.read(lambda session: TrialRepository(session).of_job("job")) == saved
        assert database.read(lambda session: TrialRepository(session).search(round="report")) == saved[2:]

    def test_a_trial_of_one_sample_has_no_interval(self, database: Database) -> None:
        add_job(database)
        saved = add_trial(database, replace(TRIAL, ci95_lo_ms=None, ci95_hi_ms=None, samples=1, seconds=(0.25,)))
        assert database.read(lambda session: TrialRepository(session).of_job("job")) == [saved]

    def test_samples_are_kept_to_the_nanosecond(self, database: Database) -> None:
        add_job(database)
        add_trial(database, replace(TRIAL, seconds=(1.23456789012e-4, 0.0)))
        (found,) = database.read(lambda session: TrialRepository(session).of_job("job"))
        assert found.seconds == (1.23457e-4, 0.0)

    def test_finals_that_are_done_again_take_the_place_of_the_jobs_own(self, database: Database) -> None:
        add_job(database)
        add_job(database, "other")
        kept = [add_trial(database, TRIAL), add_trial(database, replace(TRIAL, job_id="other", round="final"))]
        kept.append(add_trial(database, replace(TRIAL, problem=Problem(1, 1, 1), round="report")))
        old = [add_trial(database, replace(TRIAL, round=name)) for name in ("final", "report")]
        promote(database, best(old[1], default=old[0]), best(kept[2]))

        def again(session: Any) -> None:
            TrialRepository(session).redo("job", MODEL, PROBLEM)
            number = TrialRepository(session).add(replace(TRIAL, round="report"))
            BestRepository(session).promote(best(replace(TRIAL, id=number, round="report")))

        database.write(again)
        found = database.read(lambda session: TrialRepository(session).search())
        assert found[:-1] == kept
        bests = database.read(lambda session: BestRepository(session).all())
        assert [record.trial for record in bests] == [kept[2], found[-1]]


class TestTop:
    def test_finalists_come_first_each_config_once_and_wrong_ones_never(self, database: Database) -> None:
        add_job(database)
        add_job(database, "other")
        for number in range(1, 7):
            add_trial(database, trial(number, median_ms=float(number)))
        add_trial(database, trial(9, kernel="vendor", median_ms=0.1))
        add_trial(database, trial(8, job_id="other", median_ms=0.1))
        finals = [add_trial(database, trial(number, round="final", median_ms=10.0 - number)) for number in (2, 3)]
        add_trial(database, replace(REJECTED, kernel="tiled", config=config(1), round="final", stage="verify"))
        add_trial(database, trial(3, round="report", median_ms=0.5))
        top = database.read(lambda session: TrialRepository(session).top("job", MODEL, PROBLEM, 4))
        assert top[:2] == finals[::-1]
        assert [record.config["BM"] for record in top] == [3, 2, 4, 5]


class TestKnown:
    def known(self, database: Database, most: int = 8, **other: Any) -> list[KnownRecord]:
        asked: dict[str, Any] = {"kernel": "tiled", "kernel_digest": DIGEST, "problem": PROBLEM, "device_model": MODEL}
        return database.read(lambda session: TrialRepository(session).known(**{**asked, **other}, most=most))

    def tuned(self, database: Database, job: str, problem: Problem, model: str = MODEL, **other: Any) -> None:
        """Two configs' times on a problem that has a best."""
        add_job(database, job)
        for number in (1, 2):
            one = trial(number, job_id=job, problem=problem, device_model=model, median_ms=float(number), **other)
            saved = add_trial(database, one)
        promote(database, best(saved))

    def test_other_devices_come_first_then_the_nearest_shapes(self, database: Database) -> None:
        far, near = replace(PROBLEM, m=PROBLEM.m * 8), replace(PROBLEM, k=PROBLEM.k * 2)
        self.tuned(database, "far", far)
        self.tuned(database, "near", near)
        self.tuned(database, "there", PROBLEM, "B")
        self.tuned(database, "here", PROBLEM)
        self.tuned(database, "elsewhere", near, "B")
        self.tuned(database, "another family", replace(PROBLEM, trans_a=True))
        times = {config(1): 1.0, config(2): 2.0}
        expected = [KnownRecord("B", PROBLEM, times), KnownRecord(MODEL, near, times), KnownRecord(MODEL, far, times)]
        assert self.known(database) == expected
        assert self.known(database, most=1) == expected[:2]
        assert self.known(database, kernel="naive") == self.known(database, kernel_digest="another") == []

    def test_the_newest_time_of_a_config_counts_and_reports_do_not(self, database: Database) -> None:
        near = replace(PROBLEM, k=PROBLEM.k * 2)
        self.tuned(database, "first", near)
        self.tuned(database, "second", near, environment="another")
        add_trial(database, trial(1, job_id="second", problem=near, round="final", median_ms=1.5))
        add_trial(database, trial(2, job_id="second", problem=near, round="report", median_ms=9.0))
        add_trial(database, replace(REJECTED, kernel="tiled", config=config(3), job_id="second", problem=near))
        assert self.known(database) == [KnownRecord(MODEL, near, {config(1): 1.5, config(2): 2.0})]

    def test_nothing_is_known_where_nothing_was_tuned(self, database: Database) -> None:
        assert self.known(database) == []


class TestCrossed:
    def test_it_gives_what_winners_took_on_each_others_problems(self, database: Database) -> None:
        add_job(database)
        one, two = PROBLEM, replace(PROBLEM, k=1)
        other = replace(PROBLEM, trans_a=True)
        saved: dict[tuple[int, Problem], TrialRecord] = {}
        for problem in (one, two, other):
            for number in (1, 2, 3):
                saved[number, problem] = add_trial(database, trial(number, problem=problem, median_ms=float(number)))
        promote(database, best(saved[1, one]), best(saved[2, two]), best(saved[3, other]))
        add_job(database, "old")
        add_trial(database, trial(2, job_id="old", environment="another"))
        add_trial(database, trial(2, job_id="old", environment=ENVIRONMENT, kernel_digest="another", round="final"))
        final = add_trial(database, trial(2, round="final", median_ms=7.0, dropped=False, samples=5))
        add_trial(database, trial(2, round="report", median_ms=8.0))
        found = database.read(lambda session: BestRepository(session).crossed())
        pairs = [(number, problem) for problem in (one, two) for number in (1, 2)] + [(3, other)]
        assert found[:-1] == [crossed(saved[pair]) for pair in pairs]
        assert found[-1] == crossed(final)
        assert database.read(lambda session: BestRepository(session).crossed(limit=2)) == found[-2:]


def crossed(record: TrialRecord) -> CrossRecord:
    place = record.device_model, record.problem, record.kernel, record.config
    assert record.median_ms is not None
    assert record.samples is not None
    return CrossRecord(*place, record.round, record.median_ms, record.samples, record.dropped)


class TestBests:
    def test_a_best_comes_back_with_the_untuned_choice(self, database: Database) -> None:
        add_job(database)
        report, default = (add_trial(database, trial(number, round="report")) for number in (1, 2))
        record = best(report, default=default, tuned_at=report.created_at)
        promote(database, record)
        assert database.read(lambda session: BestRepository(session).all()) == [record]


class TestFaults:
    def of(self, database: Database, model: str = MODEL, environment: str = ENVIRONMENT) -> list[FaultRecord]:
        return database.read(lambda session: FaultRepository(session).of(model, environment))

    def test_faults_come_back_exactly_for_their_model_and_environment(self, database: Database) -> None:
        add_job(database)
        kept = [fault(kind) for kind in ("wrong", "compile", "timeout")] + [fault("died", job_id=None)]
        others = [fault("wrong", device_model="B"), fault("launch", environment="another")]
        database.write(lambda session: FaultRepository(session).add(*kept, *others))
        assert self.of(database) == kept
        assert self.of(database, "B") == others[:1]
        assert self.of(database, environment="another") == others[1:]
        assert database.read(lambda session: FaultRepository(session).held()) == [kept[0], kept[3], others[0]]

    def test_a_fault_seen_again_is_kept_once_with_its_first_reason(self, database: Database) -> None:
        add_job(database)
        first = fault("launch")
        elsewhere = fault("launch", scope=Problem(1, 1, 1).key)
        changed = fault("launch", kernel_digest="another")
        for record in (first, fault("launch", reason="again"), elsewhere, changed):
            database.write(lambda session, one=record: FaultRepository(session).add(one))  # type: ignore[misc]
        assert self.of(database) == [first, elsewhere, changed]

    def test_a_fault_concerns_what_its_scope_covers(self) -> None:
        neighbour, stranger = replace(PROBLEM, m=1), replace(PROBLEM, trans_a=True)
        asked = (PROBLEM, neighbour, stranger)
        assert [fault("wrong").concerns(problem) for problem in asked] == [True, True, True]
        assert [fault("compile").concerns(problem) for problem in asked] == [True, True, False]
        assert [fault("launch").concerns(problem) for problem in asked] == [True, False, False]

    def test_a_drivers_odd_bytes_do_not_lose_the_fault(self, database: Database) -> None:
        add_job(database)
        database.write(lambda session: FaultRepository(session).add(fault("died", reason="a\0b")))
        assert self.of(database)[0].reason == "a\N{REPLACEMENT CHARACTER}b"


class TestMisses:
    def most(self, database: Database, limit: int = 9) -> list[MissRecord]:
        return database.read(lambda session: MissRepository(session).most_frequent(limit))

    def add(self, database: Database, *records: MissRecord) -> None:
        database.write(lambda session: MissRepository(session).add(records))

    def test_counts_add_up_and_the_last_answer_is_remembered(self, database: Database) -> None:
        late = miss(PROBLEM).last_at + timedelta(hours=1)
        self.add(database, miss(PROBLEM, 2))
        self.add(database, miss(PROBLEM, 3, match="default", first_at=late, last_at=late))
        assert self.most(database) == [miss(PROBLEM, 5, match="default", last_at=late)]

    def test_one_shape_twice_in_one_write_is_counted_twice(self, database: Database) -> None:
        self.add(database, miss(PROBLEM, 2), miss(PROBLEM, 1))
        assert [record.count for record in self.most(database)] == [3]

    def test_the_most_wanted_come_first_and_of_equals_the_latest(self, database: Database) -> None:
        early, late, often, elsewhere = (replace(PROBLEM, m=number) for number in (1, 2, 3, 4))
        moment = miss(PROBLEM).last_at + timedelta(seconds=1)
        self.add(
            database, miss(early), miss(late, last_at=moment), miss(often, 7), miss(elsewhere, 6, device_model="B")
        )
        assert [record.problem for record in self.most(database)] == [often, elsewhere, late, early]
        assert [record.problem for record in self.most(database, 1)] == [often]
        one = database.read(lambda session: MissRepository(session).most_frequent(1, "B"))
        assert [record.problem for record in one] == [elsewhere]

    def test_a_tuned_shape_is_forgotten_on_its_model_alone(self, database: Database) -> None:
        self.add(database, miss(PROBLEM), miss(PROBLEM, device_model="B"))
        database.write(lambda session: MissRepository(session).forget(MODEL, PROBLEM))
        assert [record.device_model for record in self.most(database)] == ["B"]


class TestJobs:
    def test_progress_tells_what_the_job_does_and_how_long_it_takes(self, database: Database) -> None:
        add_job(database)
        seen = []
        steps = [
            lambda jobs: jobs.start("job", 7, NOW),
            lambda jobs: jobs.advance("job", 2.5, 30.0),
            lambda jobs: jobs.enter("job", "finals", 4.0),
            lambda jobs: jobs.finish("job", "succeeded", None, None, NOW),
        ]
        for step in steps:
            database.write(lambda session, one=step: one(JobRepository(session)))  # type: ignore[misc]
            record = database.read(lambda session: JobRepository(session).get("job"))
            assert record is not None
            seen.append((record.done, record.phase, record.eta_seconds))
        assert seen == [(0, None, None), (1, "search", 30.0), (1, "finals", 4.0), (1, None, None)]

    def test_a_job_that_is_postponed_waits_again(self, database: Database) -> None:
        add_job(database)
        database.write(lambda session: JobRepository(session).start("job", 7, NOW))
        database.write(lambda session: JobRepository(session).advance("job", 2.5, 30.0))
        database.write(lambda session: JobRepository(session).postpone("job"))
        record = database.read(lambda session: JobRepository(session).get("job"))
        assert record is not None
        assert (record.state, record.done, record.phase, record.eta_seconds) == ("queued", 1, None, None)
        assert database.write(lambda session: JobRepository(session).start("job", 9, NOW))

    @pytest.mark.parametrize("state", ["queued", "running"])
    def test_a_job_is_upgraded_until_it_ends(self, database: Database, state: str) -> None:
        add_job(database, state=state)
        assert database.write(lambda session: JobRepository(session).upgrade("job", {"trials": 9}, "more", 12))
        record = database.read(lambda session: JobRepository(session).get("job"))
        assert record is not None
        assert (record.request, record.fingerprint, record.total, record.state) == ({"trials": 9}, "more", 12, state)
        database.write(lambda session: JobRepository(session).request_cancel("job"))
        assert not database.write(lambda session: JobRepository(session).upgrade("job", {}, "none"))
        assert not database.write(lambda session: JobRepository(session).upgrade("nobody", {}, "none"))
