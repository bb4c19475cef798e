"""Strict parsing of query strings and page cursors."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import Request

from app.api.errors import invalid
from app.errors import Invalid

_UNKNOWN: Final = 64  # members that a model does not have, of those that are told
_MOST: Final = 64  # query parameters; more than any route has
USUAL: Final = 256  # bytes of a query string that is worth remembering
_WIDEST: Final = 2**14  # characters of a query string: more than all parameters take, each at its longest
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?")
_BOOLEAN: Final = {"true": True, "false": False}


class StrictModel(BaseModel):
    """What a caller sends: no other members, and no value that is merely like what is wanted.

    Its schema is built at its first use, which takes a millisecond; those of all models take a tenth of a start.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)

    MEANT: ClassVar[Mapping[str, str]] = {}  # other services' words for members, and members in another place

    @classmethod
    def meant(cls, name: str) -> str | None:
        """What somebody means who gives a member that there is not, or None."""
        near = get_close_matches(name.lower(), cls.model_fields, n=1, cutoff=0.75)
        return cls.MEANT.get(name) or (near[0] if near else None)


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Of an integer in JSON, where 8, 8.0 and 8e0 are one number (RFC 8259, section 6); in a query string digits alone are.
WHOLE: Final = BeforeValidator(_whole)
M = TypeVar("M", bound=StrictModel)


def read_query(model: type[M], request: Request) -> M:
    """The query string as a model; raises Invalid where a parameter is off, unknown or given twice."""
    text = request.scope["query_string"]
    return _parsed(model, text) if len(text) <= USUAL else parse_query(model, text)


@lru_cache(maxsize=1024)
def _parsed(model: type[M], text: bytes) -> M:
    """As parse_query; callers ask the same things over and over, and what they get is frozen."""
    return parse_query(model, text)


def parse_query(model: type[M], text: bytes) -> M:
    """As read_query, of the raw query string."""
    if len(text) > _WIDEST:
        raise Invalid(f"the query string has {len(text)} characters, the limit is {_WIDEST}")
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST, errors="strict")
    except ValueError as error:
        raise Invalid(f"the query string cannot be read: {error}") from error
    given = dict(pairs)
    if len(given) < len(pairs):
        twice = sorted({name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1})
        raise Invalid(f"given more than once: {', '.join(twice)}", parameters=twice)
    kinds = _kinds(model)
    return validated(model, {name: _value(kinds.get(name, ""), value) for name, value in given.items()})


def validated(model: type[M], members: object) -> M:
    """Members as a model; raises Invalid. Of thousands that there are not, some are told: each takes a kilobyte."""
    if isinstance(members, dict) and len(members) > _UNKNOWN + len(model.model_fields):
        unknown = (name for name in members if name not in model.model_fields)
        left_out = set(islice(unknown, _UNKNOWN, None))
        members = {name: value for name, value in members.items() if name not in left_out}
    try:
        return model.model_validate(members)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False), model.meant) from error


@cache
def _kinds(model: type[BaseModel]) -> dict[str, str]:
    """The JSON type of each member, as far as a query string has to tell numbers and booleans from text."""
    properties = model.model_json_schema()["properties"]
    kinds = {}
    for name, schema in properties.items():
        choices = [schema, *schema.get("anyOf", ())]
        kinds[name] = next((choice["type"] for choice in choices if choice.get("type", "null") != "null"), "string")
    return kinds


def _value(kind: str, text: str) -> Any:
    """A parameter's value, or the text itself where it is none: the model then says what it should be."""
    if kind == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number" and _NUMBER.fullmatch(text):
        return float(text)
    return _BOOLEAN.get(text, text) if kind == "boolean" else text


T = TypeVar("T")

Cursor = Annotated[
    str | None, Field(pattern="^[A-Za-z0-9_-]{1,1000}$", description="The `next` of the page before this one.")
]


class PageQuery(StrictModel):
    """Which page of a list, and how long its pages are."""

    cursor: Cursor = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Entries a page.")] = 100

    def place(self, *kinds: type) -> list[Any] | None:
        """Where the page before this one ended, or None; raises Invalid for a cursor that is not this list's."""
        if self.cursor is None:
            return None
        try:
            values = json.loads(urlsafe_b64decode(self.cursor + "=" * (-len(self.cursor) % 4)))
            return [_cursor_value(kind, value) for kind, value in zip(kinds, values, strict=True)]
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


def _cursor_value(kind: type, value: object) -> object:
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
