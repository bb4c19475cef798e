"""Errors that no route of ours raises on purpose: they too have the one shape, and tell nothing of the inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.requests import Request

from app.api import router
from app.api.body.dispatch import answer_media
from app.api.negotiation import preference
from app.errors import ChildDied, NotAcceptable, TilewiseError, TooLarge

Get = Callable[[str], httpx.Response]


@pytest.fixture
def get() -> Get:
    """Ask an application that has routes of ours, and some that go wrong."""
    app = FastAPI()
    router.include(app, max_body_bytes=1000)

    @app.get("/bug")
    async def bug() -> None:
        raise ZeroDivisionError("a secret")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", {"X-Spout": "1"})

    @app.get("/typed")
    async def typed(number: int) -> int:
        return number

    @app.get("/raised/{which}")
    async def raised(which: str) -> None:
        kinds: dict[str, TilewiseError] = {
            "died": ChildDied("the child died", stage="launch", fatal=True),
            "large": TooLarge("too large", limit=1, size=2, status=7, code="mine"),
        }
        raise kinds[which]

    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get(path)

    return lambda path: asyncio.run(ask(path))


def test_an_unexpected_error_tells_nothing_of_itself(get: Get, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        answer = get("/bug")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal_error"
    assert "secret" not in answer.text


def test_the_frameworks_exceptions_keep_their_status_and_headers(get: Get) -> None:
    answer = get("/teapot")
    assert (answer.status_code, answer.json()["error"]) == (418, "short and stout")
    assert answer.json()["code"] == "i_m_a_teapot"
    assert answer.headers["x-spout"] == "1"


def test_the_frameworks_validation_has_our_shape(get: Get) -> None:
    answer = get("/typed?number=x")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"][0]["where"] == "query.number"


def test_an_error_says_when_to_come_back_and_facts_hide_no_member(get: Get) -> None:
    died = get("/raised/died")
    assert (died.status_code, died.headers["retry-after"]) == (503, "1")
    assert died.json()["stage"] == "launch"
    assert "fatal" not in died.json()
    large = get("/raised/large").json()
    assert (large["status"], large["code"], large["limit"], large["size"]) == (422, "too_large", 1, 2)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("application/x-npy", "application/x-npy"),
        ("text/html, application/octet-stream;q=0.2, application/x-npy;q=0.1", "application/octet-stream"),
        ("application/json;q=0, */*;q=0.5", "application/x-npy"),
        ("APPLICATION/X-NPY ; Q=1.0", "application/x-npy"),
        ("application/json;q=bad, application/octet-stream", "application/octet-stream"),
    ],
)
def test_accept_is_weighed_as_http_says(accept: str, media: str) -> None:
    assert answer_media(accept, "application/json") == media


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*, text/*;q=0.3", "*/*;q=0"])
def test_an_accept_that_names_nothing_we_write_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        answer_media(accept, "application/json")


@pytest.mark.parametrize(
    ("prefer", "respond_async", "seconds", "applied"),
    [
        ([], False, None, ""),
        (["respond-async"], True, None, "respond-async"),
        (["wait=5"], False, 5.0, "wait=5"),
        (["respond-async, wait=5"], True, 5.0, "respond-async, wait=5"),
        (["wait=5", "Respond-Async"], True, 5.0, "respond-async, wait=5"),
        (['WAIT = "7" ; x'], False, 7.0, "wait=7"),
        (["wait=1000"], False, 60.0, "wait=60"),
        (["wait=0"], False, 0.0, "wait=0"),
        (["wait=2, wait=3"], False, 2.0, "wait=2"),
        (["wait=-1"], False, None, ""),
        (["wait=x, respond-async"], True, None, "respond-async"),
        (["await=5, respond-asynchronously"], False, None, ""),
        (['foo="a, respond-async, wait=3"; bar'], False, None, ""),
        (["handling=lenient; wait=3, ,"], False, None, ""),
        (["return=minimal, respond-async"], True, None, "respond-async"),
        (['respond-async="", wait="5"; a="b;c,d"'], True, 5.0, "respond-async, wait=5"),
        (['a="\\", respond-async"', "wait=3"], False, 3.0, "wait=3"),
        (['wait="1\\0"'], False, 10.0, "wait=10"),
        (['wait="5', "respond-async"], False, None, ""),
        (["respond async, wait=5 6, wait=4"], False, 4.0, "wait=4"),
        (["respond-async" + " " * 2000 + "!"], False, None, ""),
        (["a=" + "b" * 1006, "respond-async"], True, None, "respond-async"),
        (["a=" + "b" * 1009, "respond-async"], False, None, ""),
    ],
)
def test_preferences_are_read_as_rfc_7240_has_them(
    prefer: list[str], respond_async: bool, seconds: float | None, applied: str
) -> None:
    scope = {"type": "http", "headers": [(b"prefer", each.encode()) for each in prefer]}
    found = preference(Request(scope))
    assert (found.respond_async, found.wait, found.applied) == (respond_async, seconds, applied)
