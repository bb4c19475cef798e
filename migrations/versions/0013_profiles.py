"""Profiles: what counters, drivers and the model say of a problem's kernels.

Revision: 0013, after 0012, written 2026-11-24.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here."""
    op.create_table(
        "profiles",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("id", "device", "device_model", "environment")),
        sa.Column("problem_key", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("m", "n", "k", "batch")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("dtype", "precision")),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in ("trans_a", "trans_b")),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_profiles"),
        sa.UniqueConstraint("id", name="uq_profiles_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_profiles_problem_key_number", "profiles", ["problem_key", "number"])


def downgrade() -> None:
    """Bring the schema back; profiles are forgotten."""
    op.drop_index("ix_profiles_problem_key_number", "profiles")
    op.drop_table("profiles")
