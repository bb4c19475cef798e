"""SQLAlchemy engines and connections of SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sqlite3 import SQLITE_BUSY, OperationalError
from sqlite3 import Connection as SQLiteConnection
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from app.errors import StartRefused
from app.store.folders import make_folder

_BUSY: Final = 5.0  # seconds SQLite waits for another process's write to end
_GLANCE: Final = 0.01  # seconds between two tries of what it does not wait for
_MIGRATING: Final = 600.0  # the same, where that other process may be migrating
_READERS: Final = {"pool_size": 8, "max_overflow": 24, "pool_timeout": 60.0}
_ONE: Final = {"pool_size": 1, "max_overflow": 0}
# Commits wait for the log to be on disk, whatever the server's default is.
_DURABLE: Final = "-c synchronous_commit=on"
# A service that is frozen within a transaction must not keep its locks from the others.
_WRITING: Final = f"{_DURABLE} -c idle_in_transaction_session_timeout=5000"
# The owner's connection idles for days: the server must neither end it, nor keep its lock when this host is gone.
_LASTING: Final = (
    "-c idle_session_timeout=0 -c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)


def normalised(url: str) -> URL:
    """The URL with its driver, and SQLite's file as an absolute path without links; raises StartRefused.

    Nothing is opened, and no folder made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StartRefused(f"the database's URL cannot be read: {error}") from error
    match parsed.get_backend_name():
        case "sqlite":
            return parsed.set(drivername="sqlite", database=str(_file(parsed)))
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise StartRefused(f"the database is sqlite:///FILE or postgresql://HOST/NAME, not {other}")


def _file(url: URL) -> Path:
    name = url.database or ":memory:"
    if name == ":memory:" or name.startswith("file:") or url.query:
        raise StartRefused(
            f"{url.render_as_string()} names no plain file: SQLite in memory, or by a URI, is not supported, "
            "because several connections read what one writes; use sqlite:///FILE"
        )
    return Path(name).resolve()


def is_sqlite(url: URL) -> bool:
    """Whether the database is a file of this host."""
    return url.get_backend_name() == "sqlite"


def writer_engine(url: URL) -> Engine:
    """One connection that takes SQLite's write lock as its transaction begins."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN IMMEDIATE", ("foreign_keys=ON",), _BUSY, **_ONE)
    return _postgresql(url, _WRITING, pool_pre_ping=True, **_ONE)


def reader_engine(url: URL) -> Engine:
    """A pool for any thread. A transaction sees one state of the database, and cannot write."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN", ("foreign_keys=ON", "query_only=ON"), _BUSY, **_READERS)
    options = {"postgresql_readonly": True}
    return _postgresql(
        url, "", isolation_level="REPEATABLE READ", execution_options=options, pool_pre_ping=True, **_READERS
    )


def migration_engine(url: URL) -> Engine:
    """Connections that may rebuild tables: SQLite does that by dropping them, which foreign keys would forbid."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN IMMEDIATE", ("foreign_keys=OFF",), _MIGRATING, poolclass=NullPool)
    return _postgresql(url, _DURABLE, poolclass=NullPool)


def owner_engine(url: URL, name: str) -> Engine:
    """PostgreSQL only: a lasting connection without transactions, known to the server by `name` (63 bytes)."""
    return _postgresql(
        url, _LASTING, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args={"application_name": name[:63]}
    )


@contextmanager
def refusing(url: URL) -> Iterator[None]:
    """Turn whatever the database or its driver says while the service starts into StartRefused."""
    try:
        yield
    except UnicodeDecodeError as error:  # of a name in the schema, which the driver's own error would tell
        raise StartRefused(f"{url.render_as_string()} is damaged: {error}") from error
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise StartRefused(f"{url.render_as_string()} cannot be opened: {reason}") from error


def _sqlite(url: URL, begin: str, pragmas: tuple[str, ...], timeout: float, **options: Any) -> Engine:
    make_folder(Path(url.database or "").parent)
    engine = create_engine(url, connect_args={"timeout": timeout}, json_serializer=_json, **options)
    event.listen(engine, "connect", partial(_prepare, pragmas, timeout))
    event.listen(engine, "begin", partial(_begin, begin))
    return engine


def _prepare(pragmas: tuple[str, ...], timeout: float, connection: SQLiteConnection, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin at the first write only, and never for a SELECT
    _keep_a_log(connection, timeout)
    for pragma in ("synchronous=FULL", *pragmas):
        connection.execute(f"PRAGMA {pragma}").close()


def _keep_a_log(connection: SQLiteConnection, timeout: float) -> None:
    """Have a write-ahead log; SQLite does not wait itself where another process has a new file locked for that."""
    until = monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except OperationalError as error:
            if error.sqlite_errorcode & 0xFF != SQLITE_BUSY or monotonic() > until:
                raise
            sleep(_GLANCE)
        else:
            return


def _begin(statement: str, connection: Connection) -> None:
    connection.exec_driver_sql(statement)


def _postgresql(url: URL, settings: str, **options: Any) -> Engine:
    given = url.query.get("options", "")
    given = given if isinstance(given, str) else " ".join(given)
    both = f"{given} {settings}".strip()
    try:
        return create_engine(
            url.update_query_dict({"options": both}) if both else url, json_serializer=_json, **options
        )
    except ModuleNotFoundError as error:
        raise StartRefused("PostgreSQL needs a driver: pip install 'tilewise[postgres]'") from error


def _json(value: Any) -> str:
    """JSON as PostgreSQL reads it too: a NaN is refused here, on both."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
