"""What the gate refuses never becomes a request, and its client hears why."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse, Response
from uvicorn.server import ServerState

from app.api.admission.load_shedding import LoadShedder
from app.api.telemetry.metrics import Metrics
from app.devices.slab import Slab
from app.errors import QueueFull
from app.server import Acceptor, PendingAdmissions, acceptor
from app.server import protocol as connections
from app.server.acceptor import peeked
from app.services.matmul.admission import Admission, AdmissionLimits
from app.services.service import Service
from tests.support.api.wire_server import EITHER, Answers, Wired, head, served
from tests.support.waiting import until

EXPECTS: dict[str, Any] = {"Expect": "100-continue"}


@dataclass
class Switch:
    """A gate that is open or shut, and what it was asked."""

    wired: Wired
    asked: list[tuple[bytes, bytes, int]]
    is_shut: bool = True


@pytest.fixture(scope="module", params=EITHER)
def switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    asked: list[tuple[bytes, bytes, int]] = []

    def gate(method: bytes, url: bytes, nbytes: int, _: PendingAdmissions) -> Response | None:
        asked.append((method, url, nbytes))
        refuses = made.is_shut and url.startswith(b"/landed")
        return JSONResponse({"code": "queue_full"}, 503, {"Retry-After": "7"}) if refuses else None

    with served(request.param, gate=gate) as wired:
        made = Switch(wired, asked)
        yield made


@pytest.fixture
def shut(switch: Switch) -> Wired:
    switch.is_shut = True
    switch.asked.clear()
    return switch.wired


def test_client_that_waits_with_its_body_is_refused(switch: Switch, shut: Wired) -> None:
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed?step=9", length=10**9, **EXPECTS))
        status, headers, body = answers.read()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "7", "close")
        assert json.loads(body) == {"code": "queue_full"}
        assert {"date", "server"} <= set(headers)
        connection.shutdown(socket.SHUT_WR)
        assert answers.file.read() == b""
    assert switch.asked == [(b"POST", b"/landed?step=9", 10**9)]
    assert not shut.seen


def test_a_client_that_sends_all_the_same_hears_why(shut: Wired) -> None:
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=300_000, **EXPECTS))
        connection.sendall(b"x" * 300_000)
        assert answers.read()[0] == 503
        connection.shutdown(socket.SHUT_WR)
        assert answers.file.read() == b""


@pytest.mark.parametrize("size", [0, 5, 300_000])
def test_a_connection_that_may_stay_goes_on_with_the_next_request(switch: Switch, shut: Wired, size: int) -> None:
    with shut.connect() as connection, Answers(connection) as answers:
        refused = head("POST", "/landed", length=size) + b"x" * size
        connection.sendall(refused + refused + head("GET", "/hello"))
        for _ in range(2):
            status, headers, _ = answers.read()
            assert (status, "connection" in headers) == (503, False)
        assert answers.read()[::2] == (200, b"hello")
        switch.is_shut = False
        connection.sendall(refused)
        assert answers.read()[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"Connection": "close"}, EXPECTS])
def test_refused_connection_ends_though_its_head_came_in_pieces(shut: Wired, fields: dict[str, str]) -> None:
    sent = head("POST", "/landed", length=5, **fields)
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(sent[:20])
        time.sleep(0.05)
        connection.sendall(sent[20:] + b"12345" + head("GET", "/hello"))
        status, headers, _ = answers.read()
        assert (status, headers["connection"]) == (503, "close")
        assert answers.file.read() == b""


def test_a_chunked_body_is_its_routes_affair(shut: Wired) -> None:
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/messages", Transfer_Encoding="chunked") + b"0\r\n\r\n")
        assert answers.read()[0] == 200


def test_in_a_storm_others_are_served_and_one_that_fits_is_let_in(switch: Switch, shut: Wired) -> None:
    storm = [shut.connect() for _ in range(100)]
    for connection in storm:
        connection.sendall(head("POST", "/landed", length=10**8, **EXPECTS))
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("GET", "/hello"))
        assert answers.read()[0] == 200
    for connection in storm:
        with connection, Answers(connection) as answers:
            assert answers.read()[0] == 503
    switch.is_shut = False
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=3, **EXPECTS))
        assert answers.read()[0] == 100
        connection.sendall(b"123")
        assert answers.read()[0] == 200


def test_who_was_refused_leaves_no_descriptor(shut: Wired) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def refuse() -> None:
        with shut.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("POST", "/landed", length=10**6, **EXPECTS))
            assert answers.read()[0] == 503

    refuse()  # once the event loop runs it has descriptors of its own
    before = descriptors()
    for _ in range(50):
        refuse()
    until(lambda: descriptors() <= before, 5)


def shorten_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (acceptor, connections):  # whichever of them refuses a client: that depends on when its head arrives
        monkeypatch.setattr(module, "LINGER", 0.2)


def lingered(shut: Wired, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a refused client that neither sends nor closes is waited for."""
    shorten_linger(monkeypatch)
    with shut.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=10**6, **EXPECTS))
        assert answers.read()[0] == 503
        started = time.monotonic()
        assert connection.recv(1) == b""
        return time.monotonic() - started


def test_a_client_that_neither_sends_nor_closes_is_left(shut: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    lingered(shut, monkeypatch)


@pytest.mark.timing
def test_a_refused_client_is_left_after_a_while(shut: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.1 < lingered(shut, monkeypatch) < 2


@pytest.mark.parametrize("pieces", [1, 2], ids=["at accept", "once parsed"])
def test_a_server_that_stops_ends_those_that_it_refused(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_linger(monkeypatch)

    def gate(method: bytes, url: bytes, nbytes: int, _: PendingAdmissions) -> Response:
        return JSONResponse([method.decode(), url.decode(), nbytes], 503)

    sent = head("POST", "/x", length=1, **EXPECTS)
    with served("uvloop", gate=gate) as wired:
        connection = wired.connect()
        for piece in (sent,) if pieces == 1 else (sent[:20], sent[20:]):
            connection.sendall(piece)
            time.sleep(0.05 * (pieces - 1))
        assert Answers(connection).read()[2] == b'["POST","/x",1]'
    with connection:
        assert connection.recv(1) == b""


class Poor(socket.socket):
    """A listening socket of a process that has no descriptor left, at first."""

    failures = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_who_comes_while_there_are_no_descriptors_is_looked_at_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_SHORT", 0.1)

    async def heard() -> tuple[bytes, float]:
        with Poor() as listener:
            listener.bind(("127.0.0.1", 0))
            made = Acceptor(listener, asyncio.Protocol, lambda *_: Response(status_code=503), ServerState())
            made.start(8)
            started = time.monotonic()
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(head("POST", "/x", length=1, **EXPECTS))
            line = await asyncio.wait_for(reader.readline(), 10)
            made.close()
            writer.close()
            await asyncio.wait_for(made.wait_closed(), 10)
            return line, time.monotonic() - started

    line, seconds = asyncio.run(heard())
    assert line.startswith(b"HTTP/1.1 503 ")
    assert seconds >= 0.1
    assert "too many open files" in caplog.text


def test_who_waits_to_be_accepted_when_the_service_ends_hears_so() -> None:
    async def heard() -> bytes:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            made = Acceptor(
                listener,
                asyncio.Protocol,
                None,
                ServerState(),
                closing=Response(b"over", HTTPStatus.SERVICE_UNAVAILABLE),
            )
            made.start(8)
            with socket.create_connection(listener.getsockname()) as client:  # the loop has not looked
                client.sendall(head("POST", "/x", length=1))
                made.close()
                listener.close()
                told = client.recv(2**16)
            await asyncio.wait_for(made.wait_closed(), 10)
            return told

    told = asyncio.run(heard())
    assert told.startswith(b"HTTP/1.1 503 ")
    assert told.endswith(b"over")


def test_nobody_is_let_in_between_the_last_look_and_the_end_of_the_socket() -> None:
    """The system would reset them, whatever they had sent."""

    async def turned_away() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            made = Acceptor(listener, asyncio.Protocol, None, ServerState(), closing=Response(b"over", 503))
            made.start(8)
            with socket.create_connection(listener.getsockname()) as before:
                made.close()
                with socket.socket() as late:
                    late.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        late.connect(listener.getsockname())
                assert before.recv(2**16).startswith(b"HTTP/1.1 503 ")
            await asyncio.wait_for(made.wait_closed(), 10)

    asyncio.run(turned_away())


def test_a_handshake_under_way_when_newcomers_are_dropped_ends_and_is_answered() -> None:
    """Its last segment has no SYN: a filter that dropped all would have the client believe in a connection."""

    async def answered() -> bytes:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            made = Acceptor(listener, asyncio.Protocol, None, ServerState(), closing=Response(b"over", 503))
            made.start(8)
            # The system ends a handshake only once the client has sent something: the filter is there by then.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 10)
            with socket.create_connection(listener.getsockname()) as client:
                dropped = asyncio.create_task(made.end_handshakes())
                await asyncio.sleep(0)
                client.sendall(head("POST", "/x", length=1))
                made.close()
                listener.close()
                told = client.recv(2**16)
            await dropped
            await asyncio.wait_for(made.wait_closed(), 10)
            return told

    assert asyncio.run(answered()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (head("POST", "/matmul?m=1", length=8, **EXPECTS), (b"POST", b"/matmul?m=1", 8)),
        (b"PUT /x HTTP/1.1\r\nEXPECT:100-Continue\r\ncontent-length:\t17 \r\n\r\n", (b"PUT", b"/x", 17)),
        (head("POST", "/matmul", length=8), None),
        (head("POST", "/matmul", length=8, **EXPECTS)[:-2], None),
        (head("POST", "/matmul", length=8, **EXPECTS) + b"x", None),
        (head("POST", "/matmul", **EXPECTS), None),
        (head("POST", "/matmul", length=8, Content_Length=9, **EXPECTS), None),
        (head("POST", "/mat mul", length=8, **EXPECTS), None),
        (b"", None),
    ],
)
def test_a_head_is_looked_at_only_where_it_is_whole_and_plain(
    sent: bytes, found: tuple[bytes, bytes, int] | None
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        ours.setblocking(False)
        assert peeked(ours) == found


class Full:
    """A service with a slab that is lent but for some bytes, and a queue."""

    def __init__(self, room: int, queue: int = 2) -> None:
        self.slab = Slab(2**20)
        self.slab.lend(2**20 - room)
        self.admission = Admission(AdmissionLimits(queue, 2**20, {"x": 2**30}))
        self.matmul, self.fleet, self.matrices = self, self, self
        self.count, self.closing = 0, threading.Event()

    def counts(self) -> Full:
        return self


def load_shedder_of(service: Full) -> LoadShedder:
    return LoadShedder(lambda: cast("Service", service), Metrics(lambda: cast("Service", service)), lambda: False)


def code(answer: Response | None) -> str | None:
    return None if answer is None else str(json.loads(bytes(answer.body))["code"])


def test_a_product_needs_room_for_its_body_and_for_c() -> None:
    service = Full(room=12 * 2**12)
    gate = load_shedder_of(service)
    for rows, body, expected in ((64, 2**15, None), (65, 65 * 64 * 4 + 2**14, "no_room"), (64, 12 * 2**12, "no_room")):
        query = b"m=%d&n=64&k=64" % rows
        assert code(gate.refused(b"POST", b"/matmul?" + query, body, PendingAdmissions())) == expected
    assert code(gate.refused(b"POST", b"/matmul", 12 * 2**12, PendingAdmissions())) is None, (
        "nobody knows how large C is"
    )
    assert code(gate.refused(b"GET", b"/matmul?m=64&n=64&k=64", 2**19, PendingAdmissions())) is None
    assert code(gate.refused(b"POST", b"/tune?m=64&n=64&k=64", 2**19, PendingAdmissions())) is None
    assert code(gate.refused(b"POST", b"/v2/models/matmul/infer", 2**19, PendingAdmissions())) == "no_room"
    assert code(gate.refused(b"POST", b"/matmul", 2**30, PendingAdmissions())) is None, (
        "what never fits is told so by its route"
    )
    service.count = 1
    assert code(gate.refused(b"POST", b"/matmul", 2**19, PendingAdmissions())) is None, (
        "a resident matrix may make room"
    )
    service.slab.close()


def test_full_queue_refuses_any_size_with_fresh_figures() -> None:
    service = Full(room=2**16, queue=1)
    gate, ticket = load_shedder_of(service), service.admission.admit(1)
    service.admission.learn(3.0)
    first, again = (gate.refused(b"POST", b"/matmul", 1, PendingAdmissions()) for _ in "ab")
    assert first is not None
    assert first is again
    assert (code(first), first.headers["retry-after"]) == (QueueFull.code, "3")
    service.admission.learn(100.0)
    later = gate.refused(b"POST", b"/matmul", 1, PendingAdmissions())
    assert later is not None
    assert int(later.headers["retry-after"]) > 3
    ticket.close()
    assert gate.refused(b"POST", b"/matmul", 1, PendingAdmissions()) is None
    service.slab.close()


def test_those_who_are_let_in_together_are_no_more_than_fit() -> None:
    service = Full(room=12 * 2**12, queue=5)
    gate, ahead = load_shedder_of(service), PendingAdmissions()
    sizes = (5 * 2**12, 2**12, 5 * 2**12, 5 * 2**12, 1, 1, 0)
    found = [code(gate.refused(b"POST", b"/matmul", nbytes, ahead)) for nbytes in sizes]
    assert found == [None, None, None, "no_room", None, None, "queue_full"]
    assert code(gate.refused(b"POST", b"/matmul", 5 * 2**12, PendingAdmissions())) is None
    service.slab.close()
