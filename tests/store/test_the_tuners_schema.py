"""From the first schema to the tuner's and back: what was stored stays, and what refers to it still does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from alembic import command
from sqlalchemy import Connection, inspect, text

from app.store.database import Database, migrate, open_database
from app.store.repository import BestRepository, FaultRepository, MissRepository, TrialRepository
from app.store.schema import changing, configuration
from tests.support.store.stored_records import (
    CONFIG,
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
)

pytest_plugins = ("tests.support.store.databases",)

# A job with two trials and a best, as the first schema has them.
FIRST: Final = {
    "jobs": "INSERT INTO jobs (number, id, kind, state, fingerprint, request, done, total, cancel_requested,"
    " created_at) VALUES (7, 'job', 'tune', 'running', 'f', '{}', 2, 9, FALSE, '2026-11-21 04:00:00')",
    "trials": "INSERT INTO trials (id, job_id, device_model, device_uuid, environment, problem_key, m, n, k, batch,"
    " dtype, precision, trans_a, trans_b, kernel, kernel_digest, config, config_key, state, stage, reason, median_ms,"
    " limited, created_at) VALUES"
    " (:id, 'job', :model, 'u', 'e', :key, 1000, 1200, 800, 3, 'float64', 'strict', FALSE, TRUE, :kernel, 'd', :config,"
    " :name, :state, NULL, NULL, :median, FALSE, '2026-11-21 04:00:00')",
    "bests": "INSERT INTO bests (device_model, problem_key, trial_id, naive_id, tuned_at)"
    " VALUES (:model, :key, 11, 11, '2026-11-21 04:00:00')",
}


def to(url: str, revision: str, *, up: bool = True) -> None:
    with changing(url) as connection:
        (command.upgrade if up else command.downgrade)(configuration(connection), revision)


def first_rows(connection: Connection) -> None:
    place = {"model": MODEL, "key": PROBLEM.key}
    one = {**place, "kernel": "tiled", "config": '{"BN": 64, "BM": 8, "BK": 16}', "name": str(CONFIG)}
    connection.execute(text(FIRST["jobs"]))
    connection.execute(text(FIRST["trials"]), {**one, "id": 11, "state": "measured", "median": 2.5})
    connection.execute(text(FIRST["trials"]), {**one, "id": 12, "kernel": "naive", "state": "rejected", "median": None})
    connection.execute(text(FIRST["bests"]), place)


@pytest.fixture
def first_schema(database_url: str) -> str:
    """A database of the first schema that holds a job, two trials and a best."""
    to(database_url, "0001")
    with changing(database_url) as connection:
        first_rows(connection)
    return database_url


@pytest.mark.rotating
def test_what_the_first_schema_held_is_read_as_trials_of_a_search(first_schema: str) -> None:
    migrate(first_schema)
    with open_database(first_schema) as database:
        measured, rejected = database.read(lambda session: TrialRepository(session).of_job("job"))
        (found,) = database.read(lambda session: BestRepository(session).all())
    assert (measured.id, measured.median_ms, measured.config, measured.problem) == (11, 2.5, CONFIG, PROBLEM)
    assert (measured.round, measured.policy, measured.dropped) == ("search", "events", False)
    assert (measured.seconds, measured.conditions, measured.retaken) == ((), None, 0)
    assert (rejected.round, rejected.policy) == ("search", None)
    assert (found.trial, found.naive, found.tiled, found.default) == (measured, measured, None, None)


def test_what_compiling_took_goes_with_its_revision_and_registers_stay(database_url: str) -> None:
    migrate(database_url)
    told = replace(TRIAL, compilation={"seconds": 0.25, "shared_bytes": 2048, "block": [16, 16]})
    with open_database(database_url) as database:
        add_job(database)
        saved = add_trial(database, told)
    assert saved.compilation == told.compilation
    with changing(database_url) as connection:
        command.downgrade(configuration(connection), "0014")
    migrate(database_url)
    with open_database(database_url) as database:
        (found,) = database.read(lambda session: TrialRepository(session).of_job("job"))
    assert found == replace(saved, compilation=None)
    assert found.registers == TRIAL.registers


def test_ids_go_on_rising_after_the_upgrade_and_the_old_rules_hold(first_schema: str) -> None:
    migrate(first_schema)
    with open_database(first_schema) as database:
        if first_schema.startswith("postgresql"):  # rows that were put in by id leave the sequence behind
            database.write(lambda session: session.execute(text("SELECT setval('trials_id_seq', 12)")))
        assert add_trial(database, replace(TRIAL, round="final")).id == 13
        database.write(lambda session: session.execute(text("DELETE FROM trials WHERE id = 13")))
        assert add_trial(database, replace(TRIAL, round="report")).id == 14
        for refused in (replace(TRIAL, round="report"), replace(TRIAL, round="final", median_ms=None)):
            with pytest.raises(ValueError, match="is refused"):
                add_trial(database, refused)


@pytest.mark.rotating
def test_the_schema_that_was_upgraded_is_the_one_that_a_new_database_has(first_schema: str) -> None:
    migrate(first_schema)
    with changing(first_schema) as connection:
        command.check(configuration(connection))
        checks = [check["name"] for check in inspect(connection).get_check_constraints("trials")]
        indexes = {index["name"] for index in inspect(connection).get_indexes("trials")}
    assert checks == ["ck_trials_measured"]
    assert {"ix_trials_job_id_id", "ix_trials_problem_key_id"} <= indexes


def tuned(database: Database) -> dict[str, Any]:
    """A tune's trials of three rounds, its best, a fault and a miss; the search's ids."""
    add_job(database)
    search = add_trial(database, TRIAL)
    default = add_trial(database, replace(TRIAL, kernel="naive"))
    add_trial(database, replace(REJECTED, kernel="other"))
    add_trial(database, replace(TRIAL, round="final", median_ms=1.0))
    report = add_trial(database, replace(TRIAL, round="report", median_ms=2.0))
    vendor = add_trial(database, replace(TRIAL, kernel="vendor", round="report", median_ms=3.0))
    promote(database, best(report, naive=default, tiled=report, vendor=vendor, default=default))
    database.write(lambda session: FaultRepository(session).add(fault("wrong")))
    database.write(lambda session: MissRepository(session).add([miss(PROBLEM)]))
    return {"trial_id": search.id, "naive_id": default.id, "tiled_id": search.id, "vendor_id": vendor.id}


@pytest.mark.rotating
def test_going_back_leaves_one_trial_of_each_config_and_the_bests_on_it(database_url: str) -> None:
    migrate(database_url)
    with open_database(database_url) as database:
        kept = tuned(database)
    to(database_url, "0001", up=False)
    with changing(database_url) as connection:
        (row,) = connection.execute(text("SELECT * FROM bests")).mappings()
        trials = connection.execute(text("SELECT kernel, median_ms FROM trials ORDER BY id")).all()
        found = set(inspect(connection).get_table_names())
    assert {name: row[name] for name in kept} == kept
    assert [tuple(one) for one in trials] == [
        ("tiled", TRIAL.median_ms),
        ("naive", TRIAL.median_ms),
        ("other", None),
        ("vendor", 3.0),
    ]
    assert found == {"alembic_version", "bests", "devices", "jobs", "trials"}
    migrate(database_url)
    with open_database(database_url) as database:
        (again,) = database.read(lambda session: BestRepository(session).all())
    assert (again.trial.id, again.trial.round, again.default) == (kept["trial_id"], "search", None)
    assert again.tuned_at == NOW


@pytest.mark.rotating
def test_figures_of_another_round_than_the_bests_go_with_a_reason(database_url: str) -> None:
    migrate(database_url)
    with open_database(database_url) as database:
        add_job(database)
        search = add_trial(database, replace(TRIAL, kernel="naive"))
        copied = add_trial(database, replace(TRIAL, kernel="naive", round="report"))
        fresh = add_trial(database, replace(TRIAL, round="report", seconds=(1e-3,)))
        add_trial(database, replace(TRIAL))
        vendor = add_trial(database, replace(TRIAL, kernel="vendor", round="report", seconds=(2e-3,)))
        promote(database, best(fresh, naive=copied, tiled=fresh, vendor=vendor, default=search))
    to(database_url, "0003", up=False)
    migrate(database_url)
    with open_database(database_url) as database:
        (found,) = database.read(lambda session: BestRepository(session).all())
    assert (found.trial, found.tiled, found.vendor) == (fresh, fresh, vendor)
    assert (found.naive, found.default) == (None, None)
    assert found.naive_reason == found.default_reason == "an earlier version measured it in another round: tune again"
    assert (found.tiled_reason, found.vendor_reason) == (None, None)
