"""The schema at start: made where there is none, migrated where it is old, under a lock of one process at a time.

Alembic, which takes a quarter of a second to import, is loaded only where there is something to migrate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select, text
from sqlalchemy.exc import IntegrityError

import app
from app.errors import SchemaUnknown, StartRefused
from app.store.database_state import expect_content, is_marked, lost, mark_made
from app.store.engines import is_sqlite, migration_engine, normalised, reader_engine, refusing
from app.store.lock import LOCKS, MIGRATION
from app.store.tables import Base

if TYPE_CHECKING:
    from alembic.config import Config

SCRIPTS: Final = Path(app.__file__).parent.parent / "migrations"  # beside the package, in a checkout as in a wheel
# As Alembic makes it.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
_alembic = threading.Lock()  # Alembic keeps the migration under way in a global


def migrate(url: str) -> None:
    """Create or migrate the database's schema in one transaction; other processes wait meanwhile.

    Raises SchemaUnknown if a newer program migrated it, StartRefused if the database cannot be opened, or is gone or
    emptied where there was one.
    """
    parsed = normalised(url)
    file = Path(parsed.database or "") if is_sqlite(parsed) else None
    if file is not None:
        expect_content(file)
    with changing(url) as connection:
        if names := set(inspect(connection).get_table_names()):
            _upgrade(connection, names)
        elif file is not None and is_marked(file):
            raise lost(file, "has no tables")
        else:
            _create(connection)
    if file is not None:
        mark_made(file, revisions()[-1])


def revisions() -> list[str]:
    """The revisions that this program knows, the newest last: the files that hold them are named by them."""
    return sorted(path.name.partition("_")[0] for path in (SCRIPTS / "versions").glob("*_*.py"))


def current_revision(url: str) -> str | None:
    """The revision of the schema; None if there is none. Raises StartRefused."""
    parsed = normalised(url)
    if is_sqlite(parsed) and not Path(parsed.database or "").exists():
        return None
    engine = reader_engine(parsed)
    try:
        with refusing(parsed), engine.connect() as connection:
            return next(iter(_found(connection)), None)
    finally:
        engine.dispose()


def migrate_to(url: str, revision: str) -> None:
    """Bring the database to an older revision, for the program that knows no newer one; raises SchemaUnknown."""
    from alembic import command  # noqa: PLC0415 - it takes a quarter of a second

    with changing(url) as connection:
        known, found = revisions(), _found(connection)
        _refuse_unknown(known, found)
        if revision not in known:
            raise SchemaUnknown(f"there is no schema {revision}", found=[revision], known=known[-1])
        change = command.upgrade if found < [revision] else command.downgrade
        change(configuration(connection), revision)


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
    from alembic.config import Config  # noqa: PLC0415 - it takes a quarter of a second

    config = Config(stdout=StringIO())
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _create(connection: Connection) -> None:
    """Make the tables that the migrations would make, as if they had."""
    Base.metadata.create_all(connection)
    _VERSION.create(connection)
    connection.execute(_VERSION.insert().values(version_num=revisions()[-1]))


def _upgrade(connection: Connection, names: AbstractSet[str]) -> None:
    """Run the migrations that the database has not seen; raises SchemaUnknown, StartRefused."""
    known, found = revisions(), _found(connection)
    _refuse_unknown(known, found)
    ours = set(Base.metadata.tables)
    if not found and ours & names:
        raise StartRefused("the database has tables and does not say of which schema: restore a backup")
    if found == known[-1:]:
        if missing := sorted(ours - names):
            raise StartRefused(f"the database has no {', '.join(missing)} any more: restore a backup")
        return
    from alembic import command  # noqa: PLC0415 - it takes a quarter of a second

    command.upgrade(configuration(connection), "head")


def _found(connection: Connection) -> list[str]:
    """The revision that the database says it is of; nothing if it says none."""
    if not inspect(connection).has_table(_VERSION.name):
        return []
    return list(connection.scalars(select(_VERSION.c.version_num)))


def _refuse_unknown(known: list[str], found: list[str]) -> None:
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise SchemaUnknown(
            f"the database's schema is {', '.join(unknown)}, newer than this program's {known[-1]}: "
            "start the newer program, or restore a copy of the database from before it ran",
            found=unknown,
            known=known[-1],
        )


def _check_references(connection: Connection) -> None:
    """Check foreign keys, which were off during the migration."""
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise IntegrityError("PRAGMA foreign_key_check", None, ValueError(f"a reference is broken: {tuple(broken)}"))
