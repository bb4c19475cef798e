"""Idempotency-Key for routes: executes a request once, replays its first answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from anyio import CancelScope
from starlette.requests import Request
from starlette.responses import Response

from app.api.admission.request_guard import principal_of
from app.api.errors import refusal
from app.api.openapi.parameters import header
from app.api.responses import Job, reply
from app.api.state import service_of, threads_of
from app.errors import Malformed, TilewiseError
from app.services.jobs.idempotency import IdempotentRequest
from app.store.records import AnswerRecord, JobRecord

_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"')
_BARE: Final = re.compile(r"[!#-+\--:<-\[\]-~]{1,255}")
KEY: Final = header(
    "Idempotency-Key",
    "A key of the caller's own, such as a quoted UUID: the same request with it is done once, within"
    " TILEWISE_IDEMPOTENCY_TTL seconds, and its first answer is replayed.",
    type="string",
    pattern=f"^(?:{_QUOTED.pattern}|{_BARE.pattern})$",
)
REPLAYED: Final = "Idempotent-Replayed"
_KEPT: Final = ("location", "retry-after", "preference-applied", "content-type")
Act = Callable[[IdempotentRequest | None], Awaitable[Response]]
Result = Callable[[JobRecord], Awaitable[Response]]


async def once(request: Request, fingerprint: str, act: Act, result: Result) -> Response:
    """Act where the request's key is new or it has none, else replay; raises Malformed, KeyInUse, KeyReused.

    `result` answers with the result of a job, whose bytes are not kept a second time.
    """
    key = key_of(request)
    if key is None:
        return await act(None)
    service, threads = service_of(request), threads_of(request)
    known = await threads.call(service.idempotency.claim, principal_of(request), key, fingerprint)
    if isinstance(known, AnswerRecord):
        return await _replayed(request, known, result)
    try:
        response = await act(known)
    except BaseException as error:
        with CancelScope(shield=True):
            await _failed(request, known, error)
        raise
    body = bytes(response.body).decode() if hasattr(response, "body") else None
    await threads.call(service.idempotency.answered, known, response.status_code, _kept(response), body)
    return response


async def _failed(request: Request, attempt: IdempotentRequest, error: BaseException) -> None:
    """Keep what a request with a job was answered, unless the same may succeed later; else its key is free again."""
    service, threads = service_of(request), threads_of(request)
    told = refusal(error) if isinstance(error, TilewiseError) else None
    if told is None or "retry-after" in told.headers:
        await threads.call(service.idempotency.given_up, attempt)
    else:
        body = bytes(told.body).decode()
        await threads.call(service.idempotency.failed, attempt, told.status_code, _kept(told), body)


def _kept(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name in _KEPT}


def key_of(request: Request) -> str | None:
    """The request's Idempotency-Key, or None; raises Malformed where it is no string of 1 to 255 characters.

    The draft has it a quoted string; a bare one is the same key.
    """
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    quoted = _QUOTED.fullmatch(given[0].strip())
    bare = _BARE.fullmatch(given[0].strip())
    if len(given) > 1 or not (quoted or bare):
        raise Malformed("Idempotency-Key is one quoted string of 1 to 255 characters")
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else given[0].strip()


async def _replayed(request: Request, known: AnswerRecord, result: Result) -> Response:
    if known.status is not None and known.body is not None:
        headers: dict[str, Any] = {**(known.headers or {}), REPLAYED: "true"}
        return Response(known.body.encode(), known.status, headers)
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.jobs.get, known.job_id or "")
    if known.status is None:  # the process that took the request ended, or could not write what it answered
        return reply(Job.of(job), 202, {"Location": f"/jobs/{job.id}", "Retry-After": "1", REPLAYED: "true"})
    response = await result(job)
    told = {name: value for name, value in (known.headers or {}).items() if name != "content-type"}
    response.headers.update(told | {REPLAYED: "true"})
    return response
