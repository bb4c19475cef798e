"""What the wire leans on: names of uvicorn's, some of them private, and where httptools takes a message to end.

A version of either that is otherwise fails here.
"""

from __future__ import annotations

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import httptools
import pytest
import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from wired import chance_of

from app.api.body.stream import declared_length
from app.api.errors import problem
from app.server import BulkProtocol, TransferLimits, protocol_factory
from app.server.http import HttpParser
from app.server.request import StreamingCycle

ROOT = Path(__file__).resolve().parent.parent.parent


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""


class Transport(asyncio.Transport):
    """A connection to nobody."""

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def requests() -> HttpParser:
    loop = asyncio.new_event_loop()
    try:
        config = uvicorn.Config(nothing, http=protocol_factory(TransferLimits(), problem), log_config=None)
        config.load()
        make: Any = config.http_protocol_class
        bulk = make(config=config, server_state=ServerState(), app_state={}, _loop=loop)
        assert isinstance(bulk, BulkProtocol)
        return bulk._http
    finally:
        loop.close()


@pytest.mark.parametrize("name", ["uvicorn[standard]", "httptools"])
def test_one_minor_version_is_allowed_and_it_is_the_installed_one(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minor = ".".join(version(name.partition("[")[0]).split(".")[:2])
    after = f"0.{int(minor.split('.')[1]) + 1}"
    assert f"{name}>={minor},<{after}" in project["dependencies"]


class Ends:
    """Counts the heads and the messages that a parser takes to be complete."""

    count = 0

    def on_headers_complete(self) -> None:
        self.count += 1

    on_message_complete = on_headers_complete


@pytest.mark.parametrize("seed", range(4))
def test_a_head_and_a_chunked_body_end_with_a_blank_line_and_nowhere_else(seed: int) -> None:
    chance, ended = chance_of(seed), 0
    begins = (b"GET / HTTP/1.1\r\nA: b", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    tokens = (b"\r\n", b"\n", b"\r", b"0", b"1", b";x", b" ", b"A: b\r\n", b"0\r\n", b"\r\n\r\n", b"5\r\nhello\r\n")
    for _ in range(1500):
        sent, ends = chance.choice(begins) + b"".join(chance.choices(tokens, k=chance.randrange(9))), Ends()
        parser = httptools.HttpRequestParser(ends)
        try:
            for at in range(len(sent)):
                before = ends.count
                parser.feed_data(sent[at : at + 1])
                assert ends.count == before or sent[: at + 1].endswith(b"\r\n\r\n"), sent
        except httptools.HttpParserError:
            pass
        ended += ends.count
    assert ended > 500


def test_a_connection_is_made_with_the_arguments_that_uvicorn_gives() -> None:
    given = ["config", "server_state", "app_state", "_loop"]
    assert list(inspect.signature(HttpToolsProtocol).parameters) == given
    assert list(inspect.signature(BulkProtocol).parameters)[: len(given)] == given


def test_a_cycle_has_what_ours_reads_and_sets(requests: HttpParser) -> None:
    names = set(inspect.signature(RequestResponseCycle).parameters)
    made = RequestResponseCycle(**dict.fromkeys(names, None))  # type: ignore[arg-type]  # only its attributes are asked for
    read = ("transport", "disconnected", "keep_alive", "waiting_for_100_continue", "response_complete")
    for name in (*read, "response_started", "message_event"):
        assert hasattr(made, name), name
    assert not set(StreamingCycle.__annotations__) & set(vars(made)), "a name of ours is uvicorn's"
    assert not set(vars(StreamingCycle)) & set(vars(made))
    assert not requests.is_busy
    assert inspect.iscoroutinefunction(RequestResponseCycle.send)
    assert inspect.iscoroutinefunction(RequestResponseCycle.receive)


def test_a_protocol_has_what_ours_calls_and_overrides(requests: HttpParser) -> None:
    for name in ("parser", "scope", "headers", "flow", "scheme", "server_state", "transport", "pipeline"):
        assert hasattr(requests, name), name
    overridden = ("on_headers_complete", "on_message_complete", "on_response_complete")
    for name in (*overridden, "on_body", "send_400_response", "data_received", "connection_lost", "pause_writing"):
        assert next(iter(inspect.signature(getattr(HttpToolsProtocol, name)).parameters)) == "self"
    for name in overridden:
        assert len(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == 1, name
    ours = {name for name in vars(HttpParser) if not name.startswith("__")} | {
        "begun",
        "streams",
        "_tail",
        "_idle",
        "_connection",
    }
    theirs = set(vars(HttpToolsProtocol)) | set(
        vars(HttpToolsProtocol(requests.config, ServerState(), {}, requests.loop))
    )
    assert ours & theirs == {*overridden, "on_header", "on_body", "send_400_response"}
    for name in ("pause_reading", "resume_reading", "drain"):
        assert callable(getattr(FlowControl, name))
    assert STATUS_LINE[431].startswith(b"HTTP/1.1 431 ")


def test_a_head_starts_a_cycle_that_answers_when_it_is_complete(requests: HttpParser) -> None:
    loop = asyncio.new_event_loop()
    try:
        requests.loop = loop
        requests.connection_made(Transport())
        requests.data_received(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
        assert requests.begun
        assert isinstance(requests.cycle, StreamingCycle)
        assert requests.cycle.left == 5
        assert requests.is_busy
        loop.run_until_complete(asyncio.gather(*requests.tasks, return_exceptions=True))
    finally:
        loop.close()


def test_every_parser_of_a_connection_takes_what_the_first_one_takes(requests: HttpParser) -> None:
    loop = asyncio.new_event_loop()
    try:
        requests.loop = loop
        requests.connection_made(Transport())
        first = requests.parser
        requests.data_received(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
        requests.cycle.response_complete = True
        requests.on_response_complete()
        assert requests.parser is not first
        last = b"GET /b HTTP/1.1\r\nConnection: close\r\n\r\n"
        requests.parser.feed_data(last + b"GET /c HTTP/1.1\r\n\r\n")  # raises where the parser is stricter
        assert requests.scope["path"] == "/b"
        loop.run_until_complete(asyncio.gather(*requests.tasks, return_exceptions=True))
    finally:
        loop.close()


def test_a_length_is_a_plain_number_to_all_who_read_it_or_refused(requests: HttpParser) -> None:
    for value in (b"17", b"17 ", b"17\t ", b"017"):
        requests.on_message_begin()
        requests.headers.append((b"content-length", value))
        assert requests._framing() == (False, 17)
        scope = cast("dict[str, Any]", requests.scope)
        assert declared_length(Request(scope)) == 17
    for value in (b"", b"+17", b"1_7", b"1 7", b"\xb2"):
        requests.on_message_begin()
        requests.headers.append((b"content-length", value))
        with pytest.raises(ValueError, match="is no length"):
            requests._framing()
