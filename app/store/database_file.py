"""DatabaseFile: whether SQLite's file is still the one that was opened, which SQLite itself does not notice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from app.errors import StoreFailed

_MAGIC: Final = b"SQLite format 3\0"  # which every database of SQLite begins with


class DatabaseFile:
    """The file of an open database. Its descriptor is opened once and closed after every connection.

    To close any descriptor of a file drops all of the process's POSIX locks on it, SQLite's too: another process that
    had the database open would then remove the log under this one (sqlite.org/howtocorrupt.html, section 2.2).
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    def expect_unchanged(self) -> None:
        """Raise StoreFailed unless the name still leads to the file, and that to a database."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            named, magic = self._path.stat(), os.pread(self._descriptor, len(_MAGIC), 0)
        except OSError as error:
            raise StoreFailed(f"the database's file cannot be read: {error.strerror}") from error
        if not os.path.samestat(named, os.fstat(self._descriptor)):
            raise StoreFailed("the database's file was replaced by another under the service: restart it")
        if magic != _MAGIC:
            raise StoreFailed("the database's file was overwritten: restore it")

    def close(self) -> None:
        """Close the descriptor; every connection is closed by now."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
