"""Rounds and samples of trials, the default beside a best, a job's time left, faults and wants.

Revision: 0002, after 0001, written 2026-11-21.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# SQLite numbers rows by itself in INTEGER columns only.
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True)
_ATTEMPT = ("job_id", "device_model", "problem_key", "kernel", "config_key")
_OLD_NAME = f"uq_trials_{'_'.join(_ATTEMPT)}"
_REFERRING = ("trial_id", "naive_id", "tiled_id", "vendor_id")


def upgrade() -> None:
    """Bring the schema here; every trial so far belongs to a search, and was timed by events."""
    _faults()
    _wants()
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("phase", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("eta_seconds", sa.Double(), nullable=True))
    _trials()
    with op.batch_alter_table("bests") as bests:
        bests.add_column(sa.Column("default_id", _NUMBER, nullable=True))
        bests.create_foreign_key(op.f("fk_bests_default_id"), "trials", ["default_id"], ["id"])


def downgrade() -> None:
    """Bring the schema back: of every config the search's trial stays, and bests refer to it."""
    for table in ("wants", "faults"):
        op.drop_table(table)
    with op.batch_alter_table("bests") as bests:
        bests.drop_constraint(op.f("fk_bests_default_id"), type_="foreignkey")
        bests.drop_column("default_id")
    _keep_one_round()
    with _copied() as trials:
        trials.drop_constraint("uq_trials_attempt", type_="unique")
        for name in ("round", "policy", "dropped", "seconds", "conditions", "retaken"):
            trials.drop_column(name)
        trials.create_unique_constraint(op.f(_OLD_NAME), list(_ATTEMPT))
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("eta_seconds")
        jobs.drop_column("phase")


def _copied() -> AbstractContextManager[BatchOperations]:
    """Change trials; where SQLite copies them, reflection does not tell that ids are never given twice."""
    return op.batch_alter_table("trials", table_kwargs={"sqlite_autoincrement": True})


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _trials() -> None:
    columns: dict[str, sa.types.TypeEngine[Any]] = {
        "round": sa.Text(),
        "policy": sa.Text(),
        "dropped": sa.Boolean(),
        "seconds": sa.JSON(),
        "conditions": _JSON,
        "retaken": sa.BigInteger(),
    }
    with op.batch_alter_table("trials") as trials:
        for name, kind in columns.items():
            trials.add_column(sa.Column(name, kind, nullable=True))
    op.execute("UPDATE trials SET round = 'search', dropped = FALSE, seconds = '[]', retaken = 0")
    op.execute("UPDATE trials SET policy = 'events' WHERE state = 'measured'")
    with _copied() as trials:
        for name in ("round", "dropped", "seconds", "retaken"):
            trials.alter_column(name, existing_type=columns[name], nullable=False)
        trials.drop_constraint(op.f(_OLD_NAME), type_="unique")
        trials.create_unique_constraint("uq_trials_attempt", [*_ATTEMPT, "round"])


def _keep_one_round() -> None:
    trials = sa.table("trials", *(sa.column(name) for name in ("id", "round", *_ATTEMPT)))
    search = trials.alias("search")
    same = sa.and_(search.c.round == "search", *(search.c[name] == trials.c[name] for name in _ATTEMPT))
    for only in ("report", "final"):
        alone = sa.and_(trials.c.round == only, ~sa.exists().where(same).correlate(trials))
        op.execute(sa.update(trials).where(alone).values(round="search"))
    bests = sa.table("bests", *(sa.column(name) for name in _REFERRING))
    for name in _REFERRING:
        found = sa.select(search.c.id).where(same, trials.c.id == bests.c[name]).correlate(bests).scalar_subquery()
        op.execute(sa.update(bests).where(bests.c[name].is_not(None)).values({name: found}))
    op.execute(sa.delete(trials).where(trials.c.round != "search"))


def _faults() -> None:
    place = ("device_model", "environment", "kernel", "kernel_digest", "config_key", "scope", "kind")
    op.create_table(
        "faults",
        sa.Column("id", _NUMBER, nullable=False),
        *_text("device_model", "environment", "kernel", "kernel_digest"),
        sa.Column("config", sa.JSON(), nullable=False),
        *_text("config_key", "scope", "kind", "stage", "reason"),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_faults_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_faults")),
        sa.UniqueConstraint(*place, name="uq_faults_place"),
    )


def _wants() -> None:
    op.create_table(
        "wants",
        *_text("device_model", "problem_key"),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("m", "n", "k", "batch")),
        *_text("dtype", "precision"),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in ("trans_a", "trans_b")),
        sa.Column("count", sa.BigInteger(), nullable=False),
        *_text("match"),
        *(sa.Column(name, _MOMENT, nullable=False) for name in ("first_at", "last_at")),
        sa.PrimaryKeyConstraint("device_model", "problem_key", name=op.f("pk_wants")),
    )
