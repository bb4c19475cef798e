"""multipart/form-data with .npy parts, a and b, parsed as it arrives (RFC 2046, RFC 7578)."""

from __future__ import annotations

import re
from typing import Final

from app.api.formats import npy
from app.api.formats.operand_spec import ONE, OPERANDS, ParsedBody, Places, ProductOptions
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "multipart/form-data"
_LONGEST: Final = 2**13  # bytes of one part's headers
_PADDING: Final = 2**8  # bytes of blanks that may follow a boundary
_BEFORE: Final = 2**9  # bytes before the first boundary, which mean nothing
_LONGEST_TYPE: Final = 2**10  # characters of a Content-Type that gives one
_LONGEST_BOUNDARY: Final = 70  # RFC 2046, 5.1.1
_PREAMBLE, _DATA, _DELIMITED, _HEADERS, _ENDED = range(5)
_LINE: Final = b"\r\n"
_OPTION: Final = re.compile(rb';[ \t]*([\w!#$%&*+.^`|~\'-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.ASCII)


def boundary(content_type: str) -> bytes:
    """The boundary that a Content-Type gives; raises Malformed where it gives none."""
    if len(content_type) > _LONGEST_TYPE:
        raise Malformed(f"the form's Content-Type is over {_LONGEST_TYPE} characters", limit=_LONGEST_TYPE)
    found = _options(content_type.encode("latin1", "replace")).get(b"boundary", b"")
    if not 0 < len(found) <= _LONGEST_BOUNDARY:
        raise Malformed("the form has no boundary of 1 to 70 characters in its Content-Type")
    return found


class MultipartParser:
    """A form on its way: `feed` gives the bytes of a piece that are a part's own, `spans` where each part then lies."""

    def __init__(self, boundary: bytes, names: tuple[str, ...] = OPERANDS) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        self._kept = 0  # bytes of parts so far
        self._names = names
        self._delimiter = _LINE + b"--" + boundary
        self._rest = _LINE  # the first boundary has no line before it
        self._state = _PREAMBLE
        self._before = 0  # bytes that came before the first boundary
        self._part = ""

    @property
    def part(self) -> str:
        """The part that came last; nothing before the first."""
        return self._part

    @property
    def inside(self) -> bool:
        """Whether bytes of a part come now."""
        return self._state == _DATA

    @property
    def ended(self) -> bool:
        """Whether the closing boundary came."""
        return self._state == _ENDED

    def feed(self, piece: bytes) -> list[bytes]:
        """Parse a piece; raises Malformed, and InvalidMatrix for a part of another name."""
        if self._state == _ENDED:
            return []
        self._rest += piece
        kept: list[bytes] = []
        steps = {_PREAMBLE: self._data, _DATA: self._data, _DELIMITED: self._delimited, _HEADERS: self._headers}
        while self._state in steps and steps[self._state](kept):
            pass
        return kept

    def held(self) -> bytes:
        """Bytes at the end of what came that may be the start of a boundary: they are the caller's now."""
        held, self._rest = self._rest, b""
        return held

    def finish(self) -> None:
        """Say that no piece follows; raises Malformed where the form has no end, InvalidMatrix where a part lacks."""
        if self._state != _ENDED:
            raise Malformed("the form is truncated: its closing boundary is missing")
        for name in self._names:
            if name not in self.spans:
                raise InvalidMatrix(f"the form has no part {name}")

    def _data(self, kept: list[bytes]) -> bool:
        """Take bytes up to the next boundary."""
        at = self._rest.find(self._delimiter)
        end = at if at >= 0 else max(0, len(self._rest) - len(self._delimiter) + 1)
        if self._state == _DATA and end:
            kept.append(self._rest[:end])
            self._kept += end
            self.spans[self._part] = (self.spans[self._part][0], self._kept)
        if self._state == _PREAMBLE:
            self._before += end
            if self._before > _BEFORE:
                raise Malformed(f"over {_BEFORE} bytes come before the form's first boundary", limit=_BEFORE)
        self._rest = self._rest[end + len(self._delimiter) if at >= 0 else end :]
        self._state = _DELIMITED if at >= 0 else self._state
        return at >= 0

    def _delimited(self, _: list[bytes]) -> bool:
        """Take the rest of a boundary's line, which says by two dashes that no part follows."""
        if self._rest.startswith(b"--"):
            self._state, self._rest = _ENDED, b""
            return False
        at = self._rest.find(_LINE)
        line = self._rest if at < 0 else self._rest[:at]
        if len(line) > _PADDING or (line.strip(b" \t\r") and line != b"-"):
            raise Malformed("the form cannot be read: something follows a boundary on its line")
        if at >= 0:
            self._state, self._rest = _HEADERS, self._rest[at:]  # a part without headers has but one more line's end
        return at >= 0

    def _headers(self, _: list[bytes]) -> bool:
        at = self._rest.find(2 * _LINE)
        if max(at, len(self._rest) if at < 0 else 0) > _LONGEST:
            raise Malformed(f"a part's headers are over {_LONGEST} bytes", limit=_LONGEST)
        if at >= 0:
            self._begin(self._rest[:at])
            self._state, self._rest = _DATA, self._rest[at + 2 * len(_LINE) :]
        return at >= 0

    def _begin(self, headers: bytes) -> None:
        """Begin the part of some headers."""
        lines = (line.partition(b":") for line in headers.split(_LINE))
        told = [value for field, _, value in lines if field.strip().lower() == b"content-disposition"]
        given = _options(told[0]).get(b"name", b"") if told else b""
        name = ONE[0] if self._names == ONE else given.decode("latin1")
        if name not in self._names:
            wanted = " and ".join(self._names)
            raise InvalidMatrix(f"the form should have {wanted} alone, this one has {name[:60]!r}")
        if name in self.spans:
            raise InvalidMatrix(f"the form has two parts {name}")
        self._part, self.spans[name] = name, (self._kept, self._kept)


def load(data: memoryview, form: MultipartParser, wanted: ProductOptions) -> ParsedBody:
    """Understand the parts of a finished form; raises Malformed, InvalidMatrix, Invalid."""
    found, views = {}, {}
    for name, (start, end) in form.spans.items():
        found[name], views[name] = npy.read(name, data[start:end], wanted.dtype)

    def fill(places: Places) -> None:
        for name, out in places.items():
            out[...] = views[name].reshape(out.shape)

    return ParsedBody({name: each.described for name, each in found.items()}, wanted, fill)


def _options(value: bytes) -> dict[bytes, bytes]:
    """The options of a header's value, such as its boundary or name; the first counts where one is given twice."""
    found: dict[bytes, bytes] = {}
    for name, quoted, plain in _OPTION.findall(value):
        found.setdefault(name.lower(), re.sub(rb"\\(.)", rb"\1", quoted) or plain)
    return found
