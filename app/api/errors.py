"""Every error in one shape: RFC 9457 members with `code` and `error`, the framework's own errors included."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from app import errors
from app.api.body.size_limit import BodySizeLimit
from app.errors import TilewiseError
from app.errors.codes import type_of
from app.errors.validation import sentence

MEDIA: Final = "application/problem+json"
_LOG = logging.getLogger("tilewise.api")
_INTERNAL: Final = 500
_TOLD: Final = 16  # of the errors in one request
_NAME: Final = 100  # characters of a member's name
# What any route that makes a product may answer, whatever else it reads.
OF_PRODUCTS: Final = (
    errors.Malformed,
    errors.UnknownDevice,
    errors.UnknownKernel,
    errors.NotAcceptable,
    errors.BodyTooLarge,
    errors.UnsupportedMediaType,
    errors.Invalid,
    errors.InvalidMatrix,
    errors.Unsupported,
    errors.TooLarge,
    errors.Cancelled,
    errors.OverShare,
    errors.QueueFull,
    errors.NoRoom,
    errors.StoreFailed,
    errors.Closing,
    errors.ChildDied,
    errors.ChildTimedOut,
    errors.NoDevice,
    errors.CompileFailed,
    errors.LaunchFailed,
    errors.WrongResult,
    errors.CertificateFailed,
)


def problem(
    status: int,
    code: str,
    message: str,
    facts: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Render an error: `facts` are members beside those that every error has, or a `detail` that says more."""
    body = {
        "detail": message,
        **(facts or {}),
        "type": type_of(code),
        "title": _title(status),
        "status": status,
        "code": code,
        "error": message,
    }
    text = json.dumps(body, default=str, separators=(",", ":"))  # integers of any size: figures may be a caller's own
    return Response(text, status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA)


def refusal(error: TilewiseError) -> Response:
    """Render what was raised on purpose; Retry-After where the error says when."""
    after = error.facts.get("retry_after", error.retry_after)
    headers = {} if after is None else {"Retry-After": str(after)}
    more = {} if after is None else {"detail": f"{error.message}; try again in {after} s"}
    facts = more | {name: value for name, value in error.facts.items() if name != "fatal"}
    return problem(error.status, error.code, error.message, facts, headers)


def too_large(limit: int, size: int) -> errors.BodyTooLarge:
    """The error of a body that is, or grows, over the limit."""
    return errors.BodyTooLarge(f"the body has {size} bytes or more, the limit is {limit}", limit=limit, size=size)


def invalid(
    details: Iterable[Mapping[str, Any]], meant: Callable[[str], str | None] = lambda _: None
) -> errors.Invalid:
    """The error of a request whose members are off, from pydantic's own list of them.

    `meant` gives what somebody means by a member of the request that there is not.
    """
    details, found = list(details), []
    for error in details[:_TOLD]:
        where = ".".join(map(str, error["loc"]))[:_NAME]
        text = sentence(error, where or "the request")
        other = meant(where) if error["type"] == "extra_forbidden" and len(error["loc"]) == 1 else None
        found.append({"where": where, "error": f"{text}: did you mean {other}?" if other else text})
    more = f"; and {len(details) - 1} more" if len(details) > 1 else ""
    return errors.Invalid(found[0]["error"], detail=found[0]["error"] + more, errors=found)


def documented(*known: type[TilewiseError]) -> dict[int | str, dict[str, Any]]:
    """The statuses of a route for its OpenAPI document, with the codes that each can carry; 500 is always one."""
    by_status: dict[int, list[type[TilewiseError]]] = {_INTERNAL: []}
    for error in known:
        by_status.setdefault(error.status, []).append(error)
    return {status: _described(kinds) for status, kinds in sorted(by_status.items())}


def timed_out() -> dict[int | str, dict[str, Any]]:
    """The 408 of a route that reads a body, for its OpenAPI document."""
    text = (
        "`request_timeout`: the client sent nothing for TILEWISE_IDLE_TIMEOUT, fewer bytes a second than "
        "TILEWISE_MIN_TRANSFER_RATE, or not all within TILEWISE_TRANSFER_TIMEOUT."
    )
    return {408: {"description": text, "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}}}


def install(app: FastAPI, max_body_bytes: int) -> None:
    """Have `app` render every error, and refuse bodies over the limit."""
    app.add_exception_handler(TilewiseError, _raised)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(BodySizeLimit, limit=max_body_bytes, refuse=lambda limit, size: refusal(too_large(limit, size)))


def _described(kinds: Iterable[type[TilewiseError]]) -> dict[str, Any]:
    codes = [f"`{kind.code}`: {(kind.__doc__ or '').strip()}" for kind in kinds]
    answer: dict[str, Any] = {
        "description": "\n\n".join(codes) or "`internal_error`: the service has a fault; its log says which.",
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
    if any(kind.retry_after is not None for kind in kinds):
        wait = {"description": "Seconds after which the same request may succeed.", "schema": {"type": "integer"}}
        answer["headers"] = {"Retry-After": wait}
    return answer


async def _raised(_: Request, error: Exception) -> Response:
    known = cast("TilewiseError", error)
    if known.status >= _INTERNAL and not isinstance(known, errors.Busy):
        _LOG.warning("%s: %s", known.code, known.message)
    return refusal(known)


async def _unfit(_: Request, error: Exception) -> Response:
    return refusal(invalid(cast("RequestValidationError", error).errors()))


async def _framework(request: Request, error: Exception) -> Response:
    known = cast("HTTPException", error)
    status, headers, path = known.status_code, dict(known.headers or {}), request.url.path
    message = f"there is nothing at {path}" if status == HTTPStatus.NOT_FOUND else str(known.detail)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
        message = f"{request.method} is not allowed at {path}: use {headers['Allow']}"
    code = re.sub("[^a-z]+", "_", _title(status).lower())
    return problem(status, code, message, headers=headers)


async def _gone(_: Request, __: Exception) -> Response:
    return problem(400, "disconnected", "the client went away before its request had arrived")


async def _unexpected(_: Request, __: Exception) -> Response:
    return problem(_INTERNAL, "internal_error", "the service has a fault; its log says which")


def _allowed(request: Request) -> str:
    """Every method of every route at the request's path: one path may have several routes."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods.update(getattr(route, "methods", None) or {"GET"})
    methods |= {"HEAD"} if "GET" in methods else set()
    return ", ".join(sorted(methods))


def _title(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "Error"
