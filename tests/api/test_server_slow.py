"""Answers that do not come out of the slab, to clients that read slowly, or not at all."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.inference.compression import PackedResponse
from app.api.response import TextResponse, Transport
from app.api.routes.job_result import OpenFileResponse
from app.server import EXTENSION, TransferLimits
from app.server.thread_pool import RequestThreads
from tests.support.api.wire_server import EITHER, Wired, chance_of, head, served
from tests.support.waiting import until

KINDS = ("pieces", "file", "packed")
DATA = chance_of(4).randbytes(12_000_000)  # more than sockets hold, and no packer makes it smaller
THREADS = RequestThreads()
_WIRES: list[Transport] = []


async def pieces(_: Request) -> Response:
    """Large pieces, and many that are tiny."""
    few = [DATA[at : at + 5] for at in range(0, 100_000, 5)]
    large = [DATA[at : at + 400_000] for at in range(100_000, len(DATA), 400_000)]
    return TextResponse(iter([*few, *large]), len(DATA), {}, THREADS)


async def file(_: Request) -> Response:
    kept = tempfile.TemporaryFile()  # noqa: SIM115 - the answer closes it
    kept.write(DATA[5:-5])
    kept.seek(0)
    return OpenFileResponse((DATA[:5], DATA[-5:]), kept, "x/y", {}, THREADS)


async def packed(_: Request) -> Response:
    return PackedResponse([DATA], "deflate", {"Content-Type": "x/y"}, THREADS, AsyncExitStack())


def noted(route: object) -> object:
    """The route, whose connection is looked at from outside."""

    async def noting(request: Request) -> Response:
        _WIRES.append(request.scope["extensions"][EXTENSION])
        answer: Response = await route(request)  # type: ignore[operator]
        return answer

    return noting


ROUTES = [Route(f"/{name}", noted(globals()[name])) for name in KINDS]  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(
        request.param, TransferLimits(idle_timeout=0.4, transfer_timeout=20.0, min_rate=1000), routes=ROUTES
    ) as running:
        yield running
    _WIRES.clear()  # nothing keeps connections that have ended


@pytest.mark.rotating
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_not_read_is_cut_off_and_nothing_is_kept_for_it(wired: Wired, kind: str) -> None:
    with wired.connect(receive_buffer=2**12) as connection:
        _WIRES.clear()
        connection.sendall(head("GET", f"/{kind}"))
        kept: list[int] = []

        def is_cut_off() -> bool:
            kept.append(_WIRES[0].pending if _WIRES else 0)
            return any(kept) and not kept[-1]

        until(is_cut_off, 5, each=0.001, meanwhile=lambda: f"{kept[-1]} bytes are still kept for it")
        assert max(kept) <= 2**21, "more was given to the connection than one piece"


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_reads_has_every_byte_however_it_pauses(wired: Wired, kind: str) -> None:
    body = bytearray()
    with wired.connect(receive_buffer=2**16) as connection:
        connection.sendall(head("GET", f"/{kind}", Connection="close"))
        while piece := connection.recv(2**20):
            body += piece
            if len(body) % 5 == 0:
                time.sleep(0.001)
    start, body = bytes(body).partition(b"\r\n\r\n")[::2]  # type: ignore[assignment]
    assert start.startswith(b"HTTP/1.1 200")
    whole = bytes(body) if kind == "file" else dechunked(bytes(body))
    assert (zlib.decompress(whole) if kind == "packed" else whole) == DATA


def test_a_client_of_http_1_0_has_an_answer_of_unknown_length_as_it_is_and_then_the_end(wired: Wired) -> None:
    body = bytearray()
    with wired.connect() as connection:
        connection.sendall(b"GET /pieces HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        while piece := connection.recv(2**20):
            body += piece
    start, body = bytes(body).partition(b"\r\n\r\n")[::2]  # type: ignore[assignment]
    assert b"transfer-encoding" not in start.lower()
    assert b"connection: close" in start.lower()
    assert bytes(body) == DATA


def dechunked(body: bytes) -> bytes:
    found, at = [], 0
    while size := int(body[at : (end := body.index(b"\r\n", at))], 16):
        found.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(found)
