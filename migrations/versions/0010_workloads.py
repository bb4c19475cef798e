"""Workloads: the counted products of programs.

Revision: 0010, after 0009, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here."""
    op.create_table(
        "workloads",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name="pk_workloads"),
        sa.UniqueConstraint("id", name="uq_workloads_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_workloads_principal_number", "workloads", ["principal", "number"])


def downgrade() -> None:
    """Bring the schema back; workloads are forgotten."""
    op.drop_index("ix_workloads_principal_number", "workloads")
    op.drop_table("workloads")
