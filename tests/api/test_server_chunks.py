"""Chunked bodies as a client meets them: what nobody reads is not taken, and no answer has a word of another."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from app.server import TransferLimits
from app.server.http import HEAD
from tests.support.api.wire_server import EITHER, Answers, Wired, chance_of, chunked, head, served
from tests.support.waiting import until

FLOOD = 2**26  # bytes: more than the system keeps of a connection
SIZE = 20_000_000  # bytes of an answer that does not leave before its client reads
EMITTED = head("GET", f"/emitted?size={SIZE}&byte=1", Transfer_Encoding="chunked")
REFUSED = head("POST", "/refused", Transfer_Encoding="chunked") + b"5\r\nhello\r\n"
LANDED = head("POST", "/landed", Transfer_Encoding="chunked")


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param) as running:
        yield running


@pytest.fixture(scope="module", params=EITHER)
def strict(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param, TransferLimits(idle_timeout=0.4, transfer_timeout=2.0, min_rate=1000)) as running:
        yield running


def flooded(connection: socket.socket) -> int:
    """Send zeros until the server takes none for a while; gives how many it took."""
    zeros, sent = memoryview(bytes(2**20)), 0
    connection.settimeout(0.5)
    try:
        while sent < FLOOD:
            sent += connection.send(zeros[: FLOOD - sent])
    except TimeoutError:
        pass
    connection.settimeout(20)
    return sent


def dripped(connection: socket.socket, piece: bytes) -> float:
    """Send a piece over and over until the connection ends; gives after how many seconds, 5 at most."""
    began = time.monotonic()
    try:
        while time.monotonic() < began + 5:
            connection.sendall(piece)
            time.sleep(0.02)
    except OSError:
        return time.monotonic() - began
    return 5


def told(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["connection"] == "close"
    return status, json.loads(body)["code"]


def rest(answers: Answers) -> bytes:
    """What comes until the connection ends."""
    found = bytearray()
    try:
        while piece := answers.file.read1(2**20):
            found += piece
    except ConnectionResetError:
        pass
    return bytes(found)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(4))
def test_chunked_body_ends_where_it_ends_however_it_is_cut(wired: Wired, seed: int) -> None:
    chance, tokens = (
        chance_of(seed),
        (b"\r\n", b"\r", b"\n", b"0", b"0\r\n\r\n", b"\r\n0\r\n\r\n", b"a: b\r\n\r\n", b"x"),
    )
    with wired.connect() as connection, Answers(connection) as answers:
        for _ in range(12):
            data = b"".join(chance.choices(tokens, k=chance.randrange(40)))
            trailers = chance.choice((b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nX-More: 2\r\n"))
            sent = LANDED + chunked(data, *chance.choices((1, 2, 3, 30), k=8))[:-2] + trailers + b"\r\n"
            sent += head("GET", "/hello")
            while sent:
                cut = chance.choice((1, 2, 3, 5, 40, 4000))
                connection.sendall(sent[:cut])
                sent = sent[cut:]
            assert answers.read()[::2] == (200, hashlib.sha256(data).hexdigest().encode())
            assert answers.read()[::2] == (200, b"hello")


@pytest.mark.parametrize("cut", ["nowhere", "behind the head", "within the trailers", "everywhere"])
def test_a_trailer_is_never_taken_for_a_header(wired: Wired, cut: str) -> None:
    fields = [f"X-{number}: secret" for number in range(9)]
    trailers = ["Prefer: respond-async", "Authorization: Bearer a", "Expect: 100-continue", "Host: y", *fields]
    front, data = head("POST", "/told", Transfer_Encoding="chunked"), chunked(b"hello", 2)[:-2]
    sent = front + data + "".join(f"{each}\r\n" for each in trailers).encode() + b"\r\n"
    places = {"nowhere": [], "behind the head": [len(front)], "within the trailers": [len(front + data) + 9]}
    with wired.connect() as connection, Answers(connection) as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in pairwise([0, *places.get(cut, range(1, len(sent))), len(sent)]):
            connection.sendall(sent[start:end])
            time.sleep(0.05 if cut in places else 0.0005)
        assert answers.read()[::2] == (200, b"host: localhost; transfer-encoding: chunked; hello")
        connection.sendall(head("POST", "/told", length=0, X="of its own"))
        assert answers.read()[::2] == (200, b"host: localhost; content-length: 0; x: of its own; ")


@pytest.mark.rotating
def test_a_chunked_body_that_nobody_reads_stays_in_the_systems_memory(wired: Wired) -> None:
    with wired.connect(receive_buffer=2**14) as connection, Answers(connection) as answers:
        connection.sendall(EMITTED + b"%x\r\n" % FLOOD)
        sent = flooded(connection)
        assert sent < FLOOD
        assert len(answers.read()[2]) == SIZE + 5
        connection.sendall(bytes(FLOOD - sent) + b"\r\n0\r\n\r\n" + head("GET", "/hello"))
        assert answers.read()[::2] == (200, b"hello")


def test_request_behind_a_chunked_one_waits_in_the_socket(wired: Wired) -> None:
    with wired.connect(receive_buffer=2**14) as connection, Answers(connection) as answers:
        connection.sendall(EMITTED + b"0\r\n\r\n" + head("POST", "/landed", length=FLOOD))
        sent = flooded(connection)
        assert sent < FLOOD
        assert len(answers.read()[2]) == SIZE + 5
        connection.sendall(bytes(FLOOD - sent))
        assert answers.read()[::2] == (200, hashlib.sha256(bytes(FLOOD)).hexdigest().encode())


def test_a_head_behind_a_chunked_request_has_the_limit_of_every_head(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.settimeout(5)
        connection.sendall(REFUSED)
        assert answers.read()[0] == 413
        begin = b"GET /hello HTTP/1.1\r\nX: "
        connection.sendall(b"0\r\n\r\n" + begin + b"a" * (HEAD + 1 - len(begin)))
        assert told(answers.read()) == (431, "request_header_fields_too_large")


@pytest.mark.parametrize("begin", [b"0\r\nX: ", b"5;x="])
def test_a_chunked_body_has_a_limit_to_what_is_no_data(wired: Wired, begin: bytes) -> None:
    endless = begin + b"a" * (HEAD + 1 - len(begin))
    with wired.connect() as connection, Answers(connection) as answers:
        connection.settimeout(5)
        connection.sendall(LANDED + endless)
        assert told(answers.read()) == (431, "request_header_fields_too_large")
        assert rest(answers) == b""
    with wired.connect() as connection, Answers(connection) as answers:
        connection.settimeout(5)
        connection.sendall(REFUSED)
        assert answers.read()[0] == 413
        connection.sendall(endless)
        assert rest(answers) == b"", "an answer to nothing"


@pytest.mark.parametrize("more", [b"1", b"0\r\n\r\n"], ids=["in the body", "behind the body"])
def test_silence_after_an_early_answer_ends_the_connection(strict: Wired, more: bytes) -> None:
    with strict.connect() as connection, Answers(connection) as answers:
        connection.settimeout(4)
        connection.sendall(REFUSED)
        assert answers.read()[0] == 413
        connection.sendall(more)
        assert rest(answers) == b""


@pytest.mark.rotating
def test_rest_of_an_early_answered_body_is_not_dropped_for_ever(strict: Wired) -> None:
    with strict.connect() as connection, Answers(connection) as answers:
        connection.sendall(REFUSED)
        assert answers.read()[0] == 413
        assert dripped(connection, b"5\r\nhello\r\n") < 5


def test_no_http_behind_a_chunked_request_is_refused_after_it(wired: Wired) -> None:
    with wired.connect(receive_buffer=2**14) as connection, Answers(connection) as answers:
        connection.sendall(EMITTED + b"0\r\n\r\n")
        time.sleep(0.2)
        connection.sendall(b"garbage\r\n\r\n")
        time.sleep(0.2)
        assert answers.read()[2] == b"front" + b"\1" * SIZE
        assert told(answers.read()) == (400, "bad_request")


def test_a_body_that_breaks_off_adds_nothing_to_an_answer_that_has_begun(wired: Wired) -> None:
    with wired.connect(receive_buffer=2**14) as connection, Answers(connection) as answers:
        connection.sendall(EMITTED)
        time.sleep(0.2)
        connection.sendall(b"no chunk\r\n")
        found = rest(answers)
        assert found.startswith(b"HTTP/1.1 201 ")
        assert b"HTTP/1.1 400" not in found
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(REFUSED)
        assert answers.read()[0] == 413
        connection.sendall(b"no chunk\r\n")
        assert rest(answers) == b""


def test_broken_off_body_is_refused_and_its_route_hears_of_it(wired: Wired) -> None:
    wired.seen.clear()
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(LANDED + b"5\r\nhello\r\nno chunk\r\n")
        assert told(answers.read()) == (400, "bad_request")
        assert rest(answers) == b""
    until(lambda: "gone" in wired.seen, 5, each=0.001)
