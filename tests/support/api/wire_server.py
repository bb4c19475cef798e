"""A small application behind the service's own server, in this process: what the wire's tests speak to."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Self

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from app.api.body.stream import body_of
from app.api.errors import problem
from app.api.response import SlabResponse
from app.api.state import State
from app.main import Server
from app.server import (
    EXTENSION,
    AdmissionCheck,
    ConnectionLimits,
    ReloadingTls,
    TransferLimits,
    protocol_factory,
)

Loop = Literal["asyncio", "uvloop"]
LOOPS: Final[tuple[Loop, ...]] = ("asyncio", "uvloop")
# The service runs on uvloop wherever there is one.
EITHER: Final = (pytest.param("asyncio", marks=pytest.mark.slow), "uvloop")


@dataclass
class Wired:
    """A server that listens, and what its routes have seen."""

    port: int
    seen: list[str] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    memory: bytearray = field(default_factory=lambda: bytearray(2**25))
    released: list[str] = field(default_factory=list)

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", self.port))
        return connection


async def landed(request: Request) -> Response:
    """The body's digest, landed in pieces of a size that the query says."""
    wired: Wired = request.app.state.wired
    body, step = body_of(request), int(request.query_params.get("step", 10**9))
    found = hashlib.sha256()
    wired.seen.append(f"asked {body.length}")
    try:
        for at in range(0, body.length or 0, step):
            place = memoryview(bytearray(min(step, (body.length or 0) - at)))
            await body.fill(place)
            found.update(place)
        async for piece in body.pieces():
            found.update(piece)
    except ClientDisconnect:
        wired.seen.append("gone")
        raise
    return PlainTextResponse(found.hexdigest())


async def paused(request: Request) -> Response:
    """How many bytes lie about while a route that has had some does something else."""
    body, held = body_of(request), list[int]()
    for _ in range(3):
        await body.fill(memoryview(bytearray(1000)))
        await asyncio.sleep(0.1)
        held.append(request.scope["extensions"][EXTENSION].held)
    async for _ in body.pieces():
        held.append(request.scope["extensions"][EXTENSION].held)
    return PlainTextResponse(str(max(held)))


async def messages(request: Request) -> Response:
    """The body's digest, read as the framework reads it."""
    return PlainTextResponse(hashlib.sha256(await request.body()).hexdigest())


async def told(request: Request) -> Response:
    """The headers, as they are once the body has come, and the body."""
    body = (await request.body()).decode()
    return PlainTextResponse("".join(f"{name}: {value}; " for name, value in request.headers.items()) + body)


async def refused(_: Request) -> Response:
    return PlainTextResponse("no", 413)


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


async def emitted(request: Request) -> Response:
    """Bytes out of the shared memory, which is overwritten as soon as the answer has let go of them."""
    wired: Wired = request.app.state.wired
    size, byte = int(request.query_params["size"]), int(request.query_params["byte"])
    stack = AsyncExitStack()

    def release() -> None:
        wired.released.append(f"{byte}")
        wired.memory[:size] = b"\xee" * size

    wired.memory[:size] = bytes([byte]) * size
    stack.callback(release)
    view = memoryview(wired.memory)[:size]
    return SlabResponse([b"front", view], "application/octet-stream", {"X-Byte": str(byte)}, stack, 201)


def application() -> Starlette:
    routes = [
        Route("/landed", landed, methods=["POST"]),
        Route("/paused", paused, methods=["POST"]),
        Route("/messages", messages, methods=["POST"]),
        Route("/told", told, methods=["POST"]),
        Route("/refused", refused, methods=["POST"]),
        Route("/hello", hello),
        Route("/emitted", emitted),
    ]
    return Starlette(routes=routes)


@contextmanager
def served(
    loop: Loop,
    limits: TransferLimits | None = None,
    uds: socket.socket | None = None,
    tls: ReloadingTls | None = None,
    routes: Sequence[BaseRoute] = (),
    gate: AdmissionCheck | None = None,
    connections: ConnectionLimits | None = None,
    transfers: int = 2,
) -> Iterator[Wired]:
    """The application, with more routes than its own where they are given, on a free port, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    wired, app = Wired(listener.getsockname()[1]), application()
    app.router.routes.extend(routes)
    app.state.wired, limits = wired, limits or TransferLimits()
    state = State.new(limits, transfers=transfers)
    state.install(app)
    made = partial(protocol_factory, limits, problem, transfers=state.threads.transfers)
    config = uvicorn.Config(
        app,
        http=made() if gate is None else made(gate),
        loop=loop,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = Server(config, threading.Event(), uds, gate, connections, tls=tls)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    state.threads.transfers.start()
    thread.start()
    try:
        yield wired
    finally:
        server.should_exit = True
        thread.join(15)
        state.threads.transfers.stop()
        listener.close()
        assert not thread.is_alive()


def head(method: str, path: str, *, length: int | None = None, **headers: object) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunked(data: bytes, *sizes: int) -> bytes:
    """The body in chunks of these sizes, and the rest in one."""
    pieces, at = [], 0
    for size in (*sizes, len(data)):
        if piece := data[at : at + size]:
            pieces.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        at += size
    return b"".join(pieces) + b"0\r\n\r\n"


def chance_of(seed: int) -> random.Random:
    """A source of numbers that may be predicted."""
    return random.Random(seed)  # noqa: S311


class Answers:
    """Reads one answer after the other from a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rb")

    def read(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, and body."""
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers, self.file.read(int(headers.get("content-length", "0")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
