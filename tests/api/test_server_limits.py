"""How many connections there are, and for how long answers are kept that nobody reads."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from app.api.errors import problem
from app.server import ConnectionLimits, TransferLimits
from tests.support.api.wire_server import EITHER, Answers, Loop, Wired, head, served

MOST, PER_ADDRESS = 6, 4
LARGE = bytes(16_000_000)  # more than sockets hold


async def whole(_: Request) -> Response:
    return Response(LARGE)


async def stream(_: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield LARGE[:100_000]
            await asyncio.sleep(0.001)

    return StreamingResponse(pieces())


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with limited(request.param, 0.5) as running:
        yield running


@pytest.fixture(params=EITHER)
def patient(request: pytest.FixtureRequest) -> Iterator[Wired]:
    """A service that waits for a head for as long as a busy machine may take to send one."""
    with limited(request.param, 20.0) as running:
        yield running


@contextmanager
def limited(loop: Loop, idle_timeout: float) -> Iterator[Wired]:
    limits = TransferLimits(idle_timeout=idle_timeout, transfer_timeout=20.0, min_rate=1000)
    connections = ConnectionLimits.of(MOST, PER_ADDRESS, problem)
    routes = [Route("/whole", whole), Route("/stream", stream)]
    with served(loop, limits, routes=routes, connections=connections) as running:
        yield running


def from_address(wired: Wired, last: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", wired.port), timeout=10, source_address=(f"127.0.0.{last}", 0))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_an_answer_that_nobody_reads_ends_its_connection(wired: Wired, path: str) -> None:
    with wired.connect(receive_buffer=2**12) as connection:
        connection.sendall(head("GET", path))
        time.sleep(3)  # it is over long before, and what comes then is what the system had taken
        assert read_to_end(connection) < len(LARGE)


@pytest.mark.slow
def test_a_head_whose_answers_are_not_read_holds_no_connection(wired: Wired) -> None:
    with wired.connect(receive_buffer=2**12) as connection:
        connection.sendall(head("GET", "/whole") * 40)
        time.sleep(3)
        assert read_to_end(connection) < len(LARGE)


def test_one_address_has_no_more_connections_than_it_may_and_all_no_more_than_all(patient: Wired) -> None:
    with ExitStack() as stack:
        first = [stack.enter_context(connection) for connection in as_many_as_may_be(patient, 1)]
        with from_address(patient, 1) as one_more:
            status, headers, body = Answers(one_more).read()
            assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
            assert b"too_many_connections" in body
        others = [stack.enter_context(from_address(patient, last)) for last in (2, 3)]
        assert [answered(connection) for connection in others] == [200, 200]
        with from_address(patient, 4) as one_more:
            assert Answers(one_more).read()[0] == 503
        assert {answered(connection) for connection in (*first, *others)} == {200}
    deadline = time.monotonic() + 5
    while True:
        with from_address(patient, 1) as again:
            if answered(again) == 200:
                break
        assert time.monotonic() < deadline


def as_many_as_may_be(wired: Wired, last: int) -> list[socket.socket]:
    """Connections of one address that are answered; those that asked whether the service is up may end late."""
    deadline = time.monotonic() + 5
    while True:
        found = [from_address(wired, last) for _ in range(PER_ADDRESS)]
        if [answered(connection) for connection in found] == [200] * PER_ADDRESS:
            return found
        for connection in found:
            connection.close()
        assert time.monotonic() < deadline


def read_to_end(connection: socket.socket) -> int:
    """How many bytes come before the connection ends: what the system had taken, and no more."""
    size = 0
    with suppress(ConnectionResetError):
        while piece := connection.recv(2**20):
            size += len(piece)
    return size


def answered(connection: socket.socket) -> int:
    try:
        connection.sendall(head("GET", "/hello"))
        return Answers(connection).read()[0]
    except OSError:
        return 0


def test_half_of_the_descriptors_are_kept_for_other_things() -> None:
    limits = ConnectionLimits.of(None, None, problem)
    assert 1 <= limits.per_address <= limits.total
