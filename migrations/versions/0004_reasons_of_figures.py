"""Why a best has no figure of naive, tiled or the default; figures that are not of the best's own round go.

Revision: 0004, after 0003, written 2026-11-23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NAMES = ("naive", "tiled", "default")
_REASON = "an earlier version measured it in another round: tune again"
_ATTEMPT = ("job_id", "device_model", "problem_key", "kernel", "config_key")


def upgrade() -> None:
    """Bring the schema here; the trials stay, bests forget those that were not measured in turn with them."""
    with op.batch_alter_table("bests") as bests:
        for name in _NAMES:
            bests.add_column(sa.Column(f"{name}_reason", sa.Text(), nullable=True))
    for name in (*_NAMES, "vendor"):
        _forget(name)


def downgrade() -> None:
    """Bring the schema back: reasons are forgotten."""
    with op.batch_alter_table("bests") as bests:
        for name in _NAMES:
            bests.drop_column(f"{name}_reason")


def _forget(name: str) -> None:
    """Take a figure from the bests unless it is the winner's, or of the report and no copy of the search's."""
    trials = sa.table("trials", *(sa.column(each) for each in ("id", "round", "seconds", *_ATTEMPT)))
    bests = sa.table("bests", *(sa.column(each) for each in ("trial_id", f"{name}_id", f"{name}_reason")))
    search = trials.alias("search")
    copied = sa.and_(
        search.c.round == "search",
        sa.cast(search.c.seconds, sa.Text()) == sa.cast(trials.c.seconds, sa.Text()),
        *(search.c[each] == trials.c[each] for each in _ATTEMPT),
    )
    fresh = sa.and_(
        trials.c.id == bests.c[f"{name}_id"],
        trials.c.round == "report",
        ~sa.exists().where(copied).correlate(trials),
    )
    other = sa.and_(
        bests.c[f"{name}_id"].is_not(None),
        bests.c[f"{name}_id"] != bests.c.trial_id,
        ~sa.exists().where(fresh).correlate(bests),
    )
    op.execute(sa.update(bests).where(other).values({f"{name}_id": None, f"{name}_reason": _REASON}))
