"""The table of misses under the name that the program has for them.

Revision: 0007, after 0006, written 2026-11-23.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_NUMBERS = ("m", "n", "k", "batch", "count")
_FLAGS = ("trans_a", "trans_b")
_MOMENTS = ("first_at", "last_at")
_COLUMNS = (
    *("device_model", "problem_key", "m", "n", "k", "batch", "dtype", "precision"),
    *(*_FLAGS, "count", "match", *_MOMENTS),
)


def upgrade() -> None:
    """Move the rows of wants to misses."""
    _move("wants", "misses")


def downgrade() -> None:
    """Move them back."""
    _move("misses", "wants")


def _move(old: str, new: str) -> None:
    """Make the table anew, as SQLite cannot rename its primary key."""
    op.create_table(
        new,
        *(sa.Column(name, _type(name), nullable=False) for name in _COLUMNS),
        sa.PrimaryKeyConstraint("device_model", "problem_key", name=op.f(f"pk_{new}")),
    )
    source, target = (sa.table(name, *(sa.column(each) for each in _COLUMNS)) for name in (old, new))
    op.execute(sa.insert(target).from_select(_COLUMNS, sa.select(source)))
    op.drop_table(old)


def _type(name: str) -> sa.types.TypeEngine[Any]:
    if name in _NUMBERS:
        return sa.BigInteger()
    if name in _FLAGS:
        return sa.Boolean()
    return sa.DateTime(timezone=True) if name in _MOMENTS else sa.Text()
