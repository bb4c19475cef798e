"""HTTP to the letter: versions, codings, heads that are too long, upgrades, and clients that end their side."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from app.server import TransferLimits
from tests.support.api.wire_server import EITHER, Answers, Wired, head, served
from tests.support.waiting import until

GET = b"GET /hello %b\r\nHost: localhost\r\n\r\n"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
ABC = hashlib.sha256(b"abc").hexdigest().encode()
PATIENCE = 0.4  # seconds of idle_timeout where it is short


async def later(request: Request) -> Response:
    """An answer that takes so long, as a job's or a large product's does."""
    await asyncio.sleep(float(request.query_params["seconds"]))
    return PlainTextResponse("later" * int(request.query_params.get("times", 1)))


async def watched(request: Request) -> Response:
    """Nothing until the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.app.state.wired.seen.append("gone")
    return PlainTextResponse("nobody reads this")


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param, routes=[Route("/later", later), Route("/watched", watched)]) as running:
        yield running


def refusal(wired: Wired, sent: bytes) -> tuple[int, str]:
    """The status and the code of the one answer, with which the connection ends."""
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(sent)
        status, headers, body = answers.read()
        assert headers["connection"] == "close"
        assert answers.file.read() == b""
        return status, json.loads(body)["code"]


def ended(wired: Wired, sent: bytes) -> bytes:
    """All that a client hears that sends this and ends its side at once."""
    with wired.connect() as connection, connection.makefile("rb") as file:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return file.read()


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/9.9"])
def test_another_version_is_505(wired: Wired, version: bytes) -> None:
    assert refusal(wired, GET % version) == (505, "http_version_not_supported")


def test_another_version_is_505_however_it_is_cut(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(sent := GET % b"HTTP/2.0")):
            connection.sendall(sent[at : at + 1])
        status, _, body = answers.read()
    assert (status, json.loads(body)["code"]) == (505, "http_version_not_supported")


def test_the_preface_of_another_protocol_is_505(wired: Wired) -> None:
    assert refusal(wired, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == (505, "http_version_not_supported")


@pytest.mark.parametrize("line", [b"GET /hello", b"GET /hello RTSP/1.0", b"GET /hello\r\nHost: localhost"])
def test_a_request_line_without_a_version_of_http_is_400(wired: Wired, line: bytes) -> None:
    assert refusal(wired, line + b"\r\n\r\n") == (400, "bad_request")


@pytest.mark.parametrize(
    "lines",
    [
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: deflate\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_coding_but_chunked_is_501(wired: Wired, lines: bytes) -> None:
    sent = b"POST /landed HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n\r\n" + CHUNKS
    assert refusal(wired, sent) == (501, "not_implemented")


def test_http_1_0_has_no_chunks_and_is_not_told_to_continue(wired: Wired) -> None:
    begin = b"POST /landed HTTP/1.0\r\n"
    assert refusal(wired, begin + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS) == (400, "bad_request")
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(begin + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1, socket.MSG_PEEK)
        connection.settimeout(20)
        connection.sendall(b"abc")
        assert answers.read()[::2] == (200, ABC)


def test_a_head_that_is_too_long_is_431_in_one_piece_too(wired: Wired) -> None:
    fits = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"y" * 65_000 + b"\r\n\r\n"
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(fits)
        assert answers.read()[0] == 200
        connection.sendall(fits.replace(b"y", b"z" * 600, 1))
        assert answers.read()[0] == 431


def test_an_upgrade_that_is_not_taken_leaves_a_chunked_body(wired: Wired) -> None:
    """As Java's HttpClient sends each of its first requests."""
    upgrade: dict[str, Any] = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABk"}
    begin = head("POST", "/landed", Transfer_Encoding="chunked", **upgrade)
    for pieces in ([begin + CHUNKS], [begin, CHUNKS], [begin + CHUNKS[:5], CHUNKS[5:]]):
        with wired.connect() as connection, Answers(connection) as answers:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.01)
            assert answers.read()[::2] == (200, ABC)


@pytest.mark.parametrize(
    "sent",
    [
        head("GET", "/later?seconds=0.1"),
        head("GET", "/later?seconds=0.1&times=1000000"),
        head("POST", "/landed", length=3) + b"abc",
        head("POST", "/landed", Transfer_Encoding="chunked") + CHUNKS,
    ],
)
def test_a_client_that_ends_its_side_gets_its_answer(wired: Wired, sent: bytes) -> None:
    heard = ended(wired, sent)
    assert heard.startswith(b"HTTP/1.1 200 OK")
    assert len(heard.partition(b"\r\n\r\n")[2]) == int(heard.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def test_a_client_that_ends_its_side_gets_the_answers_to_all_that_it_sent(wired: Wired) -> None:
    heard = ended(wired, head("GET", "/later?seconds=0.1") * 2 + head("GET", "/hello") + b"GET /hel")
    assert heard.count(b"HTTP/1.1 200 OK") == 3
    assert heard.endswith(b"hello")


@pytest.mark.slow
def test_a_late_answer_finds_the_client_that_ended_its_side(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("GET", "/later?seconds=1"))
        connection.shutdown(socket.SHUT_WR)
        assert answers.read()[0] == 100  # by which the service finds out that somebody is there
        assert answers.read()[::2] == (200, b"later")
        assert answers.file.read() == b""
    old = ended(wired, head("GET", "/later?seconds=1").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert old.startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_is_gone_is_noticed_while_its_answer_is_made(wired: Wired) -> None:
    wired.seen.clear()
    with wired.connect() as connection:
        connection.sendall(head("GET", "/watched"))
        time.sleep(0.05)
    until(lambda: wired.seen == ["gone"], 10, each=0.01)


@pytest.mark.parametrize("sent", [head("POST", "/landed", length=10**6), head("POST", "/landed", length=9) + b"abc"])
def test_a_client_that_ends_its_side_within_its_body_is_gone(wired: Wired, sent: bytes) -> None:
    wired.seen.clear()
    assert ended(wired, sent) == b""
    until(lambda: "gone" in wired.seen, 10, each=0.01)


@pytest.mark.slow
def test_a_body_that_does_not_come_after_its_answer_ends_the_connection() -> None:
    begin = head("POST", "/refused", length=10**6)
    with served("uvloop", TransferLimits(idle_timeout=PATIENCE)) as strict:
        with strict.connect() as connection, Answers(connection) as answers:
            connection.settimeout(10 * PATIENCE)  # less than it has for a next request, which is 5 s here
            connection.sendall(begin)
            assert answers.read()[0] == 413
            assert answers.file.read() == b""
        with strict.connect() as connection, Answers(connection) as answers:
            connection.sendall(begin)
            assert answers.read()[0] == 413
            connection.sendall(bytes(10**6))  # one that has come leaves the connection its usual time
            time.sleep(2 * PATIENCE)
            connection.sendall(head("GET", "/hello"))
            assert answers.read()[0] == 200
