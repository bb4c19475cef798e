"""Opaque results of other tuners: kept, fetched, listed and forgotten by namespace and key."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final

import orjson
from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.preconditions import IF_MATCH, IF_NONE_MATCH, etag_condition_of, is_known
from app.api.admission.request_guard import principal_of
from app.api.body.stream import unpacked_body
from app.api.errors import documented, timed_out, too_large
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import header
from app.api.params import PageQuery, StrictModel, paged, read_query
from app.api.responses import Answer, reply
from app.api.schemas import Nothing
from app.api.state import service_of, threads_of
from app.services.cache.service import LONGEST, CacheService
from app.store.records import CacheRecord

router = DirectRouter("cache")

_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_MEDIA: Final = "application/json"
_BINARY: Final = {"type": "string", "format": "binary"}
_ETAG: Final = {"ETag": {"description": "The version of the entry.", "schema": {"type": "string"}}}
Namespace = Annotated[str, Path(description="Whose results: letters, digits and ._:- alone.", examples=["helion"])]
Key = Annotated[str, Path(description="Which of them: letters, digits and ._:- alone.", examples=["ab12"])]


class CachePutQuery(StrictModel):
    """How long an entry is kept."""

    ttl: Annotated[float | None, Field(gt=0, le=1e9, description="Seconds; by default until it is deleted.")] = None


class CacheListQuery(PageQuery):
    """Which page of a namespace's entries, newest first."""

    values: Annotated[bool, Field(description="With the text of each entry.")] = False


class CacheEntry(Answer):
    """An entry; `value` is its text where it is asked for and is text, else null."""

    key: str
    etag: str
    bytes: int
    media_type: str
    created_at: datetime
    expires_at: datetime | None
    value: str | None

    @classmethod
    def of(cls, record: CacheRecord, *, values: bool = False) -> CacheEntry:
        """Take the store's record."""
        value = record.body.decode("utf-8", "replace") if values and record.media == _MEDIA else None
        return cls(
            key=record.key,
            etag=record.etag,
            bytes=len(record.body),
            media_type=record.media,
            created_at=record.created_at,
            expires_at=record.expires_at,
            value=value,
        )


class CacheEntries(Answer):
    """A page of entries, newest first; `next` asks for the page after it."""

    entries: list[CacheEntry]
    next: str | None


_ENTRY: Final = {
    "key": "ab12",
    "etag": '"0f1e2d3c4b5a69788796a5b4c3d2e1f0"',
    "bytes": 210,
    "media_type": _MEDIA,
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": None,
    "value": None,
}
EXAMPLES: Final[dict[str, Any]] = {"CacheEntry": _ENTRY, "CacheEntries": {"entries": [_ENTRY], "next": None}}
_CONDITIONS: Final = [
    header(IF_MATCH, "Only in the place of this version, or of any: `*`."),
    header(IF_NONE_MATCH, "Only where there is none: `*`, or another than this version."),
]
_GOT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The entry, as it was put.",
        "content": {_MEDIA: {"schema": {}, "example": {"BM": 16}}, "application/octet-stream": {"schema": _BINARY}},
        "headers": _ETAG,
    },
    304: {"description": "It is the version that If-None-Match names."},
}
_PUT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": CacheEntry, "description": "The entry, in the place of another.", "headers": _ETAG},
    201: {"model": CacheEntry, "description": "The entry, which is new.", "headers": _ETAG},
}


@router.get(
    "/cache/{namespace}",
    summary="List a namespace's entries, newest first",
    response_model=CacheEntries,
    responses=documented(errors.Invalid, errors.StoreFailed),
    query=CacheListQuery,
)
async def list_cache(request: Request, namespace: Namespace) -> Response:
    """A page of the caller's entries in a namespace. `next` is the page after it: give it as `cursor`."""
    asked = read_query(CacheListQuery, request)
    _check(namespace)
    (before,) = asked.place(int) or (None,)
    arguments = principal_of(request), namespace, before, asked.limit + 1
    found = await threads_of(request).call(_cache(request).list, *arguments)
    page, following = paged(found, asked.limit, lambda one: (one.number,))
    return reply(CacheEntries(entries=[CacheEntry.of(one, values=asked.values) for one in page], next=following))


@router.get(
    "/cache/{namespace}/{key}",
    summary="One entry of a namespace",
    response_class=Response,
    responses=_GOT | documented(errors.UnknownCacheEntry, errors.Invalid, errors.StoreFailed),
    openapi_extra={"parameters": _CONDITIONS[1:]},
)
async def get_cache(request: Request, namespace: Namespace, key: Key) -> Response:
    """What was put there by the same caller, byte for byte."""
    read_query(Nothing, request)
    _check(namespace, key)
    found = await threads_of(request).call(_cache(request).get, principal_of(request), namespace, key)
    headers = {"ETag": found.etag, "X-Content-Type-Options": "nosniff"}
    if is_known(request, found.etag):
        return Response(status_code=304, headers=headers)
    return Response(found.body, 200, headers, found.media)


@router.put(
    "/cache/{namespace}/{key}",
    summary="Keep a result of another tuner",
    responses=_PUT
    | timed_out()
    | documented(
        errors.Malformed,
        errors.PreconditionFailed,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.QuotaExceeded,
        errors.StoreFailed,
    ),
    query=CachePutQuery,
    openapi_extra={
        "parameters": _CONDITIONS,
        "requestBody": {
            "required": True,
            "content": {_MEDIA: {"schema": {}, "example": {"BM": 16}}, "application/octet-stream": {"schema": _BINARY}},
        },
    },
)
async def put_cache(request: Request, namespace: Namespace, key: Key) -> Response:
    """Keep what a tuner found, which this service does not look into: 64 KiB at most, seen by the same caller alone.

    What says it is JSON must be JSON, since whoever fetches it would stumble over it.
    """
    asked = read_query(CachePutQuery, request)
    _check(namespace, key)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in {_MEDIA, "application/octet-stream"}:
        raise errors.UnsupportedMediaType(
            f"an entry is {_MEDIA} or application/octet-stream", accepted=[_MEDIA, "application/octet-stream"]
        )
    body = await _body(request)
    if media == _MEDIA:
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise errors.Malformed(f"the body is no JSON: {error}") from error
    arguments = principal_of(request), (namespace, key), (body, media), asked.ttl, etag_condition_of(request)
    record, is_new = await threads_of(request).call(_cache(request).put, *arguments)
    return reply(CacheEntry.of(record), 201 if is_new else 200, {"ETag": record.etag})


@router.delete(
    "/cache/{namespace}/{key}",
    summary="Forget an entry",
    status_code=204,
    responses=documented(errors.UnknownCacheEntry, errors.Invalid, errors.StoreFailed),
)
async def delete_cache(request: Request, namespace: Namespace, key: Key) -> Response:
    """Forget what was put there."""
    read_query(Nothing, request)
    _check(namespace, key)
    await threads_of(request).call(_cache(request).delete, principal_of(request), namespace, key)
    return Response(status_code=204)


def _cache(request: Request) -> CacheService:
    return service_of(request).cache


async def _body(request: Request) -> bytes:
    found = b""
    async for piece in unpacked_body(request, LONGEST).pieces():
        found += piece
        if len(found) > LONGEST:
            raise too_large(LONGEST, len(found))
    return found


def _check(*names: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise errors.Invalid("a namespace and a key have 1 to 200 letters, digits and ._:-", member="key")
