"""The first schema: devices, jobs, trials and bests.

Revision: 0001, after none, written 2026-11-21.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite numbers rows by itself in INTEGER columns only.
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    """Bring the schema here; what is stored stays."""
    _devices()
    _jobs()
    _trials()
    _bests()


def downgrade() -> None:
    """Bring the schema back."""
    for table in ("bests", "trials", "jobs", "devices"):
        op.drop_table(table)


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _devices() -> None:
    op.create_table(
        "devices",
        *_text("model", "uuid", "host_id", "platform", "name", "architecture", "driver", "runtime", "compiler"),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("limits", _JSON, nullable=False),
        *_text("mig"),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("model", "uuid", name=op.f("pk_devices")),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", _NUMBER, nullable=False),
        *_text("id", "kind", "state", "fingerprint"),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("best_ms", sa.Double(), nullable=True),
        sa.Column("result", _JSON, nullable=True),
        sa.Column("error", _JSON, nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("started_at", _MOMENT, nullable=True),
        sa.Column("finished_at", _MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sqlite_autoincrement=True,
    )
    for column in ("fingerprint", "state", "kind"):
        op.create_index(op.f(f"ix_jobs_{column}_number"), "jobs", [column, "number"])


def _trials() -> None:
    once = ("job_id", "device_model", "problem_key", "kernel", "config_key")
    op.create_table(
        "trials",
        sa.Column("id", _NUMBER, nullable=False),
        *_text("job_id", "device_model", "device_uuid", "environment", "problem_key"),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("m", "n", "k", "batch")),
        *_text("dtype", "precision"),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in ("trans_a", "trans_b")),
        *_text("kernel", "kernel_digest"),
        sa.Column("config", sa.JSON(), nullable=False),
        *_text("config_key", "state"),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("stage", "reason")),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("median_ms", "ci95_lo_ms", "ci95_hi_ms")),
        sa.Column("samples", sa.BigInteger(), nullable=True),
        sa.Column("limited", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("relative_l2", "max_scaled")),
        sa.Column("registers", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.CheckConstraint("state = 'rejected' OR median_ms IS NOT NULL", name=op.f("ck_trials_measured")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint(*once, name=op.f(f"uq_trials_{'_'.join(once)}")),
        sqlite_autoincrement=True,
    )
    for column in ("job_id", "problem_key"):
        op.create_index(op.f(f"ix_trials_{column}_id"), "trials", [column, "id"])


def _bests() -> None:
    trials = ("trial_id", "naive_id", "tiled_id", "vendor_id")
    op.create_table(
        "bests",
        *_text("device_model", "problem_key"),
        *(sa.Column(name, _NUMBER, nullable=name != "trial_id") for name in trials),
        sa.Column("vendor_reason", sa.Text(), nullable=True),
        sa.Column("tuned_at", _MOMENT, nullable=False),
        *(sa.ForeignKeyConstraint([name], ["trials.id"], name=op.f(f"fk_bests_{name}")) for name in trials),
        sa.PrimaryKeyConstraint("device_model", "problem_key", name=op.f("pk_bests")),
    )
