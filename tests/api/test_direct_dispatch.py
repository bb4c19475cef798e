"""Routes whose paths have no parameters are found by the path; every other request is the framework's router's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from app.api.openapi.direct_route import DirectDispatch, DirectRouter
from app.errors import NotTuned

ROUTER = DirectRouter("tests")


@ROUTER.get("/plain")
async def plain(request: Request) -> Response:
    """Answer, or raise what the query says."""
    if request.url.query:
        raise NotTuned("it has not been tuned")
    return PlainTextResponse("direct")


@ROUTER.get("/of/{name}")
async def of(request: Request, name: str) -> Response:
    """Never reached here: its path has a parameter."""
    raise AssertionError((request, name))


async def router(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("router")(scope, receive, send)


async def told(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"handled: {error}", status_code=404)


async def answer(method: str, path: str, query: bytes = b"", **other: Any) -> tuple[int, str]:
    dispatch = DirectDispatch(router, ROUTER.routes, {NotTuned: told, Exception: told})
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], "query_string": query}
    await dispatch({**scope, **other}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ({"method": "GET", "path": "/plain"}, 200, "direct"),
        ({"method": "HEAD", "path": "/plain"}, 200, ""),
        ({"method": "GET", "path": "/plain", "query": b"n=1"}, 404, "handled: it has not been tuned"),
        ({"method": "POST", "path": "/plain"}, 200, "router"),
        ({"method": "GET", "path": "/plain/"}, 200, "router"),
        ({"method": "GET", "path": "/of/it"}, 200, "router"),
        ({"method": "GET", "path": "/of/{name}"}, 200, "router"),
        ({"method": "GET", "path": "/below/plain", "root_path": "/below"}, 200, "router"),
    ],
)
def test_a_path_without_parameters_is_answered_at_once(asked: dict[str, Any], status: int, body: str) -> None:
    assert asyncio.run(answer(**asked)) == (status, body)
