"""The objects of a long JSON list, found without reading the list: of a gigabyte one megabyte is in memory.

Quotes, brackets and backslashes of a piece are found by NumPy; what lies between is never looked at. Only the text of
an object that a caller wants is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidWorkload

_PIECE: Final = 2**20  # bytes
_LONGEST: Final = 2**23  # bytes of one object
_DEEPEST: Final = 128
_QUOTE, _OPEN, _CLOSE, _BACKSLASH = 1, 2, 3, 4
_Indices = NDArray[np.int64]


def _table() -> NDArray[np.uint8]:
    kinds = np.zeros(256, np.uint8)
    for kind, letters in ((_QUOTE, b'"'), (_OPEN, b"{["), (_CLOSE, b"}]"), (_BACKSLASH, b"\\")):
        kinds[list(letters)] = kind
    return kinds


_KINDS: Final = _table()


class ObjectScanner:
    """Finds the objects of a list that is the document, or a member of it: `objects` gives the text of each.

    Objects within other members at that depth are given too; what is no JSON around objects is found at the end, or
    where brackets do not fit, and raises InvalidWorkload with line and column.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._depth = self._target = 0
        self._inside = 0  # whether the piece before ended within a string
        self._partial: list[bytes] = []
        self._line, self._column = 1, 0  # of the piece's first byte, the column from 0

    def objects(self) -> Iterator[bytes]:
        """Each object's text, in order."""
        piece = self._stream.read(_PIECE).removeprefix(b"\xef\xbb\xbf")
        first = piece.lstrip(b" \t\r\n")[:1]
        if first not in {b"{", b"["}:
            raise self._refused("the document begins with neither { nor [", piece, len(piece) - len(piece.lstrip()))
        self._target = 2 if first == b"{" else 1
        while piece:
            piece += self._backslashes_after(piece)
            yield from self._objects_in(piece)
            self._advance(piece)
            piece = self._stream.read(_PIECE)
        if self._depth or self._inside:
            raise self._refused("the document ends within a string or a bracket", b"", 0)

    def _backslashes_after(self, piece: bytes) -> bytes:
        """What follows a piece that ends with a backslash, to behind what that escapes; raises InvalidWorkload."""
        more = b""
        while (piece + more)[-1:] == b"\\":
            if len(more) > _DEEPEST:
                raise self._refused("a string has too many backslashes in a row", piece, len(piece))
            following = self._stream.read(1)
            if not following:
                break
            more += following
        return more

    def _objects_in(self, piece: bytes) -> Iterator[bytes]:
        places, depths, opens = self._brackets(np.frombuffer(piece, np.uint8))
        if depths.size and (depths.max() > _DEEPEST or depths.min() < 0):
            wrong = int(places[np.argmax((depths > _DEEPEST) | (depths < 0))])
            raise self._refused("brackets do not fit, or are too deep", piece, wrong)
        at_target = np.where(opens, depths == self._target + 1, depths == self._target)
        begin = 0 if self._partial else -1
        for place, is_open in zip(places[at_target].tolist(), opens[at_target].tolist(), strict=True):
            if is_open:
                begin = place
            elif begin >= 0:
                text = piece[begin : place + 1]
                yield b"".join([*self._partial, text]) if self._partial else text
                self._partial, begin = [], -1
        if begin >= 0:
            self._partial.append(piece[begin:])
            if sum(map(len, self._partial)) > _LONGEST:
                raise self._refused(f"an object has more than {_LONGEST} bytes", piece, begin)

    def _brackets(self, piece: NDArray[np.uint8]) -> tuple[_Indices, _Indices, NDArray[np.bool_]]:
        """Where the brackets outside strings are, the depth behind each, and which of them open."""
        found = _KINDS[piece]
        places = np.flatnonzero(found)
        kinds = found[places]
        slashes = places[kinds == _BACKSLASH]
        if slashes.size:
            kept = ~np.isin(places, _escaped(slashes)) & (kinds != _BACKSLASH)
            places, kinds = places[kept], kinds[kept]
        quotes = kinds == _QUOTE
        within = (np.cumsum(quotes) + self._inside) & 1
        self._inside = (self._inside + int(quotes.sum())) & 1
        outside = ~quotes & (within == 0)
        places, opens = places[outside], kinds[outside] == _OPEN
        depths = self._depth + np.cumsum(np.where(opens, 1, -1))
        self._depth = int(depths[-1]) if depths.size else self._depth
        return places, depths, opens

    def _advance(self, piece: bytes) -> None:
        lines = piece.count(b"\n")
        self._line += lines
        self._column = len(piece) - piece.rindex(b"\n") - 1 if lines else self._column + len(piece)

    def _refused(self, message: str, piece: bytes, at: int) -> InvalidWorkload:
        self._advance(piece[:at])
        line, column = self._line, self._column + 1
        return InvalidWorkload(f"line {line}, column {column}: {message}", line=line, column=column)


def _escaped(slashes: _Indices) -> _Indices:
    """What a backslash escapes: the byte behind each run of an odd number of them."""
    gaps = np.diff(slashes) != 1
    firsts, lasts = slashes[np.r_[True, gaps]], slashes[np.r_[gaps, True]]
    odd: _Indices = lasts[(lasts - firsts) % 2 == 0] + 1
    return odd


def members(event: Any, *names: str) -> Any:
    """A value within objects within each other; None where there is none."""
    for name in names:
        event = event.get(name) if isinstance(event, dict) else None
    return event
