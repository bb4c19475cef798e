"""Pages of a list: where one ended is a text that means something to this service alone."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field

from app.api.query import Asked
from app.errors import Invalid

T = TypeVar("T")

Cursor = Annotated[
    str | None, Field(pattern="^[A-Za-z0-9_-]{1,1000}$", description="The `next` of the page before this one.")
]


class PageQuery(Asked):
    """Which page of a list, and how long its pages are."""

    cursor: Cursor = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Entries a page.")] = 100

    def place(self, *kinds: type) -> list[Any] | None:
        """Where the page before this one ended, or None; raises Invalid for a cursor that is not this list's."""
        if self.cursor is None:
            return None
        try:
            values = json.loads(urlsafe_b64decode(self.cursor + "=" * (-len(self.cursor) % 4)))
            return [_value(kind, value) for kind, value in zip(kinds, values, strict=True)]
        except (ValueError, TypeError) as error:
            raise Invalid("cursor is not the `next` of a page of this list", member="cursor") from error


def paged(found: Sequence[T], limit: int, place: Callable[[T], Sequence[object]]) -> tuple[Sequence[T], str | None]:
    """A page and its `next`, of `limit` + 1 entries that were looked for; `place` is where an entry stands."""
    if len(found) <= limit:
        return found, None
    page = found[:limit]
    values = [value.isoformat() if isinstance(value, datetime) else value for value in place(page[-1])]
    text = json.dumps(values, separators=(",", ":")).encode()
    return page, urlsafe_b64encode(text).decode().rstrip("=")


def _value(kind: type, value: object) -> object:
    if kind is datetime and isinstance(value, str):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("a moment has a time zone")
        return moment
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    if isinstance(value, str) and not (value.isascii() and value.isprintable()):
        raise ValueError("an entry's place is printable")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an entry's place is a number of usual size")
    return value
