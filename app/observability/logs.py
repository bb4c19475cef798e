"""The log: lines of text, or one JSON object a line, with the id of the request that caused each."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from app.errors import TilewiseError
from app.observability.request_context import current

LogFormat: TypeAlias = Literal["text", "json"]
# What a caller, a disk or the network did is told in a sentence: where in our code it was met helps nobody.
_EXTERNAL: Final = (TilewiseError, OSError)
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Lines for people; the request's id stands at their ends."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """The record as text; a fault of ours is followed by its trace."""
        error = _error_of(record)
        if error is not None and not is_fault(error):
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
            record.msg, record.args = "%s: %s: %s", (record.getMessage(), type(error).__name__, one_line(error))
        context = current()
        if context is not None and context.request_id:
            record = logging.makeLogRecord(record.__dict__)
            record.msg, record.args = "%s [request %s]", (record.getMessage(), context.request_id)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message; request_id, trace_id, exception where there are."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        members: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (context := current()) is not None and context.request_id:
            members["request_id"] = context.request_id
            if context.trace_id is not None:
                members["trace_id"] = context.trace_id
        if (error := _error_of(record)) is not None:
            members["exception"] = {"type": type(error).__name__, "text": str(error)}
            if is_fault(error):
                members["trace"] = "".join(traceback.format_exception(error))
        return json.dumps(members, default=str)


class StderrHandler(logging.Handler):
    """Writes records to what standard error is by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; what cannot be written is reported as logging reports it."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a log that cannot be written fails nothing
            self.handleError(record)


def is_fault(error: BaseException) -> bool:
    """Whether an error is a fault of ours, whose trace is told, and not what a caller or a disk did."""
    return not isinstance(error, _EXTERNAL)


def one_line(error: BaseException) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())


def configure(form: LogFormat, level: str) -> None:
    """Write the log of this process to standard error: ours from `level` on, others' from warnings on."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for each in root.handlers[:]:
        if isinstance(each.formatter, JsonFormatter | TextFormatter):
            root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("app").setLevel(level.upper())
    logging.captureWarnings(form == "json")


def configured() -> tuple[LogFormat, str]:
    """The format and level that `configure` was given last, for a child's log."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    level = logging.getLogger("app").getEffectiveLevel()
    return "json" if is_json else "text", logging.getLevelName(level).lower()


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None
