"""Lines and columns of text files, with limits, and refusals that name the place."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final, NoReturn

from app.errors import InvalidWorkload

LONGEST_LINE: Final = 2**16  # bytes
MOST_LINES: Final = 200_000  # that are parsed: a list of more shapes is no program's
_MOST_COLUMNS: Final = 512
_LARGEST_COUNT: Final = 2**53
_BOM: Final = b"\xef\xbb\xbf"


def refuse(message: str, line: int, column: int = 1) -> NoReturn:
    """Raise InvalidWorkload, which names the place in its message and as facts."""
    raise InvalidWorkload(f"line {line}, column {column}: {message}", line=line, column=column)


def raw_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each line without its end, and its number from 1; raises InvalidWorkload for one that is too long."""
    number = 0
    while piece := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(piece) > LONGEST_LINE:
            refuse(f"the line has more than {LONGEST_LINE} bytes", number, LONGEST_LINE)
        if number == 1:
            piece = piece.removeprefix(_BOM)
        yield number, piece.rstrip(b"\r\n")


def decoded(number: int, line: bytes) -> str:
    """A line's text; raises InvalidWorkload."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        refuse("the file is no UTF-8 text", number, error.start + 1)
    if "\0" in text:
        refuse("the line has a NUL, so the file is no text", number, text.index("\0") + 1)
    return text


def text_lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Each line's text, and its number from 1; raises InvalidWorkload."""
    for number, line in raw_lines(stream):
        if number > MOST_LINES:
            refuse(f"the file has more than {MOST_LINES} lines", number)
        yield number, decoded(number, line)


def rows(stream: BinaryIO, separator: str = ",") -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of a CSV with a header, each by its columns' names, and its line's number; raises InvalidWorkload.

    Blank rows and comments are left out. A row has as many fields as the header, or fewer.
    """
    names: list[str] | None = None
    for number, text in text_lines(stream):
        if not text.strip() or text.startswith("#"):
            continue
        fields = _fields(number, text, separator)
        if names is None:
            names = _names(number, fields)
        elif len(fields) > len(names):
            refuse(f"the row has {len(fields)} fields, the header {len(names)}", number)
        else:
            yield number, dict(zip(names, fields, strict=False))


def _fields(number: int, text: str, separator: str) -> list[str]:
    try:
        fields = next(csv.reader([text], delimiter=separator, strict=True), [])
    except csv.Error as error:
        refuse(f"the row is no CSV: {error}", number)
    if len(fields) > _MOST_COLUMNS:
        refuse(f"the row has more than {_MOST_COLUMNS} fields", number)
    return [field.strip() for field in fields]


def _names(number: int, fields: list[str]) -> list[str]:
    twice = next((name for name in fields if name and fields.count(name) > 1), None)
    if twice is not None:
        refuse(f"the header names {twice} more than once", number)
    return fields


def whole(row: Mapping[str, str], name: str, number: int, default: int | None = None) -> int:
    """A whole number of a row; raises InvalidWorkload if it is none, or is not there and has no default."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_LARGEST_COUNT))):
        refuse(f"{name} must be a whole number, got {text[:40]!r}", number)
    return int(digits)


def decimal(row: Mapping[str, str], name: str) -> float | None:
    """A number of a row above zero; None if it is none."""
    try:
        value = float(row.get(name, ""))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
