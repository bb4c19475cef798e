"""Tensors as JSON numbers, flat or nested, with NaN and Infinity by name."""

from __future__ import annotations

import json
import re
from itertools import chain
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from app.api.formats.operand_spec import TensorSpec
from app.dtypes import Array, rounded, widened
from app.errors import InvalidMatrix, Malformed

_NUMBERS: Final = {float, int}
_BLOCK: Final = 2**15  # elements written at once
_NAMED: Final = re.compile(rb"NaN|Infinity")


def parsed(text: memoryview) -> Any:
    """A JSON text's value; raises Malformed. Python's own parser reads the names that are no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not _NAMED.search(text):
            raise Malformed(f"the request is no JSON: {error}") from error
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the request is no JSON: {error}") from error


def fill(data: Any, described: TensorSpec, out: Array) -> None:
    """Copy a tensor's list into `out`, rounding to its type; raises InvalidMatrix if it is no list of numbers."""
    flat, expected = _flat(data, described), prod(described.shape)
    if len(flat) != expected:
        message = f"{described.name} has {len(flat)} numbers, its shape {list(described.shape)} has {expected}"
        raise InvalidMatrix(message, operand=described.name, expected=expected, size=len(flat))
    target = out.reshape(-1)
    for at in range(0, len(flat), _BLOCK):
        part = flat[at : at + _BLOCK]
        if not _NUMBERS.issuperset(map(type, part)):
            wrong = next(index for index, value in enumerate(part) if type(value) not in _NUMBERS)
            raise InvalidMatrix(f"element {at + wrong} of {described.name} is no number", operand=described.name)
        try:
            target[at : at + _BLOCK] = rounded(np.array(part, np.float64), target.dtype)
        except OverflowError as error:  # an integer beyond every double
            raise InvalidMatrix(f"{described.name} has a number that is too large: {error}") from error


def write(c: Array) -> list[bytes]:
    """C's elements in row-major order as one JSON list, in pieces."""
    flat = c.reshape(-1)
    pieces = [b"["]
    for at in range(0, len(flat), _BLOCK):
        pieces += [_block(flat[at : at + _BLOCK]), b","]
    pieces[-1] = b"]"
    return pieces


def _flat(data: Any, described: TensorSpec) -> list[Any]:
    """The innermost members of nested lists, which all lie as deep."""
    level = data if isinstance(data, list) else [data]
    for _ in described.shape[1:]:
        if not level or not isinstance(level[0], list):
            break
        if not all(isinstance(member, list) for member in level):
            raise InvalidMatrix(f"the lists of {described.name} are not nested evenly", operand=described.name)
        level = list(chain.from_iterable(level))
    return level


def _block(flat: Array) -> bytes:
    """Some elements without the brackets. The writer has null for what is not finite: names take its place."""
    flat = widened(flat)
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    finite = np.isfinite(flat)
    if finite.all():
        return text
    names = (b"NaN" if np.isnan(value) else b"Infinity" if value > 0 else b"-Infinity" for value in flat[~finite])
    return re.sub(b"null", lambda _: next(names), text)
