"""Every code that an error's body may carry, with its status and meaning: of the tree, and of what no class has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from app import errors
from app.errors.base import TilewiseError

PATH: Final = "/errors"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One code. `retry_after`: seconds after which the same request may succeed, None if it has to change."""

    code: str
    status: int
    meaning: str
    retry_after: int | None = None

    @property
    def title(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase


_LATE: Final = (
    "The client sent nothing for TILEWISE_IDLE_TIMEOUT, too little (TILEWISE_MIN_TRANSFER_RATE), or too long."
)
# Of the framework, of the server before a request has become one, and of health.
_CLASSLESS: Final = (
    ErrorCode("bad_request", 400, "What was sent is no HTTP request."),
    ErrorCode("disconnected", 400, "The client went away before its request had arrived."),
    ErrorCode("not_found", 404, "There is nothing at this path."),
    ErrorCode("method_not_allowed", 405, "The path has no such method: `Allow` names those that it has."),
    ErrorCode("request_timeout", 408, _LATE),
    ErrorCode("request_header_fields_too_large", 431, "The request's line and headers are longer than 64 KiB."),
    ErrorCode("not_implemented", 501, "The body's Transfer-Encoding is another than chunked alone."),
    ErrorCode("http_version_not_supported", 505, "The request is of another version than HTTP/1.0 and HTTP/1.1."),
    ErrorCode(
        "too_many_connections",
        503,
        "As many connections as TILEWISE_CONNECTIONS allows, or TILEWISE_CONNECTIONS_PER_ADDRESS one address.",
        1,
    ),
    ErrorCode("not_ready", 503, "No product can be served yet: no device has verified its lowest kernel.", 1),
)


def type_of(code: str) -> str:
    """The `type` of an error's body (RFC 9457): the path at which the service tells of the code."""
    return f"{PATH}/{code}"


@cache
def error_codes() -> Mapping[str, ErrorCode]:
    """All of them by name; errors for which the service does not even start have no body."""
    found = [_of(kind) for kind in _kinds(TilewiseError) if "code" in vars(kind)]
    return MappingProxyType({each.code: each for each in (*found, *_CLASSLESS)})


def _of(kind: type[TilewiseError]) -> ErrorCode:
    return ErrorCode(kind.code, kind.status, (kind.__doc__ or "").strip(), kind.retry_after)


def _kinds(kind: type[TilewiseError]) -> Iterator[type[TilewiseError]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith(errors.__name__) and each is not errors.StartRefused:
            yield each
            yield from _kinds(each)
