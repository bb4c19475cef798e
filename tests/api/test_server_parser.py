"""What the server leans on: public names of uvicorn's alone, and where httptools takes a message to end."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import httptools
import pytest
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from tests.support.api.wire_server import Answers, Wired, chance_of, head, served

ROOT = Path(__file__).resolve().parent.parent.parent

TOLD = b"POST /told HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def wired() -> Iterator[Wired]:
    with served("uvloop") as wired:
        yield wired


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


@pytest.mark.rotating
def test_no_private_name_of_uvicorn_is_imported() -> None:
    """What its documentation names: Config and Server, whose state a protocol is given, and `http=` of Config."""
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(name.name.startswith("uvicorn.") for name in node.names), path
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "uvicorn":
                names = {f"{node.module}.{name.name}" for name in node.names}
                assert names <= {"uvicorn.Config", "uvicorn.server.ServerState"}, path


def test_what_follows_the_last_request_of_a_connection_is_no_error(wired: Wired) -> None:
    last = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=5) + b"12345" + last + head("GET", "/hello"))
        assert [answers.read()[0] for _ in range(2)] == [200, 200]
        assert answers.file.read() == b""


@pytest.mark.parametrize("value", [b"17", b"17 ", b"17\t ", b"017"])
def test_a_length_is_a_plain_number_to_all_who_read_it(wired: Wired, value: bytes) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(
            b"POST /told HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + value + b"\r\n\r\n" + b"x" * 17
        )
        status, _, body = answers.read()
        assert (status, body.endswith(b"x" * 17)) == (200, True)
        assert b"content-length: 17; " in body


@pytest.mark.parametrize("value", [b"", b"+17", b"1_7", b"1 7", b"\xb2"])
def test_a_length_that_is_no_number_is_refused(wired: Wired, value: bytes) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(
            b"POST /told HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + value + b"\r\n\r\n" + b"x" * 17
        )
        assert answers.read()[0] == 400


def test_an_answer_that_breaks_http_or_none_at_all_is_500_or_cut_off() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send
        raise ZeroDivisionError

    async def splitting(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nb: c")]})

    async def short(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"12345"})

    applications = {"/silent": silent, "/failing": failing, "/splitting": splitting, "/short": short}
    with served("uvloop", routes=[Mount(path, app) for path, app in applications.items()]) as wired:
        for path in ("/silent/", "/splitting/"):
            with wired.connect() as connection, Answers(connection) as answers:
                connection.sendall(head("GET", path))
                status, headers, body = answers.read()
                assert (status, headers["content-type"]) == (500, "application/problem+json")
                assert (headers["connection"], json.loads(body)["code"]) == ("close", "internal_error")
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("GET", "/failing/"))
            assert answers.read()[0] == 500
        with wired.connect() as connection:
            connection.sendall(head("GET", "/short/"))
            assert not connection.makefile("rb").read().endswith(b"12345")


def test_answer_without_a_length_is_chunked_and_head_has_no_body() -> None:
    async def pieces(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    with served("uvloop", routes=[Mount("/pieces", pieces)]) as wired, wired.connect() as connection:
        file = connection.makefile("rb")
        connection.sendall(head("HEAD", "/pieces/"))
        while (line := file.readline()) != b"\r\n":
            assert not line.lower().startswith(b"transfer-encoding")
        connection.sendall(head("GET", "/pieces/"))
        lines = list[bytes]()
        while (line := file.readline()) != b"\r\n":
            lines.append(line.lower())
        assert b"transfer-encoding: chunked\r\n" in lines
        assert file.read(len(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")) == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
