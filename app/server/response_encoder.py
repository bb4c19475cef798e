"""ResponseEncoder: the bytes of an answer over HTTP/1.1, with Content-Length or in chunks (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, TypeAlias

from starlette.responses import Response

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)
}
_NO_NAME: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")  # RFC 9110, section 5.6.2
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = (204, 304)
_CLOSES: Final = b"connection: close\r\n"


def lines_of(headers: Headers) -> bytes:
    """Headers of our own as they are sent."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


def rendered(answer: Response, lines: bytes, *, closes: bool) -> bytes:
    """A whole answer with these lines before its own headers, for what has not become a request."""
    end = _CLOSES + b"\r\n" if closes else b"\r\n"
    return b"".join([_STATUS_LINES[answer.status_code], lines, lines_of(answer.raw_headers), end, bytes(answer.body)])


class ResponseEncoder:
    """One answer. `keep_alive` says whether the connection goes on after it; an answer's own header may end it.

    One of unknown length ends with the connection where the client knows no chunks (RFC 9112, section 6.1).
    """

    def __init__(self, method: str, *, keep_alive: bool, knows_chunks: bool = True) -> None:
        self.keep_alive, self._knows_chunks = keep_alive, knows_chunks
        self._has_body, self._chunks = method != "HEAD", False
        self._left: int | None = None  # bytes that the Content-Length still promises; None for an answer in chunks

    def head(self, status: int, headers: Headers, before: bytes = b"") -> bytes:
        """The status line, lines of headers `before`, and headers; raises RuntimeError for one that cannot be sent."""
        lines = [_STATUS_LINES[status], before]
        length, chunked, says_close = 0, None, False
        for name, value in headers:
            if _NO_NAME.search(name) or _NO_VALUE.search(value):
                raise RuntimeError(f"{name!r}: {value!r} is no header")
            lines.append(b"%b: %b\r\n" % (name, value))
            match name.lower():
                case b"content-length" if chunked is None:
                    length, chunked = int(value), False
                case b"transfer-encoding" if value.lower() == b"chunked":
                    length, chunked = 0, True
                case b"connection":
                    says_close = says_close or b"close" in value.lower().replace(b" ", b"").split(b",")
        is_endless = chunked is None and self._has_body and status not in _BODILESS
        self._chunks = chunked is True or (is_endless and self._knows_chunks)
        if is_endless and not self._knows_chunks:
            self.keep_alive = False
        if says_close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(_CLOSES)
        if is_endless and self._knows_chunks:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._left = None if chunked or is_endless else length
        return b"".join([*lines, b"\r\n"])

    def body(self, data: bytes, *, ends: bool) -> bytes:
        """A piece of the body as it is sent; raises RuntimeError if the body is not as long as Content-Length says."""
        if not self._has_body:
            return b""
        if self._left is None and not self._chunks:
            return data
        if self._left is None:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            return chunk + b"0\r\n\r\n" if ends else chunk
        self._left -= len(data)
        if self._left < 0 or (ends and self._left):
            raise RuntimeError(
                f"the answer's body is {'longer' if self._left < 0 else 'shorter'} than its Content-Length"
            )
        return data
