"""Decode JSON, and its objects into frozen dataclasses by the types of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def decoded(text: bytes | str) -> Any:
    """Decode a JSON text; raises ValueError if it is none, or is nested deeper than Python can follow."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def from_json(kind: type[T], body: Mapping[str, Any]) -> T:
    """Decode a JSON object; unknown members are ignored. Raises TypeError if a field without default is missing."""
    hints = _hints(cast("Any", kind))
    return kind(**{name: _value(hint, body[name]) for name, hint in hints.items() if name in body})


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {member.name: hints[member.name] for member in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin in (Union, UnionType):
        return _value(next(kind for kind in arguments if kind is not type(None)), value)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if origin is Mapping:
        return {name: _value(arguments[1], each) for name, each in value.items()}
    if hint is datetime:
        return datetime.fromisoformat(value)
    return from_json(cast("type[Any]", hint), value) if is_dataclass(hint) else value
