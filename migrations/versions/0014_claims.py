"""Claims: which service runs a job, until when, and the fence that its writes must name.

Revision: 0014, after 0013, written 2026-11-25.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; nobody has claimed the jobs that there are."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("device_models", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("version", sa.BigInteger(), nullable=True))
        jobs.add_column(sa.Column("claimed_by", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("fence", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Bring the schema back; who runs what is forgotten."""
    with op.batch_alter_table("jobs") as jobs:
        for name in ("fence", "lease_until", "claimed_by", "version", "device_models"):
            jobs.drop_column(name)
