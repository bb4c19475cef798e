"""Cordons of devices, and ages of first answers that a change of the wall clock does not change.

Revision: 0009, after 0008, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; first answers so far are as old as the service, which counts from now on."""
    op.create_table(
        "cordons",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("imposed_by", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_cordons"),
    )
    with op.batch_alter_table("answers") as answers:
        answers.add_column(sa.Column("service_seconds", sa.Double(), nullable=False, server_default="0"))
    with op.batch_alter_table("answers") as answers:
        answers.alter_column("service_seconds", server_default=None)
        answers.drop_index("ix_answers_created_at")
        answers.create_index("ix_answers_service_seconds", ["service_seconds"])


def downgrade() -> None:
    """Bring the schema back; cordons are forgotten."""
    with op.batch_alter_table("answers") as answers:
        answers.drop_index("ix_answers_service_seconds")
        answers.create_index("ix_answers_created_at", ["created_at"])
        answers.drop_column("service_seconds")
    op.drop_table("cordons")
