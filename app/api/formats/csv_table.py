"""Answers as comma-separated values (RFC 4180): a row each of a list's entries, nested members by dotted names."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

MEDIA: Final = "text/csv"
_DEEPEST: Final = {"config", "conditions", "compilation"}  # objects with members of their own: one column, as JSON


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with a head; entries of one list have the same members. Empty is null."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    written = io.StringIO()
    lines = csv.DictWriter(written, names, restval="", lineterminator="\r\n")
    lines.writeheader()
    lines.writerows(flat)
    return written.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and name not in _DEEPEST:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _cell(value)
    return found


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A spreadsheet reads what begins so as a formula.
        return f"'{value}" if value[:1] in {"=", "+", "-", "@"} else value
    return orjson.dumps(value).decode() if isinstance(value, list | tuple | Mapping) else value
