"""Reads multipart/form-data with .npy parts (RFC 7578): python-multipart finds the parts in the whole body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.api.formats import npy
from app.api.formats.operand_spec import ONE, ParsedBody, Places, ProductOptions
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "multipart/form-data"
_MAX_HEADER_BYTES: Final = 2**13  # of one part's headers
_MAX_HEADERS: Final = 8  # of one part
_MAX_CONTENT_TYPE: Final = 2**10  # characters of a Content-Type that gives a boundary
_MAX_BOUNDARY: Final = 70  # RFC 2046, 5.1.1
_MAX_LINE_ENDS: Final = 8  # bytes of line ends before the first boundary
_PIECE: Final = 2**18  # bytes that are copied for the parser, which takes bytes alone, at once


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type gives; raises Malformed if it gives none."""
    if len(content_type) > _MAX_CONTENT_TYPE:
        raise Malformed(f"the form's Content-Type is over {_MAX_CONTENT_TYPE} characters", limit=_MAX_CONTENT_TYPE)
    _, options = parse_options_header(content_type.encode("latin1", "replace"))
    found = options.get(b"boundary", b"")
    if not 0 < len(found) <= _MAX_BOUNDARY:
        raise Malformed("the form has no boundary of 1 to 70 characters in its Content-Type")
    return found


def load(data: memoryview, boundary: bytes, names: tuple[str, ...], wanted: ProductOptions) -> ParsedBody:
    """Understand a form; raises Malformed, InvalidMatrix, Invalid."""
    found, views = {}, {}
    for name, (start, end) in part_spans(data, boundary, names).items():
        found[name], views[name] = npy.read(name, data[start:end], wanted.dtype)

    def fill(places: Places) -> None:
        for name, out in places.items():
            out[...] = views[name].reshape(out.shape)

    return ParsedBody({name: each.described for name, each in found.items()}, wanted, fill)


def part_spans(data: memoryview, boundary: bytes, names: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
    """Where each part's content lies; raises Malformed, and InvalidMatrix if the parts are not those of `names`."""
    front = bytes(data[: _MAX_LINE_ENDS + 2 + _MAX_BOUNDARY]).lstrip(b"\r\n")
    if not front.startswith(b"--" + boundary):
        raise Malformed("the form does not begin with its boundary")
    parts = _PartFinder(boundary, names)
    for at in range(0, len(data), _PIECE):
        parts.feed(bytes(data[at : at + _PIECE]))
        if parts.ended:
            break
    if not parts.ended:
        raise Malformed("the form is truncated: its closing boundary is missing")
    for name in names:
        if name not in parts.spans:
            raise InvalidMatrix(f"the form has no part {name}")
    return parts.spans


class _PartFinder:
    """The state of one pass over a form: the headers of the current part, and the spans of those before it."""

    def __init__(self, boundary: bytes, names: tuple[str, ...]) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        self.ended = False
        self._names, self._part, self._fed, self._piece = names, "", 0, b""
        self._header_bytes, self._field, self._value, self._disposition = 0, b"", b"", b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes; raises Malformed, InvalidMatrix."""
        self._piece = piece
        try:
            self._parser.write(piece)
        except FormParserError as error:
            limits = {"limit": _MAX_HEADER_BYTES} if "Maximum header" in str(error) else {}
            raise Malformed(f"the form cannot be read: {error}", **limits) from error
        self._fed += len(piece)

    def _part_begin(self) -> None:
        self._header_bytes, self._field, self._value, self._disposition = 0, b"", b"", b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += self._counted(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, text: bytes) -> bytes:
        self._header_bytes += len(text)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise Malformed(f"a part's headers are over {_MAX_HEADER_BYTES} bytes", limit=_MAX_HEADER_BYTES)
        return text

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition" and not self._disposition:
            self._disposition = self._value
        self._field, self._value = b"", b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = ONE[0] if self._names == ONE else options.get(b"name", b"").decode("latin1")
        if name not in self._names:
            wanted = " and ".join(self._names)
            raise InvalidMatrix(f"the form should have {wanted} alone, this one has {name[:60]!r}")
        if name in self.spans:
            raise InvalidMatrix(f"the form has two parts {name}")
        self._part, self.spans[name] = name, (0, 0)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        """Extend the part. Bytes before this piece that looked like a boundary come as bytes of the boundary."""
        begin, stop = self.spans[self._part]
        if stop:
            self.spans[self._part] = begin, stop + end - start
        else:
            at = self._fed + start if data is self._piece else self._fed - (end - start)
            self.spans[self._part] = at, at + end - start

    def _end(self) -> None:
        self.ended = True
