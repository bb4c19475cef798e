"""The open database: one thread writes, any thread reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import InternalError, OperationalError
from sqlalchemy.orm import Session

from app.errors import Closing, StoreFailed
from app.store.engines import normalised, reader_engine, writer_engine
from app.store.lock import owned
from app.store.schema import current_revision, migrate, migrate_to, revisions

__all__ = ["Database", "current_revision", "migrate", "migrate_to", "open_database", "owned", "revisions"]

T = TypeVar("T")


class Database:
    """An open database. A committed `write` survives kill -9 and a power cut."""

    def __init__(self, url: str) -> None:
        parsed = normalised(url)
        self.url = url
        self.failures = 0  # queries and commits that the database failed, since it was opened
        self._counting = threading.Lock()
        self._closed = False
        self._writing: int | None = None
        self._writer = writer_engine(parsed)
        self._reader = reader_engine(parsed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store writer", initializer=self._started)

    def write(self, work: Callable[[Session], T]) -> T:
        """Run `work` in the one writer thread as one transaction; return its value once that is committed.

        Whatever `work` raises rolls it back and is raised here. Raises Closing once the database is closed.
        """
        if threading.get_ident() == self._writing:
            raise RuntimeError("a write within a write would wait for itself: use the session at hand")
        try:
            future = self._thread.submit(self._commit, work)
        except RuntimeError as error:
            raise Closing("the database is closed") from error
        return future.result()

    def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in the calling thread on one unchanging state of the database; raises Closing once closed."""
        if self._closed:
            raise Closing("the database is closed")
        with self._translated(), Session(self._reader) as session, session.begin():
            return work(session)

    def close(self) -> None:
        """Wait for the writes that were asked for, then close every connection; SQLite folds its log into the file."""
        self._thread.shutdown(wait=True)
        self._closed = True
        self._reader.dispose()
        self._writer.dispose()

    def _started(self) -> None:
        self._writing = threading.get_ident()

    def _commit(self, work: Callable[[Session], T]) -> T:
        with self._translated(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            return work(session)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate and count errors of the database; raises StoreFailed."""
        try:
            yield
        except (OperationalError, InternalError) as error:
            with self._counting:
                self.failures += 1
            raise StoreFailed(f"the database failed: {error.orig}") from error


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a migrated database until the block ends; raises StartRefused if the URL is not supported."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
