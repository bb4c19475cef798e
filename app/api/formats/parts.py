"""multipart/form-data with the .npy parts a and b, parsed as it arrives; only the parts' own bytes are kept."""

from __future__ import annotations

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.api.formats import npy
from app.api.formats.operands import Loaded, Wanted, is_stacked, problem_of
from app.devices.base import Array
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "multipart/form-data"
_NAMES: Final = ("a", "b")


def boundary(content_type: str) -> bytes:
    """The boundary that a Content-Type gives; raises Malformed where it gives none."""
    _, options = parse_options_header(content_type)
    found = options.get(b"boundary", b"")
    if not found:
        raise Malformed("the form has no boundary in its Content-Type")
    return found


class Form:
    """A form on its way: `feed` gives the bytes of a piece that are a part's own, `spans` where each part then lies."""

    def __init__(self, boundary: bytes) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        self._kept: list[bytes] = []
        self._size = 0
        self._part = ""
        self._field, self._value, self._disposition = b"", b"", b""
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_field,
                    "on_header_value": self._on_value,
                    "on_header_end": self._header,
                    "on_headers_finished": self._headers,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise Malformed(f"the form cannot be read: {error}") from error

    def feed(self, piece: bytes) -> list[bytes]:
        """Parse a piece; raises Malformed, and InvalidMatrix for a part that is neither a nor b."""
        self._kept = []
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Malformed(f"the form cannot be read: {error}") from error
        return self._kept

    def finish(self) -> None:
        """Say that no piece follows; raises Malformed where the form has no end, InvalidMatrix where a part lacks."""
        if not self._ended:
            raise Malformed("the form is truncated: its closing boundary is missing")
        for name in _NAMES:
            if name not in self.spans:
                raise InvalidMatrix(f"the form has no part {name}")

    def _begin(self) -> None:
        self._disposition = b""

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field, self._value = b"", b""

    def _headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("latin1")
        if name not in _NAMES:
            raise InvalidMatrix(f"a form has the parts a and b, this one has {name[:60]!r}")
        if name in self.spans:
            raise InvalidMatrix(f"the form has two parts {name}")
        self._part = name
        self.spans[name] = (self._size, self._size)

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._kept.append(data[start:end])
        self._size += end - start
        self.spans[self._part] = (self.spans[self._part][0], self._size)

    def _end(self) -> None:
        self._ended = True


def load(data: memoryview, form: Form, wanted: Wanted) -> Loaded:
    """Understand the parts of a finished form; raises Malformed, InvalidMatrix, Invalid."""
    found, views = {}, {}
    for name, (start, end) in form.spans.items():
        found[name], views[name] = npy.read(name, data[start:end])
    problem = problem_of(found["a"].described, found["b"].described, wanted)

    def fill(a: Array, b: Array) -> None:
        a[...] = views["a"].reshape(a.shape)
        b[...] = views["b"].reshape(b.shape)

    return Loaded(problem, is_stacked(found["a"].described), wanted, fill)
