"""The open database: one thread writes, any thread reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError
from sqlalchemy.orm import Session

from app.errors import Closing, StoreFailed
from app.observability.tracing import traced
from app.store.database_file import DatabaseFile
from app.store.engines import is_sqlite, normalised, reader_engine, writer_engine
from app.store.lock import joined, owned
from app.store.schema import current_revision, migrate, migrate_to, revisions
from app.store.sharing.claims import CLAIMS, HeldClaims
from app.store.sharing.notices import NOTICES, send

__all__ = ["Database", "current_revision", "joined", "migrate", "migrate_to", "open_database", "owned", "revisions"]

T = TypeVar("T")
_FAILURES: Final = {DatabaseError, OperationalError, InternalError}  # not their other kinds, such as broken constraints
_REWRITE: Final = text("UPDATE alembic_version SET version_num = version_num")


class Database:
    """An open database. A committed `write` survives kill -9 and a power cut."""

    def __init__(self, url: str) -> None:
        parsed = normalised(url)
        self.url = url
        self.failures = 0  # queries and commits that the database failed, since it was opened
        self.fault: str | None = None  # what the last write failed of; None if it was committed
        self._file = DatabaseFile(Path(parsed.database or "")) if is_sqlite(parsed) else None
        self._counting = threading.Lock()
        self._closed = False
        self._claims: HeldClaims | None = None
        self._writing: int | None = None
        self._writer = writer_engine(parsed)
        self._reader = reader_engine(parsed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store writer", initializer=self._started)

    def share(self, claims: HeldClaims) -> None:
        """Write beside other services from now on: as far as these claims allow, and telling what is written."""
        self._claims = claims

    @property
    def is_shared(self) -> bool:
        """Whether other services may write to it."""
        return self._claims is not None

    def write(self, work: Callable[[Session], T]) -> T:
        """Run `work` in the one writer thread as one transaction; return its value once that is committed.

        Whatever `work` raises rolls it back and is raised here. Raises Closing once the database is closed.
        """
        if threading.get_ident() == self._writing:
            raise RuntimeError("a write within a write would wait for itself: use the session at hand")
        with traced("store write"):
            try:
                future = self._thread.submit(self._commit, work)
            except RuntimeError as error:
                raise Closing("the database is closed") from error
            return future.result()

    def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in the calling thread on one unchanging state of the database; raises Closing once closed."""
        if self._closed:
            raise Closing("the database is closed")
        with traced("store read"), self._translated(), Session(self._reader) as session, session.begin():
            return work(session)

    def probe(self) -> None:
        """Write a row again, and commit it; raises StoreFailed, also for a file that was deleted or overwritten."""
        try:
            if self._file is not None:
                self._file.expect_unchanged()
            self.write(lambda session: session.execute(_REWRITE))
        except StoreFailed as error:
            self.fault = error.message
            raise

    def close(self) -> None:
        """Wait for the writes that were asked for, then close every connection; SQLite folds its log into the file."""
        self._thread.shutdown(wait=True)
        self._closed = True
        self._reader.dispose()
        self._writer.dispose()
        if self._file is not None:
            self._file.close()

    def _started(self) -> None:
        self._writing = threading.get_ident()

    def _commit(self, work: Callable[[Session], T]) -> T:
        try:
            with self._translated(), self._session() as session, session.begin():
                done = work(session)
                if self._claims is not None:
                    send(session, self._claims.service)
        except StoreFailed as error:
            self.fault = error.message
            raise
        self.fault = None
        return done

    def _session(self) -> Session:
        info = {} if self._claims is None else {CLAIMS: self._claims, NOTICES: {}}
        return Session(self._writer, expire_on_commit=False, info=info)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate and count errors of the database; raises StoreFailed."""
        try:
            yield
        except UnicodeDecodeError as error:
            with self._counting:
                self.failures += 1
            raise StoreFailed(f"the database is damaged: {error}") from error
        except DatabaseError as error:
            if type(error) not in _FAILURES:
                raise  # what was asked of it is wrong, not the database
            with self._counting:
                self.failures += 1
            name = getattr(error.orig, "sqlite_errorname", "")  # says of an I/O error which
            raise StoreFailed(f"the database failed: {error.orig}{name and f' ({name})'}") from error


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a migrated database until the block ends; raises StartRefused if the URL is not supported."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
