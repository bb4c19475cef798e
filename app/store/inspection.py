"""Inspects a database without opening it as its owner: schema, owner, integrity."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.errors import DatabaseOwned, StartRefused
from app.store.engines import is_sqlite, normalised
from app.store.lock import owned
from app.store.schema import current_revision, revisions


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The state of a database. `owner` is empty if it is not open; `broken`, if it is sound or cannot be checked."""

    database: str
    revision: str | None
    newest: str | None
    owner: str
    broken: str


def examine(url: str) -> DatabaseReport:
    """Inspect a database; raises StartRefused if it cannot be read."""
    parsed = normalised(url)
    revision = current_revision(url)
    newest = revisions()[-1]
    name = str(parsed.database) if is_sqlite(parsed) else parsed.render_as_string()
    if revision is None:
        return DatabaseReport(name, None, newest, "", "")
    return DatabaseReport(name, revision, newest, _owner(url), _broken(Path(name)) if is_sqlite(parsed) else "")


def _owner(url: str) -> str:
    try:
        with owned(url, "tilewise doctor", make=False):
            return ""
    except DatabaseOwned as error:
        return str(error.facts.get("owner", "another process"))


def _broken(file: Path) -> str:
    """At most ten lines of SQLite's integrity check; empty if it finds nothing."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            lines = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StartRefused(f"{file} cannot be read: {error}") from error
    return "" if lines == ["ok"] else "; ".join(lines)
