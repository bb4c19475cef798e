"""The lock of a database's owner: one running service, or on PostgreSQL all that run."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from sqlalchemy import URL, Connection, TextClause, text

from app.errors import DatabaseOwned, StartRefused
from app.store.database_state import check_log
from app.store.engines import is_sqlite, normalised, owner_engine, refusing
from app.store.folders import make_folder

LOCKS: Final = 0x74696C65  # "tile": the class of our advisory locks in PostgreSQL
OWNER, MIGRATION = 1, 2  # the locks of that class
_PREFIX: Final = "tilewise "
_BYTE: Final = 2**62  # of the database's file: beyond all that SQLite reads, writes and locks
_TRIES, _PAUSE = 5, 0.05  # an owner just killed may still be ending, one just started is about to write its name

_TAKE: Final = text("SELECT pg_try_advisory_lock(:class, :lock)")
_SHARE: Final = text("SELECT pg_try_advisory_lock_shared(:class, :lock)")
_HOLDER: Final = text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = :class AND l.objid = :lock AND l.objsubid = 2 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@contextmanager
def owned(url: str, who: str, *, make: bool = True) -> Iterator[None]:
    """Lock the database until the block ends or the process dies, as owner `who` ("pid 7 at http://host:8000").

    A SQLite file that is not there is made, empty, unless it is not to be. Raises DatabaseOwned, which names the
    owner, and StartRefused if the database cannot be reached.
    """
    parsed = normalised(url)
    with _flocked(Path(parsed.database or ""), who, make) if is_sqlite(parsed) else _advised(parsed, who, _TAKE):
        yield


@contextmanager
def joined(url: str, who: str) -> Iterator[bool]:
    """Lock the database as a service does: beside others on PostgreSQL, alone on SQLite; gives whether beside others.

    No command that wants PostgreSQL for itself has it meanwhile. Raises as `owned`.
    """
    parsed = normalised(url)
    shared = not is_sqlite(parsed)
    with _advised(parsed, who, _SHARE) if shared else owned(url, who):
        yield shared


@contextmanager
def _flocked(database: Path, who: str, make: bool) -> Iterator[None]:
    """A flock belongs to the open file: the kernel gives it back however the process ends. The file stays.

    Whoever removes it removes no lock: the database's own file has another.
    """
    with _lock_file(database) as file:
        if not _taken(lambda: _flock(file)):
            raise _refusal(str(database), _content(file))
        with _file_locked(database, make):
            check_log(database, _content(file))
            _rewrite(file, f"{who}\n")
            try:
                yield
            finally:
                _rewrite(file, "")


@contextmanager
def _file_locked(database: Path, make: bool) -> Iterator[None]:
    """Lock a byte of the database's file that SQLite never uses.

    The descriptor is closed after every connection of the process: to close one drops SQLite's own locks.
    """
    try:
        descriptor = os.open(database, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o644)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise StartRefused(f"{database} cannot be opened: {error.strerror}") from error
    try:
        if not _taken(lambda: _lock_byte(descriptor)):
            raise _refusal(str(database), "")
        yield
    finally:
        os.close(descriptor)


def _lock_byte(descriptor: int) -> bool:
    """Lock the byte for this open file, as flock does a whole file; a file system that has no such locks does not."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _BYTE, 1, 0))
    except OSError as error:
        return error.errno not in {errno.EAGAIN, errno.EACCES}
    return True


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()


def _lock_file(database: Path) -> IO[str]:
    try:
        make_folder(database.parent)
        return database.with_name(f"{database.name}.lock").open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise StartRefused(f"the lock file beside {database} cannot be opened: {error}") from error


def _flock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _rewrite(file: IO[str], content: str) -> None:
    file.truncate(0)
    file.write(content)
    file.flush()


@contextmanager
def _advised(url: URL, who: str, take: TextClause) -> Iterator[None]:
    """An advisory lock belongs to the session: the server gives it back when the connection ends."""
    engine = owner_engine(url, f"{_PREFIX}{who}")
    with refusing(url):
        connection = engine.connect()
    with connection:
        if not _taken(lambda: bool(connection.scalar(take, {"class": LOCKS, "lock": OWNER}))):
            raise _refusal(url.render_as_string(), _holder(connection))
        yield


def _holder(connection: Connection) -> str:
    name = connection.scalar(_HOLDER, {"class": LOCKS, "lock": OWNER})
    return str(name or "").removeprefix(_PREFIX)


def _taken(take: Callable[[], bool]) -> bool:
    for _ in range(_TRIES):
        if take():
            return True
        time.sleep(_PAUSE)
    return False


def _refusal(database: str, owner: str) -> DatabaseOwned:
    owner = owner or "another process"
    return DatabaseOwned(f"{database} is owned by {owner}: stop that first, or choose another database", owner=owner)
