"""AuditLog: one JSON line for each request that was denied or changed something."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from time import monotonic
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_FILE_BYTES: Final = 2**24
_FILES: Final = 4  # older ones that are kept
_WAITING: Final = 4096  # entries that are not written yet; more are counted and lost
_DENIALS: Final = 60  # lines of denied requests a minute; more are counted
_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who asked for what from where, and what came of it: neither operands nor keys."""

    principal: str
    method: str
    path: str
    peer: str
    status: int
    code: str | None = None
    job: str | None = None
    request_id: str | None = None


class AuditLog:
    """Appends entries to a file, which is rotated by size, from a thread of its own: a slow disk delays nobody.

    Denied requests are written so many a minute at most; the next line says how many were left out.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path, self._clock = path, clock
        self._queue: queue.Queue[str | None] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._minute, self._denials, self._left_out = float("-inf"), 0, 0
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is waiting, then end."""
        self._queue.put(None)
        self._thread.join()

    @property
    def is_writing(self) -> bool:
        """Whether the log has started and not stopped."""
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return self._queue.empty()

    def changed(self, entry: AuditEntry) -> None:
        """Note a request that may have changed something."""
        self._put(entry)

    def denied(self, entry: AuditEntry) -> None:
        """Note a request that was refused for who asked."""
        with self._lock:
            now = self._clock()
            if now - self._minute >= _MINUTE:
                self._minute, self._denials = now, 0
            self._denials += 1
            if self._denials > _DENIALS:
                self._left_out += 1
                return
        self._put(entry)

    def _put(self, entry: AuditEntry) -> None:
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        members = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **asdict(entry)}
        if left_out:
            members["left_out"] = left_out
        try:
            self._queue.put_nowait(json.dumps({key: value for key, value in members.items() if value is not None}))
        except queue.Full:
            with self._lock:
                self._left_out += left_out + 1

    def _run(self) -> None:
        file = _PrivateFile(self._path)
        try:
            while (line := self._queue.get()) is not None:
                file.handle(logging.makeLogRecord({"msg": line}))
        finally:
            file.close()


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A rotated file that only its owner can read; that its disk fails is logged once until it works again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8", delay=True)
        self._failing = self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        self._failed = False
        super().emit(record)
        self._failing = self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say that lines are lost."""
        del record
        self._failed = True
        if not self._failing:
            _LOG.exception("the audit log %s cannot be written: its lines are lost", self.baseFilename)

    def _open(self) -> TextIOWrapper:
        """Open the file, making it for its owner only."""
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return super()._open()
