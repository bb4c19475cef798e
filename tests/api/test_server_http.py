"""The wire as a client meets it: bodies in every cut, many requests on a connection, refusals, deadlines."""

from __future__ import annotations

import gc
import hashlib
import json
import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest

from app.server import TransferLimits
from app.server.protocol import BulkProtocol
from tests.support.api.wire_server import EITHER, LOOPS, Answers, Wired, chance_of, chunked, head, served
from tests.support.waiting import until


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param) as running:
        yield running


@pytest.fixture(scope="module", params=EITHER)
def strict(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param, TransferLimits(idle_timeout=0.4, transfer_timeout=2.0, min_rate=1000)) as running:
        yield running


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("path", ["/landed", "/landed?step=1000", "/landed?step=300001", "/messages"])
@pytest.mark.parametrize("size", [1, 999, 65_535, 65_537, 262_145, 3_000_001])
def test_a_body_arrives_as_it_was_sent(wired: Wired, path: str, size: int) -> None:
    data = chance_of(size).randbytes(size)
    with wired.connect() as connection, Answers(connection) as answers:
        for _ in range(3):
            connection.sendall(head("POST", path, length=size) + data)
            assert answers.read()[::2] == (200, digest(data))


def test_a_connection_that_has_ended_is_nothing_to_collect(wired: Wired) -> None:
    """It would wait for the collector with some fifty objects, whose pauses are every caller's."""

    def left() -> list[BulkProtocol]:
        return [each for each in gc.get_objects() if isinstance(each, BulkProtocol)]

    gc.collect()
    gc.disable()
    try:
        for path, data in (("/landed", b"x" * 100_000), ("/messages", b"x"), ("/refused", b"x" * 10)):
            with wired.connect() as connection, Answers(connection) as answers:
                connection.sendall(head("POST", path, length=len(data), Connection="close") + data)
                assert answers.read()[0] in {200, 413}
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("POST", "/refused", length=200_000, Expect="100-continue"))
            assert answers.read()[0] == 413
        # Less than a refused client that still sends may hear why; and what is said of them keeps none of them.
        until(lambda: not left(), 1, each=0.05, meanwhile=lambda: repr(left()))
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_every_kind_are_answered_in_order_however_they_are_cut(wired: Wired, seed: int) -> None:
    chance = chance_of(seed)
    sent, expected = b"", []
    for _ in range(40):
        data = chance.randbytes(chance.choice((0, 1, 17, 5000, 70_000)))
        kind = chance.choice(("get", "landed", "messages", "chunked", "refused"))
        if kind == "get":
            sent, answer = sent + head("GET", "/hello"), (200, b"hello")
        elif kind == "chunked":
            cuts = chance.choices((1, 3, 100, 4000), k=4)
            sent += head("POST", "/landed", Transfer_Encoding="chunked") + chunked(data, *cuts)
            answer = (200, digest(data))
        elif kind == "refused":
            sent, answer = sent + head("POST", "/refused", length=len(data)) + data, (413, b"no")
        else:
            sent, answer = sent + head("POST", f"/{kind}", length=len(data)) + data, (200, digest(data))
        expected.append(answer)
    with wired.connect() as connection, Answers(connection) as answers:
        at = 0
        while at < len(sent):
            size = chance.choice((1, 2, 3, 40, 3000, 100_000))
            connection.sendall(sent[at : at + size])
            at += size
            if chance.random() < 0.02:
                time.sleep(0.002)
        for answer in expected:
            assert answers.read()[::2] == answer


@pytest.mark.rotating
def test_100_continue_comes_only_when_the_body_is_wanted(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=200_000, Expect="100-continue"))
        assert answers.read()[0] == 100
        connection.sendall(bytes(200_000))
        assert answers.read()[::2] == (200, digest(bytes(200_000)))
        connection.sendall(head("POST", "/refused", length=200_000, Expect="100-continue"))
        status, headers, _ = answers.read()
        assert (status, headers["connection"]) == (413, "close")
        assert answers.file.read() == b""


def test_a_refusal_comes_before_a_byte_of_the_body_and_the_body_is_dropped(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/refused", length=5_000_000))
        assert answers.read()[0] == 413
        connection.sendall(bytes(5_000_000) + head("GET", "/hello"))
        assert answers.read()[::2] == (200, b"hello")


def test_what_a_route_has_not_asked_for_stays_in_the_systems_memory(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/paused", length=20_000_000) + bytes(20_000_000))
        status, _, most = answers.read()
        assert status == 200
        assert int(most) <= 2**18


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_client_that_listens_late_hears_why_it_was_refused(wired: Wired, version: str) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        begin = head("POST", "/refused", length=8_000_000, Connection="close").replace(b"1.1", version.encode(), 1)
        connection.sendall(begin + bytes(8_000_000))
        assert answers.read()[::2] == (413, b"no")
        assert answers.file.read() == b""


def test_a_client_that_goes_away_in_its_body_is_noticed(wired: Wired) -> None:
    wired.seen.clear()
    for sent in (0, 1, 100_000, 900_000):
        with wired.connect() as connection:
            connection.sendall(head("POST", "/landed", length=1_000_000) + bytes(sent))
            until(lambda: len(wired.seen) % 2 == 1, 5, each=0.001)
        until(lambda: wired.seen[-1] == "gone", 5, each=0.001)


def told(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    return status, json.loads(body)["code"]


def test_what_is_no_http_is_refused_in_the_one_shape_of_errors(wired: Wired) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(sent)
            assert told(answers.read()) == (400, "bad_request")


def test_two_lengths_are_no_length(wired: Wired) -> None:
    both = b"POST /landed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    for second in (b"Content-Length: 6\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(both + second + b"0\r\n\r\nGET /hello HTTP/1.1\r\n\r\n")
            assert answers.read()[0] == 400
            assert answers.file.read() == b""


@pytest.mark.parametrize("declared", ["70000 ", "70000\t", "070000"])
def test_a_length_means_the_same_to_all_who_read_it(wired: Wired, declared: str) -> None:
    wired.seen.clear()
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", Content_Length=declared) + bytes(70_000))
        assert answers.read()[::2] == (200, digest(bytes(70_000)))
        assert "asked 70000" in wired.seen


def test_a_head_without_an_end_is_refused(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(b"GET /hello HTTP/1.1\r\n" + b"X-Long: " + b"y" * 70_000)
        assert told(answers.read()) == (431, "request_header_fields_too_large")


def test_an_upgrade_that_is_not_taken_is_an_ordinary_request(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAAP__"}
        connection.sendall(head("POST", "/landed", length=9, **upgrade) + b"123456789")
        assert answers.read()[::2] == (200, digest(b"123456789"))


def head_stalls(strict: Wired) -> float:
    """Have a head stop in its middle, beside a connection that sends nothing; gives after how long both end."""
    with strict.connect() as idle, strict.connect() as slow, Answers(idle) as silence, Answers(slow) as answers:
        began = time.monotonic()
        slow.sendall(b"GET /hello HTT")
        assert told(answers.read()) == (408, "request_timeout")
        assert silence.file.read() == b""
        return time.monotonic() - began


def body_stalls(strict: Wired, path: str) -> float:
    """Have a body stop in its middle; gives after how long it is answered."""
    with strict.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", path, length=200_000) + bytes(100_000))
        began = time.monotonic()
        assert answers.read()[0] == 408
        return time.monotonic() - began


def body_trickles(strict: Wired) -> float:
    """Send a byte of a body now and then; gives after how long it is answered."""
    with strict.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed?step=10", length=200_000))
        began = time.monotonic()
        connection.settimeout(0.05)
        try:
            while time.monotonic() - began < 10 and not _answers(connection):
                connection.sendall(b"x")
        except OSError:
            pytest.fail("the connection ended before the answer was read")
        connection.settimeout(5)
        assert answers.read()[0] == 408
        return time.monotonic() - began


def test_a_head_is_waited_for_no_longer_than_a_stalled_client(strict: Wired) -> None:
    head_stalls(strict)


@pytest.mark.rotating
def test_a_body_that_stalls_is_answered_408(strict: Wired) -> None:
    for path in ("/landed", "/landed?step=1000"):
        body_stalls(strict, path)


@pytest.mark.slow
def test_a_body_that_trickles_is_answered_408(strict: Wired) -> None:
    body_trickles(strict)


@pytest.mark.timing
def test_slow_requests_end_at_their_deadlines(strict: Wired) -> None:
    assert 0.3 < head_stalls(strict) < 3
    assert 0.3 < body_stalls(strict, "/landed") < 3
    assert 0.3 < body_stalls(strict, "/landed?step=1000") < 3
    assert 1.5 < body_trickles(strict) < 4


def _answers(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def is_accepted(connection: socket.socket, path: str) -> bool:
    return connection.connect_ex(path) == 0


@pytest.mark.slow
def test_a_unix_socket_is_listened_on_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    for loop in LOOPS:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
            path = str(tmp_path_factory.mktemp("unix") / "wire.sock")
            listener.bind(path)
            with served(loop, uds=listener):
                until(partial(is_accepted, connection, path), 5, each=0.01)
                with Answers(connection) as answers:
                    data = chance_of(1).randbytes(700_000)
                    connection.sendall(head("POST", "/landed", length=len(data)) + data + head("GET", "/hello"))
                    assert answers.read()[::2] == (200, digest(data))
                    assert answers.read()[::2] == (200, b"hello")
