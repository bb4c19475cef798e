"""What Alembic runs for every command: in the transaction it was handed, or in one on the settings' database."""

from __future__ import annotations

from typing import Literal

from alembic import context
from sqlalchemy import Connection, TypeDecorator

from app.settings import Settings
from app.store.schema import changing
from app.store.tables import Base


def plain_type(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Write a column's type into a new revision as the database knows it: a revision outlives the program's types."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl_instance!r}"
    return False


def run(connection: Connection) -> None:
    """Run the command's migrations. What SQLite cannot alter is copied; the same script serves both databases."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        compare_server_default=True,
        render_item=plain_type,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with changing(Settings().database) as opened:
        run(opened)
