"""API keys, and whose each job is.

Revision: 0008, after 0007, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; jobs so far were made by the only caller that there was."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("quota", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("principal", sa.Text(), nullable=False, server_default="anonymous"))
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("principal", server_default=None)


def downgrade() -> None:
    """Bring the schema back; keys are forgotten."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("principal")
    op.drop_table("api_keys")
