"""Tensors as JSON numbers, flat or nested, with NaN and Infinity by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from app.api.formats.number_lists import SHORT, NumberList, SplitText, parsed, split, with_names
from app.api.formats.operand_spec import TensorSpec
from app.dtypes import Array, rounded, widened
from app.errors import InvalidMatrix, Malformed

_NUMBERS: Final = {float, int}
_BLOCK: Final = 2**15  # elements written at once
_DATA_LIST: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')


def split_text(text: memoryview) -> SplitText:
    """A JSON text's value and its long lists; raises Malformed."""
    if len(text) > SHORT:
        try:
            return split(text, _DATA_LIST, with_names)
        except InvalidMatrix as error:
            raise Malformed(error.message, **error.facts) from error
    return SplitText(parsed(bytes(text), with_names), {})


def fill(data: Any, described: TensorSpec, out: Array) -> None:
    """Copy a tensor's list into `out`, rounding to its type; raises Malformed if it is no list of numbers."""
    if isinstance(data, NumberList):
        _check_extents(data.shape, described)
        data.copy_to(out)
        return
    flat, expected = _flat(data, described), prod(described.shape)
    if len(flat) != expected:
        message = f"{described.name} has {len(flat)} numbers, its shape {list(described.shape)} has {expected}"
        raise Malformed(message, operand=described.name, expected=expected, size=len(flat))
    target = out.reshape(-1)
    for at in range(0, len(flat), _BLOCK):
        part = flat[at : at + _BLOCK]
        if not _NUMBERS.issuperset(map(type, part)):
            wrong = next(index for index, value in enumerate(part) if type(value) not in _NUMBERS)
            raise Malformed(f"element {at + wrong} of {described.name} is no number", operand=described.name)
        try:
            target[at : at + _BLOCK] = rounded(np.array(part, np.float64), target.dtype)
        except OverflowError as error:  # an integer beyond every double
            raise Malformed(f"{described.name} has a number that is too large: {error}") from error


def write(c: Array) -> Iterator[bytes]:
    """C's elements in row-major order as one JSON list, in pieces."""
    flat, before = c.reshape(-1), b"["
    for at in range(0, len(flat), _BLOCK):
        yield before
        yield _block(flat[at : at + _BLOCK])
        before = b","
    yield b"]"


def _flat(data: Any, described: TensorSpec) -> list[Any]:
    """The numbers of a flat list, or of lists nested as the shape says; raises Malformed."""
    level = data if isinstance(data, list) else [data]
    if not level or not isinstance(level[0], list):
        return level
    extents = [len(level)]
    for _ in described.shape[1:]:
        lengths = {len(member) if isinstance(member, list) else -1 for member in level}
        if len(lengths) != 1 or -1 in lengths:
            raise Malformed(f"the lists of {described.name} are not nested evenly", operand=described.name)
        extents += lengths
        level = list(chain.from_iterable(level))
    _check_extents(tuple(extents), described)
    return level


def _check_extents(extents: tuple[int, ...], described: TensorSpec) -> None:
    """Refuse lists that are neither flat nor nested as the shape says; raises Malformed."""
    if extents not in {(prod(described.shape),), described.shape}:
        message = f"the data of {described.name} is {list(extents)}, its shape is {list(described.shape)}"
        raise Malformed(message, operand=described.name, shape=list(described.shape))


def _block(flat: Array) -> bytes:
    """Some elements without the brackets. The writer has null for what is not finite: names take its place."""
    flat = widened(flat)
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    finite = np.isfinite(flat)
    if finite.all():
        return text
    names = (b"NaN" if np.isnan(value) else b"Infinity" if value > 0 else b"-Infinity" for value in flat[~finite])
    return re.sub(b"null", lambda _: next(names), text)
