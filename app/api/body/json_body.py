"""Reads a JSON body that holds no matrix, as a strict model."""

from __future__ import annotations

from typing import Final, TypeVar

import orjson
from starlette.requests import Request

from app.api.body.stream import unpacked_body
from app.api.errors import too_large
from app.api.params import StrictModel, validated
from app.api.state import threads_of
from app.errors import Malformed, UnsupportedMediaType

M = TypeVar("M", bound=StrictModel)

_LONGEST: Final = 2**17  # bytes: 256 shapes take a tenth of them


async def read_json(model: type[M], request: Request) -> M:
    """The JSON body as a model; raises UnsupportedMediaType, BodyTooLarge, Malformed, Invalid."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedMediaType(
            f"Content-Type must be application/json: {f'got {media}' if media else 'the request has none'}",
            accepted=["application/json"],
        )
    text = await _short(request)
    return await threads_of(request).parse(len(text), _document, model, text)


async def read_document(model: type[M], request: Request) -> M:
    """As read_json, whatever type the body says it has; nothing is an object without members."""
    text = await _short(request) or b"{}"
    return await threads_of(request).parse(len(text), _document, model, text)


def _document(model: type[M], text: bytes) -> M:
    try:
        members = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is no JSON: {error}") from error
    return validated(model, members)


async def _short(request: Request) -> bytes:
    """The whole of a body that has no reason to be long; raises UnsupportedMediaType, Malformed, BodyTooLarge."""
    body, text = unpacked_body(request, _LONGEST), b""
    size = body.length or 0
    if size <= _LONGEST:
        async for piece in body.pieces():
            text += piece
            size = len(text)
            if size > _LONGEST:
                break
    if size > _LONGEST:
        raise too_large(_LONGEST, size)
    return text
