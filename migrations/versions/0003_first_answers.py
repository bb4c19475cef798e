"""First answers to requests that carry an Idempotency-Key.

Revision: 0003, after 0002, written 2026-11-21.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; what is stored stays."""
    op.create_table(
        "answers",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("principal", "key", "fingerprint")),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("status", sa.BigInteger(), nullable=True),
        sa.Column("headers", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_answers_job_id")),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_created_at"), "answers", ["created_at"])


def downgrade() -> None:
    """Bring the schema back: keys are forgotten."""
    op.drop_table("answers")
