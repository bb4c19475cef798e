"""Imports of results, and the history of bests.

Revision: 0011, after 0010, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COPIED = (
    "device_model, problem_key, m, n, k, batch, dtype, precision, trans_a, trans_b, "
    "job_id, kernel, kernel_digest, config"
)
_TIMES = "environment, median_ms, ci95_lo_ms, ci95_hi_ms, samples, policy"


def upgrade() -> None:
    """Bring the schema here; the history begins with the bests that there are."""
    _create_history()
    columns = ", ".join(f"t.{name}" for name in f"{_COPIED}, {_TIMES}".split(", "))
    op.execute(
        f"INSERT INTO best_history (event, at, {_COPIED}, {_TIMES}, default_ms, vendor_ms) "  # noqa: S608 - our names
        f"SELECT 'promoted', b.tuned_at, {columns}, d.median_ms, v.median_ms FROM bests b "
        "JOIN trials t ON t.id = b.trial_id LEFT JOIN trials d ON d.id = b.default_id "
        "LEFT JOIN trials v ON v.id = b.vendor_id ORDER BY b.tuned_at, b.device_model, b.problem_key"
    )
    op.create_table(
        "imports",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_imports"),
    )
    op.create_index("ix_imports_principal_created_at", "imports", ["principal", "created_at"])
    op.create_table(
        "imported_spaces",
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("import_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("problem_key", sa.Text(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("best_config", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("best_ms", sa.Double(), nullable=True),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_imported_spaces"),
        sa.ForeignKeyConstraint(["import_id"], ["imports.id"], name="fk_imported_spaces_import_id"),
    )
    op.create_index("ix_imported_spaces_import_id_number", "imported_spaces", ["import_id", "number"])
    op.create_index("ix_imported_spaces_problem_key_number", "imported_spaces", ["problem_key", "number"])


def downgrade() -> None:
    """Bring the schema back; imports and history are forgotten."""
    op.drop_table("imported_spaces")
    op.drop_table("imports")
    op.drop_table("best_history")


def _create_history() -> None:
    """Make the table of the history."""
    numbers = ("median_ms", "ci95_lo_ms", "ci95_hi_ms")
    op.create_table(
        "best_history",
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("device_model", sa.Text(), nullable=False),
        sa.Column("problem_key", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("m", "n", "k", "batch")),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("trans_a", sa.Boolean(), nullable=False),
        sa.Column("trans_b", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("kernel_digest", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in numbers),
        sa.Column("samples", sa.BigInteger(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("default_ms", sa.Double(), nullable=True),
        sa.Column("vendor_ms", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("number", name="pk_best_history"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_best_history_problem_key_number", "best_history", ["problem_key", "number"])
