"""The schema: brought to head once by whoever comes first, all or nothing, and never past what the program knows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from app.errors import SchemaUnknown, StartRefused
from app.store import schema
from app.store.database import current_revision, migrate, open_database
from app.store.repository import BestRepository, FaultRepository, JobRepository, MissRepository, TrialRepository
from app.store.schema import changing, configuration
from app.store.tables import Base
from kernels.space import Config
from tests.support.store.stored_records import (
    PROBLEM,
    TRIAL,
    add_job,
    add_trial,
    best,
    fault,
    job,
    miss,
    process,
    promote,
    trial,
)

pytest_plugins = ("tests.support.store.databases",)

HEAD = "0015"
TABLES = {
    "alembic_version",
    "answers",
    "api_keys",
    "best_history",
    "bests",
    "cache_entries",
    "cordons",
    "devices",
    "faults",
    "imported_spaces",
    "imports",
    "jobs",
    "misses",
    "profiles",
    "trials",
    "workloads",
}
NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "0016", "0015", None, None
def upgrade():
    with op.batch_alter_table("trials", recreate="auto") as batch:
        batch.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="none"))
        batch.alter_column("registers", new_column_name="register_count")
    {more}
def downgrade():
    with op.batch_alter_table("trials") as batch:
        batch.alter_column("register_count", new_column_name="registers")
        batch.drop_column("note")
"""


def tables(url: str) -> set[str]:
    with changing(url) as connection:
        return set(inspect(connection).get_table_names())


def description(connection: Connection) -> dict[str, list[str]]:
    """Each table's columns, keys, checks and indexes, in no order but their own: the database gives them as it will."""
    found = inspect(connection)
    parts = (
        found.get_columns,
        found.get_foreign_keys,
        found.get_unique_constraints,
        found.get_check_constraints,
        found.get_indexes,
    )
    return {
        table: [
            str(found.get_pk_constraint(table)),
            *(each for part in parts for each in sorted(str(sorted(one.items(), key=str)) for one in part(table))),
        ]
        for table in found.get_table_names()
    }


def with_a_revision_more(monkeypatch: pytest.MonkeyPatch, folder: Path, more: str = "") -> None:
    scripts = folder / "migrations"
    shutil.copytree(schema.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "0016_more.py").write_text(NEXT.format(more=more))
    monkeypatch.setattr(schema, "SCRIPTS", scripts)


def store_a_best(url: str) -> None:
    with open_database(url) as database:
        add_job(database)
        promote(database, best(add_trial(database, TRIAL)))


def test_a_new_database_gets_the_whole_schema(database_url: str) -> None:
    assert current_revision(database_url) is None
    migrate(database_url)
    assert current_revision(database_url) == HEAD
    assert tables(database_url) == TABLES


def test_asking_for_a_files_revision_does_not_make_the_file(sqlite_url: str) -> None:
    assert current_revision(sqlite_url) is None
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    migrate(database_url)
    store_a_best(database_url)
    migrate(database_url)
    with open_database(database_url) as database:
        assert len(database.read(lambda session: BestRepository(session).all())) == 1


def test_the_migrations_make_the_tables_that_the_program_declares(database_url: str) -> None:
    with changing(database_url) as connection:
        command.upgrade(configuration(connection), "head")
        command.check(configuration(connection))


@pytest.mark.rotating
def test_a_new_database_is_made_as_the_migrations_would_make_it(database_url: str) -> None:
    with changing(database_url) as connection:
        command.upgrade(configuration(connection), "head")
        migrated = description(connection)
        for table in reversed(Base.metadata.sorted_tables):
            table.drop(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    migrate(database_url)
    with changing(database_url) as connection:
        command.check(configuration(connection))
        assert description(connection) == migrated
        assert set(migrated) == TABLES


def test_the_revisions_are_those_that_alembic_finds() -> None:
    scripts = ScriptDirectory(str(schema.SCRIPTS))
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(schema.revisions()))
    assert scripts.get_heads() == [schema.revisions()[-1]] == [HEAD]


@pytest.mark.rotating
@pytest.mark.parametrize("made", [False, True], ids=["empty", "current"])
def test_a_start_that_has_nothing_to_migrate_loads_no_migrations(sqlite_url: str, made: bool) -> None:
    if made:
        migrate(sqlite_url)
    program = (
        "import sys\n"
        "from app.store.database import current_revision, migrate\n"
        "migrate(sys.argv[1]); print(current_revision(sys.argv[1]))\n"
        "print(*[name for name in ('alembic', 'mako') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program, sqlite_url], capture_output=True, check=True, text=True)
    assert found.stdout == f"{HEAD}\n\n"


@pytest.mark.rotating
def test_the_schema_goes_down_to_nothing_and_up_again(database_url: str) -> None:
    migrate(database_url)
    store_a_best(database_url)
    with changing(database_url) as connection:
        command.downgrade(configuration(connection), "base")
    assert tables(database_url) == {"alembic_version"}
    assert current_revision(database_url) is None
    migrate(database_url)
    store_a_best(database_url)


@pytest.mark.slow
def test_processes_that_migrate_at_once_all_find_the_schema_made(database_url: str, tmp_path: Path) -> None:
    program = (
        "import os, sys; os.chdir(sys.argv[2])\n"
        "from app.store.database import current_revision, migrate\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "migrate(sys.argv[1]); print(current_revision(sys.argv[1]), flush=True)"
    )
    with ExitStack() as stack:
        children = [stack.enter_context(process(program, database_url, str(tmp_path))) for _ in range(2)]
        assert [output.readline() for _, output in children] == ["ready\n"] * 2
        for child, _ in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        assert [output.readline() for _, output in children] == [f"{HEAD}\n"] * 2


def test_a_newer_schema_is_refused_with_what_to_do(database_url: str) -> None:
    migrate(database_url)
    with changing(database_url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaUnknown, match="9999, newer than this program's 0015: start the newer program, or"):
        migrate(database_url)


@pytest.mark.rotating
def test_a_later_revision_keeps_what_is_stored_and_what_refers_to_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database_url)
    store_a_best(database_url)
    with monkeypatch.context() as patch:
        with_a_revision_more(patch, tmp_path)
        migrate(database_url)
        with changing(database_url) as connection:
            row = connection.execute(text("SELECT register_count, note FROM trials")).one()
            assert tuple(row) == (TRIAL.registers, "none")
            command.downgrade(configuration(connection), HEAD)
    with changing(database_url) as connection:
        command.check(configuration(connection))
    with open_database(database_url) as database:
        (kept,) = database.read(lambda session: TrialRepository(session).of_job("job"))
        (found,) = database.read(lambda session: BestRepository(session).all())
    assert found.trial == kept
    assert kept.config == TRIAL.config


@pytest.mark.rotating
def test_parameters_of_kernels_are_renamed_wherever_a_config_is_stored(database_url: str) -> None:
    old = {"BM": 64, "HELD": 2, "STREAM_K": 132, "PER": 1, "GROUP": 8}
    new = {"BM": 64, "MIN_BLOCKS": 2, "STREAM_K_SMS": 132, "BATCH_PER_BLOCK": 1, "GROUP_M": 8}
    asked = {"HELD": "no parameter", "configs": [{"kernel": "tall", "config": old}, {"kernel": "naive", "config": {}}]}
    migrate(database_url)
    with open_database(database_url) as database:
        add_job(database, request=asked, result={"shapes": [{"config": old}]})
        add_job(database, "another", fingerprint="another")
        promote(database, best(add_trial(database, replace(TRIAL, config=Config.of(old)))))
        add_trial(database, trial(7))
        database.write(lambda session: FaultRepository(session).add(fault("wrong", config=Config.of(old))))
    with changing(database_url) as connection:
        command.downgrade(configuration(connection), "0006")
        connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))
    migrate(database_url)
    with open_database(database_url) as database:
        (found,) = database.read(lambda session: BestRepository(session).all())
        trials = database.read(lambda session: TrialRepository(session).of_job("job"))
        (failed,) = database.read(lambda session: FaultRepository(session).held())
        work = database.read(lambda session: JobRepository(session).get("job"))
        other = database.read(lambda session: JobRepository(session).get("another"))
    assert [each.config for each in trials] == [Config.of(new), Config.of({"BM": 7})]
    assert (found.trial, failed.config) == (trials[0], Config.of(new))
    assert work is not None
    assert work.request == asked | {"configs": [{"kernel": "tall", "config": new}, {"kernel": "naive", "config": {}}]}
    assert work.result == {"shapes": [{"config": new}]}
    assert other == job("another", fingerprint="another")
    keys = text("SELECT config_key FROM trials UNION SELECT config_key FROM faults")
    with changing(database_url) as connection:
        assert set(connection.execute(keys).scalars()) == {str(Config.of(new)), "BM=7"}
        command.downgrade(configuration(connection), "0005")
        assert set(connection.execute(keys).scalars()) == {str(Config.of(old)), "BM=7"}


@pytest.mark.rotating
def test_misses_keep_their_counts_under_the_new_name_of_their_table(database_url: str) -> None:
    migrate(database_url)
    with open_database(database_url) as database:
        database.write(lambda session: MissRepository(session).add([miss(PROBLEM, 3)]))
    with changing(database_url) as connection:
        command.downgrade(configuration(connection), "0006")
    assert tables(database_url) == TABLES - {
        "misses",
        "api_keys",
        "cordons",
        "best_history",
        "imports",
        "imported_spaces",
        "workloads",
        "cache_entries",
        "profiles",
    } | {"wants"}
    migrate(database_url)
    assert tables(database_url) == TABLES
    with open_database(database_url) as database:
        assert database.read(lambda session: MissRepository(session).most_frequent()) == [miss(PROBLEM, 3)]


@pytest.mark.slow
def test_more_rows_than_are_rewritten_at_once_are_rewritten(sqlite_url: str) -> None:
    migrate(sqlite_url)
    configs = [Config.of({"BM": number, "HELD": 1}) for number in range(2500)]
    with open_database(sqlite_url) as database:
        add_job(database)
        database.write(
            lambda session: [TrialRepository(session).add(replace(TRIAL, config=config)) for config in configs]
        )
    with changing(sqlite_url) as connection:
        command.downgrade(configuration(connection), "0006")
        connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))
    migrate(sqlite_url)
    with open_database(sqlite_url) as database:
        trials = database.read(lambda session: TrialRepository(session).of_job("job"))
    assert [dict(each.config) for each in trials] == [{"BM": number, "MIN_BLOCKS": 1} for number in range(2500)]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("more", ["op.execute('NO SUCH STATEMENT')", "op.execute('DELETE FROM jobs')"])
def test_a_revision_that_fails_leaves_nothing_behind(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    migrate(database_url)
    store_a_best(database_url)
    with_a_revision_more(monkeypatch, tmp_path, more)
    with pytest.raises(StartRefused, match="cannot be opened"):
        migrate(database_url)
    assert current_revision(database_url) == HEAD
    with open_database(database_url) as database:
        assert len(database.read(lambda session: BestRepository(session).all())) == 1


def test_a_new_revision_names_types_that_outlive_the_program(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_revision_more(monkeypatch, tmp_path)
    (schema.SCRIPTS / "versions" / "0016_more.py").unlink()
    migrate(sqlite_url)

    def written(connection: Connection) -> str:
        connection.execute(text("DROP TABLE bests"))
        command.revision(configuration(connection), "Bests again", autogenerate=True, rev_id="0016")
        return (schema.SCRIPTS / "versions" / "0016_bests_again.py").read_text()

    with changing(sqlite_url) as connection:
        script = written(connection)
    assert "sa.Column('tuned_at', sa.DateTime(timezone=True), nullable=False)" in script
    assert "app." not in script
