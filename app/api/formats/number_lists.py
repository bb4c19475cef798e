"""Lists of numbers in a long JSON text, read block by block: they take 8 bytes a number and no object each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from secrets import token_hex
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from app.dtypes import Array, rounded
from app.errors import InvalidMatrix, Malformed

SHORT: Final = 2**16  # bytes of a text that is read at once
_BLOCK: Final = 2**16  # bytes that are parsed at once, in about a millisecond: other threads run in between
_REST: Final = 2**18  # bytes of a text beside its lists
_LISTS: Final = 16
_DEEPEST: Final = 8  # lists within each other
_OPEN, _CLOSE = b"[]"
_NUMBERS: Final = {float, int}
SPECIAL: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

Loads = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class NumberList:
    """Nested lists of numbers, whose lists at one depth are all as long; `blocks` are the numbers in order."""

    shape: tuple[int, ...]
    blocks: tuple[Array, ...]

    def copy_to(self, out: Array) -> None:
        """Copy the numbers, rounded to the type of `out`."""
        target, at = out.reshape(-1), 0
        for block in self.blocks:
            target[at : at + len(block)] = rounded(block, out.dtype)
            at += len(block)


class SplitText(NamedTuple):
    """A JSON value without its long lists; a name in the place of each leads to it."""

    value: Any
    lists: Mapping[str, NumberList]

    def list_of(self, value: Any) -> Any:
        """The list that a value stands for, or the value itself."""
        return self.lists.get(value, value) if isinstance(value, str) else value


def split(text: memoryview, key: re.Pattern[bytes], loads: Loads = orjson.loads) -> SplitText:
    """Read a text; `key` matches up to the bracket of each list of numbers. Raises Malformed, InvalidMatrix.

    What is beside the lists is parsed as one value, so it is short.
    """
    token, lists, rest, at = token_hex(16), dict[str, NumberList](), bytearray(), 0
    while found := key.search(text, at, min(len(text), at + _REST)):
        start = found.end() - 1
        reader, name = _Reader(text, start, loads), f"{token} {len(lists)}"
        if len(lists) >= _LISTS:
            raise Malformed(f"a body of more than {SHORT} bytes has at most {_LISTS} lists of numbers", limit=_LISTS)
        rest += bytes(text[at:start]) + f'"{name}"'.encode()
        lists[name], at = reader.read(), reader.at
        _check_rest(len(rest))
    _check_rest(len(rest) + len(text) - at)
    rest += text[at:]
    return SplitText(parsed(bytes(rest), loads), lists)


def parsed(text: bytes, loads: Loads) -> Any:
    """The value of a text; raises Malformed."""
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is no JSON: {error}") from error


def with_names(text: bytes) -> Any:
    """The value of a text that may have NaN and Infinity by name, as Python's own parser reads them."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text, parse_float=_double, parse_int=_integer)


def _double(text: str) -> float:
    """A number; raises ValueError beyond every double, as the other parser does."""
    if math.isinf(value := float(text)):
        raise ValueError("a number is beyond every double")
    return value


def _integer(text: str) -> int:
    """A number without a fraction; raises ValueError beyond every double."""
    _double(text)
    return int(text)


def _check_rest(nbytes: int) -> None:
    if nbytes > _REST:
        message = f"a body of more than {SHORT} bytes has at most {_REST} bytes beside its lists of numbers"
        raise Malformed(message, limit=_REST, size=nbytes)


class _Reader:
    """Reads one value of nested lists, which begins at `at` and then ends there.

    A block ends at a comma: brackets for the lists that are open at its ends make it a JSON text of its own.
    """

    def __init__(self, text: memoryview, at: int, loads: Loads) -> None:
        self.at = at
        self._text, self._loads = text, loads
        self._extents: list[int] = []  # lengths of the lists by depth; 0 until one is complete
        self._counts: list[int] = []  # members so far of those that are open
        self._blocks: list[Array] = []
        self._depth = self._read = 0

    def read(self) -> NumberList:
        """The whole value; raises Malformed, InvalidMatrix."""
        while self._take():
            pass
        return NumberList(tuple(self._extents), tuple(self._blocks))

    def _take(self) -> bool:
        """Read the next block; False after the last."""
        window = bytes(self._text[self.at : self.at + _BLOCK])
        depths = self._depths(window)
        ends = np.flatnonzero(depths == 0)
        goes_on = not len(ends)
        cut = window.rfind(b",") if goes_on else int(ends[0]) + 1
        if cut < 1 or (self._blocks and window.lstrip()[:1] in {b"]", b","}):
            raise Malformed(f"the body is no JSON: no list of numbers goes on at byte {self.at}")
        depth = int(depths[cut - 1])
        if max(depths[:cut].max(), self._depth) > _DEEPEST:
            raise InvalidMatrix(f"lists are nested more than {_DEEPEST} deep at byte {self.at}")
        self._absorb(parsed(b"[" * self._depth + window[:cut] + b"]" * depth, self._loads), depth)
        self.at += cut + goes_on
        self._depth = depth
        return goes_on

    def _depths(self, window: bytes) -> Array:
        """How many lists are open behind each byte."""
        found = np.frombuffer(window, np.uint8)
        steps = (found == _OPEN).astype(np.int32) - (found == _CLOSE)
        return self._depth + np.cumsum(steps)

    def _absorb(self, tree: Any, depth: int) -> None:
        """Count the lists of a block, and keep its numbers; `depth` lists stay open."""
        if not self._extents:
            self._extents = [0] * _nesting(tree)
            self._counts = [0] * len(self._extents)
        level: list[Any] = [tree]
        for index in range(len(self._extents)):
            if set(map(type, level)) != {list}:
                raise InvalidMatrix(f"lists are not nested evenly within the {_BLOCK} bytes from byte {self.at}")
            self._count(index, list(map(len, level)), depth)
            level = list(chain.from_iterable(level))
        self._blocks.append(self._numbers(level))
        self._read += len(level)

    def _count(self, index: int, lengths: list[int], depth: int) -> None:
        """Count the members of the lists at one depth; raises InvalidMatrix if some have others than the rest."""
        lengths[0] += self._counts[index] - (self._depth > index + 1)
        self._counts[index] = lengths.pop() if depth > index else 0
        if lengths and not self._extents[index]:
            self._extents[index] = lengths[0]
        wrong = next((each for each in lengths if each != self._extents[index] or not each), None)
        if wrong is not None:
            expected = self._extents[index] or "more"
            raise InvalidMatrix(f"a list of {expected} members and one of {wrong} lie as deep, by byte {self.at}")

    def _numbers(self, members: list[Any]) -> Array:
        if not _NUMBERS.issuperset(map(type, members)):
            members = [SPECIAL.get(each, each) if type(each) is str else each for each in members]
            wrong = next((at for at, each in enumerate(members) if type(each) not in _NUMBERS), None)
            if wrong is not None:
                raise InvalidMatrix(f"element {self._read + wrong} is no number", element=self._read + wrong)
        try:
            return np.array(members, np.float64)
        except OverflowError as error:  # an integer beyond every double
            raise InvalidMatrix(f"a number is too large: {error}") from error


def _nesting(tree: Any) -> int:
    """How many lists lie within each other at the front."""
    depth = 0
    while isinstance(tree, list):
        tree = next(islice(tree, 1), None)
        depth += 1
    return depth
