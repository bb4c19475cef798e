"""The parameters of kernels by the names that CUDA, CUTLASS and Triton have for them.

Revision: 0006, after 0005, written 2026-11-23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NAMES = {
    "HELD": "MIN_BLOCKS",
    "SLICES": "SLICE_K",
    "GROUP": "GROUP_M",
    "REPACK": "PACK_MN",
    "ALIGNED": "PACK_K",
    "SWAP": "SWAP_AB",
    "BOXED": "TMA_STORE",
    "PROMOTE": "PROMOTE_K",
    "PER": "BATCH_PER_BLOCK",
    "STREAM_K": "STREAM_K_SMS",
}
AT_ONCE = 1000  # rows


def upgrade() -> None:
    """Rename the parameters in every config that is stored."""
    _rename(NAMES)


def downgrade() -> None:
    """Give them the names back that they had."""
    _rename({new: old for old, new in NAMES.items()})


def _rename(names: Mapping[str, str]) -> None:
    for table in ("trials", "faults"):
        _rename_configs(table, names)
    for column in ("request", "result"):
        _rename_within("jobs", column, names)


def _rename_configs(name: str, names: Mapping[str, str]) -> None:
    """Rewrite a table's configs, which stand in it as JSON and once more as text."""
    table = sa.table(name, sa.column("id"), sa.column("config", sa.JSON), sa.column("config_key"))
    new = {"config": sa.bindparam("config_", type_=sa.JSON), "config_key": sa.bindparam("key_")}
    update = sa.update(table).where(table.c.id == sa.bindparam("at")).values(new)
    for rows in _pages(table.c.id, table.c.config):
        renamed = [(at, _renamed(config, names)) for at, config in rows if not names.keys().isdisjoint(config)]
        if renamed:
            op.get_bind().execute(update, [{"at": at, "config_": one, "key_": _key(one)} for at, one in renamed])


def _rename_within(name: str, column: str, names: Mapping[str, str]) -> None:
    """Rewrite all that is called config anywhere within a column of JSON."""
    table = sa.table(name, sa.column("number"), sa.column(column, sa.JSON))
    update = sa.update(table).where(table.c.number == sa.bindparam("at"))
    update = update.values({column: sa.bindparam("new", type_=sa.JSON)})
    for rows in _pages(table.c.number, table.c[column]):
        changed = [(at, _within(value, names)) for at, value in rows if value != _within(value, names)]
        if changed:
            op.get_bind().execute(update, [{"at": at, "new": one} for at, one in changed])


def _pages(number: sa.ColumnElement[Any], value: sa.ColumnElement[Any]) -> Iterator[list[tuple[int, Any]]]:
    """Rows in the order of their numbers, some at a time."""
    last = 0
    while (
        rows := op.get_bind()
        .execute(sa.select(number, value).where(number > last).order_by(number).limit(AT_ONCE))
        .all()
    ):
        yield [(at, found) for at, found in rows]
        last = rows[-1][0]


def _within(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_within(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _renamed(each, names) if key == "config" and isinstance(each, dict) else _within(each, names)
        for key, each in value.items()
    }


def _renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in config.items()}


def _key(config: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in config.items())
