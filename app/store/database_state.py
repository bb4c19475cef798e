"""What lies beside SQLite's file while nobody has it open: signs that a part of the database is gone.

SQLite takes an empty file for a new database, and a log that it cannot read for an empty one, without a word. Nothing
here opens the file itself.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from app.errors import StartRefused
from app.store.folders import sync_folder

_LOG: Final = logging.getLogger(__name__)
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # sqlite.org/fileformat2.html#walformat


def mark_made(database: Path, revision: str) -> None:
    """Note beside a database, durably, that there is one, of a schema; raises OSError."""
    marker = _marker(database)
    if marker.exists() and marker.read_text(encoding="utf-8", errors="replace").strip() == revision:
        return
    draft = marker.with_name(f"{marker.name}.{os.getpid()}.part")  # another process may mark the same database
    with draft.open("w", encoding="utf-8") as file:
        file.write(f"{revision}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(marker)
    sync_folder(database.parent)


def is_marked(database: Path) -> bool:
    """Whether there was a database of ours, with its tables, under this name."""
    return _marker(database).exists()


def expect_content(database: Path) -> None:
    """Raise StartRefused for a file that is gone or empty where there was a database."""
    if is_marked(database) and (not database.exists() or not database.stat().st_size):
        raise lost(database, "is empty or gone")


def lost(database: Path, how: str) -> StartRefused:
    """The refusal to start with nothing where there was something."""
    return StartRefused(
        f"{database} {how}, though there was a database: restore a backup, or remove {_marker(database)} too to begin "
        "with nothing"
    )


def check_log(database: Path, last_owner: str) -> None:
    """Say what is lost with a log that is gone or damaged; a damaged one is moved aside, since SQLite would drop it.

    `last_owner` is who had the database open and did not end by itself, if anybody.
    """
    log = database.with_name(f"{database.name}-wal")
    if not database.exists() or not database.stat().st_size:
        return
    if not log.exists():
        if last_owner:
            _LOG.warning("%s is gone, though %s was ended: what it stored last may be lost", log, last_owner)
        return
    with log.open("rb") as file:
        head = file.read(len(_LOG_MAGIC[0]))
    if head and head not in _LOG_MAGIC:
        aside = log.with_name(f"{log.name}.damaged")
        log.replace(aside)
        _LOG.warning("%s is no log of SQLite's, and is now %s: what was stored last may be lost", log, aside)


def _marker(database: Path) -> Path:
    return database.with_name(f"{database.name}.schema")
