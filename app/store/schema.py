"""Migrations of the schema at start, under a lock of one process at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

import app
from app.errors import SchemaUnknown
from app.store.engines import is_sqlite, migration_engine, normalised, reader_engine, refusing
from app.store.lock import LOCKS, MIGRATION

SCRIPTS: Final = Path(app.__file__).parent.parent / "migrations"  # beside the package, in a checkout as in a wheel
_alembic = threading.Lock()  # Alembic keeps the migration under way in a global


def migrate(url: str) -> None:
    """Create or migrate the database's schema in one transaction; other processes wait meanwhile.

    Raises SchemaUnknown if a newer program migrated it, StartRefused if the
    database cannot be opened.
    """
    with changing(url) as connection:
        config = configuration(connection)
        _refuse_unknown(connection, ScriptDirectory.from_config(config))
        command.upgrade(config, "head")


def current_revision(url: str) -> str | None:
    """The revision of the schema; None if there is none. Raises StartRefused."""
    parsed = normalised(url)
    if is_sqlite(parsed) and not Path(parsed.database or "").exists():
        return None
    engine = reader_engine(parsed)
    try:
        with refusing(parsed), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


@contextmanager
def changing(url: str) -> Iterator[Connection]:
    """A transaction that may change the schema, of one process at a time."""
    parsed = normalised(url)
    engine = migration_engine(parsed)
    with _alembic, refusing(parsed), engine.begin() as connection:
        if not is_sqlite(parsed):  # SQLite's write lock is held since the transaction began
            connection.execute(text("SELECT pg_advisory_xact_lock(:class, :lock)"), {"class": LOCKS, "lock": MIGRATION})
        yield connection
        _check_references(connection)


def configuration(connection: Connection) -> Config:
    """Alembic's configuration for commands in the connection's transaction; it reads no file and prints nothing."""
    config = Config(stdout=StringIO())
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _refuse_unknown(connection: Connection, scripts: ScriptDirectory) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    found = MigrationContext.configure(connection).get_current_heads()
    unknown = sorted(set(found) - known)
    if unknown:
        head = scripts.get_current_head()
        raise SchemaUnknown(
            f"the database's schema is {', '.join(unknown)}, newer than this program's {head}: "
            "start the newer program, or restore a copy of the database from before it ran",
            found=unknown,
            known=head,
        )


def _check_references(connection: Connection) -> None:
    """Check foreign keys, which were off during the migration."""
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise IntegrityError("PRAGMA foreign_key_check", None, ValueError(f"a reference is broken: {tuple(broken)}"))
