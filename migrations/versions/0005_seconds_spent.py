"""The seconds that were spent on a job, by every process that worked on it.

Revision: 0005, after 0004, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; of jobs so far it is unknown."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("spent_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    """Bring the schema back."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("spent_seconds")
