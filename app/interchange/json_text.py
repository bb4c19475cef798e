"""JSON as text that is walked member by member, so that a refusal names its line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isinf
from typing import Any, Final, NoReturn

from app.errors import InvalidFile
from app.interchange.results import Value, shown

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_HALVES: Final = re.compile(r"\\u[dD][89a-fA-F]")  # of characters, which may stand alone in JSON and in no text
_LONG: Final = re.compile(r"[0-9]{19}|[eE]\+?[0-9]{3}")  # numbers that may be out of range
_LONGEST_INTEGER: Final = 19  # characters: what 64 bits hold


def decoded(data: bytes) -> str:
    """The text of a file in UTF-8, without a byte order mark; raises InvalidFile where it is not that."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        raise refused("the file is no UTF-8", before.count(b"\n") + 1, column) from error


def refused(message: str, line: int, column: int) -> InvalidFile:
    """The refusal of a file at a line and column, both counted from 1."""
    return InvalidFile(f"line {line}, column {column}: {message}", line=line, column=column)


def canonical(value: object) -> str:
    """JSON with sorted members and no blanks: equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class JsonText:
    """A JSON text and a place in it. Every method raises InvalidFile where the text is not what is asked for.

    Numbers are finite and of usual size, and no object has a member twice.
    """

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text, self.at, self._first = text, 0, first_line
        self._counted, self._lines = 0, first_line
        self._has_halves = _HALVES.search(text) is not None
        bounded: dict[str, Any] = {"parse_float": _float, "parse_int": _int} if _LONG.search(text) else {}
        self._decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, **bounded)

    @property
    def line(self) -> int:
        """The line of the place, which is counted on from the last time."""
        if self.at < self._counted:
            self._counted, self._lines = 0, self._first
        self._lines += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._lines

    def refuse(self, message: str, at: int | None = None) -> NoReturn:
        """Refuse the text at a place, by default this one."""
        place = min(self.at if at is None else at, len(self.text))
        line = self._first + self.text.count("\n", 0, place)
        raise refused(message, line, place - self.text.rfind("\n", 0, place))

    def refusal_of(self, line: int, message: str) -> InvalidFile:
        """The refusal of what stands in a line, where its first character is."""
        text = self.text.split("\n", line - self._first + 1)[line - self._first]
        return refused(message, line, len(text) - len(text.lstrip()) + 1)

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        blanks = _BLANKS.match(self.text, self.at)
        self.at = self.at if blanks is None else blanks.end()
        return self.text[self.at : self.at + 1]

    def expect(self, character: str) -> None:
        """Go past a character."""
        if (found := self.peek()) != character:
            self.refuse(f"{character} was expected, got {shown(found) if found else 'the end of the file'}")
        self.at += 1

    def value(self) -> Any:
        """The whole value at this place."""
        self.peek()
        start = self.at
        try:
            found, self.at = self._decoder.raw_decode(self.text, start)
            if self._has_halves:
                json.dumps(found, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            self.refuse(f"this is no JSON: {error.msg}", error.pos)
        except UnicodeEncodeError:
            self.refuse("this has half a character", start)
        except ValueError as error:
            self.refuse(str(error), start)
        except RecursionError:
            self.refuse("this is nested too deeply", start)
        return found

    def members(self, *, unfinished: bool = False) -> Iterator[str]:
        """The names of an object's members, with the place at each one's value, which is to be read before the next.

        With `unfinished` the text may end after a member, or after the comma behind it.
        """
        self.expect("{")
        seen: set[str] = set()
        while self.peek() != "}":
            if not self.peek() and unfinished and seen:
                return
            start = self.at
            name = self.value()
            if not isinstance(name, str):
                self.refuse("a member's name is a text", start)
            if name in seen:
                self.refuse(f"the member {shown(name)} is there twice", start)
            seen.add(name)
            self.expect(":")
            yield name
            if not self._goes_on("}", unfinished=unfinished):
                return
        self.at += 1

    def items(self) -> Iterator[int]:
        """The numbers of an array's items, with the place at each, which is to be read before the next."""
        self.expect("[")
        number = 0
        while self.peek() != "]":
            yield number
            number += 1
            if not self._goes_on("]", unfinished=False):
                return
        self.at += 1

    def end(self) -> None:
        """Expect that nothing follows."""
        if self.peek():
            self.refuse("something follows the end")

    @contextmanager
    def entry(self) -> Iterator[int]:
        """What is read within is refused at its start where it raises ValueError; gives the line of the start."""
        self.peek()
        start, line = self.at, self.line
        try:
            yield line
        except ValueError as error:
            self.refuse(str(error), start)

    def _goes_on(self, closing: str, *, unfinished: bool) -> bool:
        """Go past a comma, or past the end; whether there was a comma."""
        found = self.peek()
        if found == "," or (not found and unfinished):
            comma = self.at
            self.at += len(found)
            if self.peek() == closing:
                self.refuse("nothing follows this comma", comma)
            return bool(found)
        if found != closing:
            self.refuse(f", or {closing} was expected, got {shown(found) if found else 'the end of the file'}")
        self.at += 1
        return False


def text_of(members: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A member that is a text; raises ValueError."""
    found = members.get(name, default)
    if not isinstance(found, str):
        raise ValueError(f"{name} is a text, got {shown(found)}")
    return found


def number_of(members: Mapping[str, Any], name: str) -> float:
    """A member that is a number; raises ValueError."""
    found = members.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{name} is a number, got {shown(found)}")
    return float(found)


def numbers_of(found: object, name: str) -> tuple[float, ...]:
    """A list of numbers, nothing for None; raises ValueError."""
    values = [] if found is None else found
    if not isinstance(values, list) or any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise ValueError(f"{name} is a list of numbers, got {shown(found)}")
    return tuple(map(float, values))


def texts_of(found: object, name: str) -> tuple[str, ...]:
    """A list of texts; raises ValueError."""
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{name} is a list of texts, got {shown(found)}")
    return tuple(found)


def object_of(found: object, name: str) -> dict[str, Any]:
    """An object; raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{name} is an object, got {shown(found)}")
    return found


def scalar(found: object, name: str) -> Value:
    """A parameter's value; raises ValueError for what is none."""
    if not isinstance(found, bool | int | float | str):
        raise ValueError(f"{name} is a number or a text, got {shown(found)}")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the member {shown(twice)} is there twice")
    return found


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number here")


def _float(text: str) -> float:
    found = float(text)
    if isinf(found):
        raise ValueError(f"the number {shown(text)} is too large")
    return found


def _int(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"the integer {shown(text)} is too large")
    return int(text)
