"""API keys: made, listed, revoked; and the session that a browser gets for one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import COOKIE
from app.api.body.json_body import read_json
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import body
from app.api.params import WHOLE, StrictModel, read_query
from app.api.responses import Answer, reply
from app.api.schemas import Nothing
from app.api.state import service_of, threads_of
from app.services.access.api_keys import SESSION_SECONDS
from app.services.principal import UsageQuota, scopes_of
from app.store.records import ApiKeyRecord

router = DirectRouter("keys")

_TEN_YEARS = 10 * 366 * 86400
_Scope = Literal["read", "tune", "multiply", "manage", "metrics"]
Count = Annotated[int, Field(ge=0), WHOLE]
Lifetime = Annotated[int, Field(ge=1, le=_TEN_YEARS), WHOLE]
PrincipalName = Annotated[
    str, Field(description="On whose behalf the key's bearer acts.", pattern=r"^[ -~]{1,200}$", examples=["ann"])
]
Scopes = Annotated[list[_Scope], Field(description="What the key's bearer may do.", min_length=1, max_length=5)]
KeyId = Annotated[str, Path(description="The key's id.")]


class QuotaMembers(StrictModel):
    """What a principal may use; what is left out is left to what the service allows everybody."""

    requests_per_second: Annotated[float | None, Field(gt=0, le=1e6)] = None
    share: Annotated[float | None, Field(gt=0, le=1, description="Of the product queue and the slab.")] = None
    bytes_in_flight: Count | None = None
    tune_seconds_per_hour: Annotated[float | None, Field(ge=0)] = None
    product_seconds_per_hour: Annotated[float | None, Field(ge=0)] = None
    jobs: Annotated[Count | None, Field(description="Tune jobs that have not ended.")] = None
    resident_bytes: Count | None = None


class KeyRequest(StrictModel):
    """A key to be made."""

    principal: PrincipalName
    scopes: Scopes = Field(default=["read", "tune", "multiply"])
    seconds: Annotated[Lifetime | None, Field(description="After which it expires; never if null.")] = None
    certificate: Annotated[
        bool, Field(description="No key is made: `principal` is the subject of a client certificate that acts.")
    ] = False
    quota: QuotaMembers = QuotaMembers()


class Login(StrictModel):
    """A key, for a browser's session."""

    key: Annotated[str, Field(min_length=1, max_length=512)]


class ApiKey(Answer):
    """A key, but for what its bearer shows."""

    id: str
    principal: PrincipalName
    scopes: list[str]
    quota: dict[str, float]
    certificate: Annotated[bool, Field(description="Whether a client certificate is shown in its place.")]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, record: ApiKeyRecord, **more: Any) -> ApiKey:
        """Take the store's record."""
        members = asdict(record)
        return cls(certificate=members.pop("digest") is None, **members, **more)


class NewApiKey(ApiKey):
    """A key as it is told once."""

    key: Annotated[
        str | None,
        Field(
            description="What its bearer shows as `Authorization: Bearer KEY`. It is told here and never again.",
            examples=["tw_0f1e2d3c4b5a_..."],
        ),
    ] = None


class ApiKeys(Answer):
    """Every key that was made."""

    keys: list[ApiKey]


MODELS = (KeyRequest, Login)
_EXAMPLE: Final[dict[str, Any]] = {
    "id": "0f1e2d3c4b5a",
    "principal": "ann",
    "scopes": ["multiply", "read"],
    "quota": {"requests_per_second": 50},
    "certificate": False,
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": None,
    "revoked_at": None,
}
EXAMPLES: Final[dict[str, Any]] = {
    "KeyRequest": {
        "principal": "ann",
        "scopes": ["read", "multiply"],
        "seconds": 7776000,
        "certificate": False,
        "quota": {"requests_per_second": 50},
    },
    "Login": {"key": "tw_0f1e2d3c4b5a_..."},
    "ApiKey": _EXAMPLE,
    "NewApiKey": _EXAMPLE | {"key": "tw_0f1e2d3c4b5a_..."},
    "ApiKeys": {"keys": [_EXAMPLE]},
}


@router.post(
    "/keys",
    summary="Make an API key",
    status_code=201,
    response_model=NewApiKey,
    responses=documented(
        errors.UnsupportedMediaType, errors.BodyTooLarge, errors.Malformed, errors.Invalid, errors.StoreFailed
    ),
    openapi_extra={"requestBody": body(KeyRequest)},
)
async def create_key(request: Request) -> Response:
    """Make a key. Several keys of one principal hold side by side: a new one is used before the old one is revoked."""
    asked, keys = await read_json(KeyRequest, request), service_of(request).access.keys
    lifetime = None if asked.seconds is None else timedelta(seconds=asked.seconds)
    record, token = await threads_of(request).call(
        keys.create,
        asked.principal,
        scopes_of(asked.scopes),
        UsageQuota(**asked.quota.model_dump()),
        lifetime=lifetime,
        certificate=asked.certificate,
    )
    return reply(NewApiKey.of(record, key=token), 201, {"Cache-Control": "no-store"})


@router.get(
    "/keys", summary="List API keys", response_model=ApiKeys, responses=documented(errors.Invalid, errors.StoreFailed)
)
async def list_keys(request: Request) -> Response:
    """Every key that was ever made, newest first, without what its bearer shows."""
    read_query(Nothing, request)
    records = await threads_of(request).call(service_of(request).access.keys.list)
    return reply(ApiKeys(keys=[ApiKey.of(record) for record in records]))


@router.delete(
    "/keys/{key_id}",
    summary="Revoke an API key",
    response_model=ApiKey,
    responses=documented(errors.UnknownApiKey, errors.Invalid, errors.StoreFailed),
)
async def revoke_key(request: Request, key_id: KeyId) -> Response:
    """End a key, and the sessions that were begun with it: the next request is refused."""
    read_query(Nothing, request)
    return reply(ApiKey.of(await threads_of(request).call(service_of(request).access.keys.revoke, key_id)))


@router.post(
    "/login",
    summary="Begin a browser's session",
    status_code=204,
    response_class=Response,
    responses=documented(
        errors.Unauthenticated, errors.UnsupportedMediaType, errors.BodyTooLarge, errors.Malformed, errors.Invalid
    ),
    openapi_extra={"requestBody": body(Login), "security": []},
)
async def login(request: Request) -> Response:
    """Give a cookie in place of a key: a page sends no header of its own with a link or an event stream."""
    asked = await read_json(Login, request)
    session = service_of(request).access.keys.session_of(asked.key)
    answer = Response(status_code=204, headers={"Cache-Control": "no-store"})
    _set(answer, request, session, SESSION_SECONDS)
    return answer


@router.post(
    "/logout",
    summary="End a browser's session",
    status_code=204,
    response_class=Response,
    responses=documented(),
    openapi_extra={"security": []},
)
async def logout(request: Request) -> Response:
    """Have the browser forget the cookie."""
    answer = Response(status_code=204)
    _set(answer, request, "", 0)
    return answer


def _set(answer: Response, request: Request, value: str, seconds: int) -> None:
    """Set the cookie, for requests from the service's own pages alone (RFC 6265bis, SameSite)."""
    answer.set_cookie(
        COOKIE, value, max_age=seconds, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
