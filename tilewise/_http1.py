"""HTTP/1.1 as text: a request's head written, an answer's head read. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from tilewise.decoding import decoded
from tilewise.errors import ClientError, UnreadableAnswer, error_of

HEAD_END: Final = b"\r\n\r\n"
LONGEST_HEAD: Final = 2**16
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_BAD: Final = re.compile(r"[\x00-\x20\x7f]|[^\x00-\x7f]")
_BAD_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_BODILESS: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `again` says that sending it twice does no harm, `patient` that a busy service is waited for.

    `done` is the status that says, where an earlier answer was lost, that the request was heard then. `timeout` is in
    seconds, None for the usual.
    """

    method: str
    target: str
    body: Sequence[memoryview] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    patient: bool = True
    done: int | None = None
    timeout: float | None = None

    def head(self, host: str, prefix: str, common: Mapping[str, str]) -> bytes:
        """The request's head; raises ValueError if a header or the target has what would break it."""
        fields = {"Host": host, **common, **self.headers}
        if self.body or self.method in {"POST", "PUT"}:
            fields["Content-Length"] = str(sum(part.nbytes for part in self.body))
        where = prefix + self.target
        if _BAD.search(where) or any(_BAD.search(name) or _BAD_VALUE.search(fields[name]) for name in fields):
            raise ValueError("a control character in a request's target or headers")
        lines = [f"{self.method} {where} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin1")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """An answer's head. Header names are in small letters; what came more than once is joined by commas."""

    status: int
    headers: Mapping[str, str]
    version: int

    def framing(self) -> int | str | None:
        """The body's length; None if it goes on until the connection closes, "chunked" where it says so."""
        if self.status in _BODILESS:
            return 0
        if "transfer-encoding" in self.headers:
            if self.headers["transfer-encoding"].lower() != "chunked":
                raise UnreadableAnswer("the answer is encoded in a way nobody asked for", self.status, "unreadable")
            return "chunked"
        length = self.headers.get("content-length")
        if length is not None and not _LENGTH.fullmatch(length):
            raise UnreadableAnswer("the answer has no readable length", self.status, "unreadable")
        return None if length is None else int(length)

    @property
    def persistent(self) -> bool:
        """Whether the connection stays open behind the body."""
        return self.version == 1 and "close" not in self.headers.get("connection", "").lower()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer. `body` is empty if it was read into the caller's memory."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """Read the body's value; raises UnreadableAnswer if it is no JSON."""
        try:
            return decoded(self.body)
        except ValueError as error:
            message = "the answer is no JSON: is this a Tilewise service?"
            raise UnreadableAnswer(message, self.status, "unreadable") from error

    def error(self) -> ClientError:
        """Read the answer as an error, whoever wrote it."""
        try:
            body = decoded(self.body)
        except ValueError:
            body = None
        return error_of(self.status, body, self.headers.get("retry-after"))


def parse_head(text: bytes) -> ResponseHead:
    """Read an answer's head, without its empty line; raises UnreadableAnswer if it is no HTTP."""
    first, *lines = text.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise UnreadableAnswer("the answer is no HTTP: is this a Tilewise service?", None, "unreadable")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin1").partition(":")
        if not colon:
            raise UnreadableAnswer("the answer has a header that is none", None, "unreadable")
        key, text_value = name.lower(), value.strip(" \t")
        headers[key] = f"{headers[key]}, {text_value}" if key in headers else text_value
    return ResponseHead(int(status[2]), headers, int(status[1]))


def target(path: str, query: Mapping[str, object | None]) -> str:
    """Give a path its query: None is left out, booleans are true and false."""
    pairs = {name: _word(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
