"""Matrices as JSON lists, with NaN and Infinity as strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from app.api.formats.number_lists import SHORT, SPECIAL, NumberList, SplitText, parsed, split
from app.api.formats.operand_spec import ONE, OPERANDS, ParsedBody, Places, ProductOptions, TensorSpec, is_stacked
from app.api.params import validated
from app.api.schemas import ProductMembers
from app.dtypes import Array, rounded, widened
from app.errors import BodyTooLarge, InvalidMatrix, Malformed, TooLarge, Unsupported
from kernels.problem import ITEMSIZE, Problem

MEDIA: Final = "application/json"
LIMIT: Final = 64 * 2**20  # bytes of text
MOST: Final = 2**24  # elements of an answer
_BLOCK: Final = 2**15  # elements written at once
_NUMBERS: Final = {float, int}
_HALF: Final = 2  # bytes of an element that JSON has no numbers of
CONVERTED: Final = tuple(dtype for dtype, size in ITEMSIZE.items() if size == _HALF)
_ONE_LIST: Final = re.compile(rb"\A[ \t\r\n]*\[")
_OPERAND_LIST: Final = re.compile(rb'"[ab]"[ \t\r\n]*:[ \t\r\n]*\[')
_RANKS: Final = (2, 3)


def check_length(size: int) -> None:
    """Refuse a text that is, or grows, over the limit of this format; raises BodyTooLarge."""
    if size > LIMIT:
        message = f"a JSON body has at most {LIMIT} bytes, this one {size} or more: send application/octet-stream"
        raise BodyTooLarge(message, limit=LIMIT, size=size)


def check_dtype(dtype: str, convert: bool | None) -> None:
    """Refuse elements of 16 bits as JSON numbers where nobody asked for their conversion; raises Unsupported."""
    if ITEMSIZE[dtype] == _HALF and not convert:
        told = f"{dtype} is neither read from JSON numbers nor written as such"
        raise Unsupported(f"{told}: say convert=true to have it converted, or send and accept bytes", dtype=dtype)


def check_answer(problem: Problem, convert: bool | None) -> None:
    """Refuse a C that is too much text, and as `check_dtype` does; raises TooLarge, Unsupported."""
    check_dtype(problem.dtype, convert)
    elements = problem.batch * problem.m * problem.n
    if elements > MOST:
        message = f"C has {elements} elements, JSON takes {MOST}: accept application/octet-stream"
        raise TooLarge(message, limit=MOST, size=elements)


def load(data: memoryview, wanted: ProductOptions, names: tuple[str, ...] = OPERANDS) -> ParsedBody:
    """Understand a body, which is the rows alone where it is one matrix.

    Raises Malformed, Invalid, InvalidMatrix, and Unsupported for 16-bit elements without `convert`.
    """
    key = _ONE_LIST if names == ONE else _OPERAND_LIST
    text = split(data, key) if len(data) > SHORT else SplitText(parsed(bytes(data), orjson.loads), {})
    members = text.value
    if names == ONE:
        rows = {ONE[0]: text.list_of(members)}
    elif not isinstance(members, dict):
        raise Malformed("the body is no object")
    else:
        rows = {name: text.list_of(members.pop(name, None)) for name in names}
        wanted = wanted.with_body(ProductOptions(**validated(ProductMembers, members).model_dump(exclude_none=True)))
    dtype = wanted.dtype or "float32"
    check_dtype(dtype, wanted.convert)
    found = {name: TensorSpec(name, dtype, _shape(name, value)) for name, value in rows.items()}

    def fill(places: Places) -> None:
        for name, out in places.items():
            _fill(name, rows[name], found[name], out)

    return ParsedBody(found, wanted, fill)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    """The sizes of nested lists, whose rows all have as many members; raises InvalidMatrix."""
    if isinstance(value, NumberList):
        if len(value.shape) not in _RANKS:
            raise InvalidMatrix(f"{name} is no list of rows")
        return value.shape
    rows = _rows(name, value)
    if not rows[0] or not isinstance(rows[0][0], list):
        _even(name, rows)
        return len(rows), len(rows[0])
    matrices = [_rows(f"matrix {index} of {name}", each) for index, each in enumerate(rows)]
    for index, matrix in enumerate(matrices):
        _even(f"matrix {index} of {name}", matrix)
        if (len(matrix), len(matrix[0])) != (len(matrices[0]), len(matrices[0][0])):
            raise InvalidMatrix(f"matrix {index} of {name} has another shape than matrix 0", operand=name, matrix=index)
    return len(matrices), len(matrices[0]), len(matrices[0][0])


def _rows(name: str, value: Any) -> list[Any]:
    if value is None:
        raise InvalidMatrix(f"{name} is missing")
    if not isinstance(value, list) or not value:
        raise InvalidMatrix(f"{name} is no list of rows")
    for index, row in enumerate(value):
        if not isinstance(row, list):
            raise InvalidMatrix(f"row {index} of {name} is no list", row=index)
    return value


def _even(name: str, rows: list[list[Any]]) -> None:
    width = len(rows[0])
    for index, row in enumerate(rows):
        if len(row) != width:
            raise InvalidMatrix(f"row {index} of {name} has {len(row)} numbers, row 0 has {width}", row=index)


def _fill(name: str, value: list[Any] | NumberList, described: TensorSpec, out: Array) -> None:
    """Copy rows into `out`, rounding to its type; raises InvalidMatrix if a member is no number."""
    if isinstance(value, NumberList):
        value.copy_to(out)
        return
    numbers = [SPECIAL.get(each, each) if type(each) is str else each for each in _members(value, described)]
    if _NUMBERS.issuperset(map(type, numbers)):
        out.reshape(-1)[:] = rounded(np.array(numbers, np.float64), out.dtype)
        return
    rows = chain.from_iterable(value) if is_stacked(described) else iter(value)
    for index, row in enumerate(rows):
        _expect_numbers(name, index, row)


def _members(value: list[Any], described: TensorSpec) -> Iterator[Any]:
    """What is in the rows, in order."""
    rows = chain.from_iterable(value) if is_stacked(described) else value
    return chain.from_iterable(rows)


def _expect_numbers(name: str, index: int, row: list[Any]) -> None:
    """Raise InvalidMatrix for the first member of a row that is no number."""
    for column, value in enumerate(row):
        if type(value) not in _NUMBERS and not (isinstance(value, str) and value in SPECIAL):
            message = f"row {index} of {name}, column {column}: {_shown(value)} is no number"
            raise InvalidMatrix(message, operand=name, row=index, column=column)


def _shown(value: Any) -> str:
    """The start of a value's text. The reader takes what is nested deeper than the writer does."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if any(isinstance(member, dict | list) for member in members):
        return "what is nested"
    return orjson.dumps(value).decode()[:40]


Numbers: TypeAlias = Callable[[int, int], Array]  # of the first element and how many: some of C's, in their order


def write(c: Array, members: dict[str, Any]) -> Iterator[bytes]:
    """C and what made it, as pieces of one JSON text."""
    flat = c.reshape(-1)
    return write_numbers(c.shape, lambda start, count: flat[start : start + count], members)


def write_numbers(shape: tuple[int, ...], numbers: Numbers, members: dict[str, Any]) -> Iterator[bytes]:
    """As `write`, of a C that is read piece by piece."""
    *stack, m, n = shape
    matrices = (_rows_of(numbers, at * m * n, m, n) for at in range(prod(stack)))
    yield b'{"c":'
    yield from _listed(matrices) if stack else next(matrices)
    yield b","
    yield orjson.dumps(members)[1:]


def _rows_of(numbers: Numbers, start: int, m: int, n: int) -> Iterator[bytes]:
    """A matrix, whose first element is at `start`: few of its rows, or a part of one, at once."""
    if n > _BLOCK:
        return _listed(_listed(_flat(numbers, start + row * n, n)) for row in range(m))
    step = max(1, _BLOCK // n)
    return _listed(
        iter([_block(numbers(start + row * n, min(step, m - row) * n).reshape(-1, n))]) for row in range(0, m, step)
    )


def _flat(numbers: Numbers, start: int, count: int) -> Iterator[Iterator[bytes]]:
    for at in range(0, count, _BLOCK):
        yield iter([_block(numbers(start + at, min(_BLOCK, count - at)))])


def _listed(members: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    before = b"["
    for member in members:
        yield before
        yield from member
        before = b","
    yield b"]"


def _block(rows: Array) -> bytes:
    """Some rows, or a part of one, without the outer brackets.

    The writer has null for what is not finite: names take its place.
    """
    rows = widened(rows)
    text = orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    finite = np.isfinite(rows)
    if finite.all():
        return text
    names = (b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"' for value in rows[~finite])
    return re.sub(b"null", lambda _: next(names), text)
