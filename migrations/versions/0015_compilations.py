"""Compilations: what compiling a trial's config took, and what its launch takes.

Revision: 0015, after 0014, written 2026-11-25.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here; of the trials that there are, nothing more is known than registers."""
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("compilation", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Bring the schema back; what is known of compilations is forgotten."""
    with op.batch_alter_table("trials") as trials:
        trials.drop_column("compilation")
