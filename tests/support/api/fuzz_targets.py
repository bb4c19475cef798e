"""What fuzzers hand bytes to: each reader of bodies, the inference protocol's text, and a connection of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from app.api.formats.operand_spec import ONE, ProductOptions
from app.api.inference import json_tensors
from app.api.inference.schemas import Listed, understood
from app.devices.slab import Slab
from app.errors import TilewiseError
from app.server import TransferLimits, protocol_factory
from tests.support.api.body_reading import FORM, JSON, NPY, NPZ, TENSORS, Counter, Sent
from tests.support.api.request_bodies import BOUNDARY

Target = Callable[[bytes], str]
BODIES: Final[Mapping[str, str]] = {"json": JSON, "multipart": FORM, "npz": NPZ, "safetensors": TENSORS, "npy": NPY}
FORMATS: Final = (*BODIES, "inference", "http")
_MOST: Final = 2**20  # bytes of operands that are lent for a text
_TURNS: Final = 4  # of the event loop, for a request that has all its bytes
_ANSWERS: Final = 3  # statuses that are told


@contextmanager
def targets() -> Iterator[Mapping[str, Target]]:
    """By format, what takes bytes and says what came of them: a status, or several of a connection."""
    slab = Slab(2**24)
    counter = Counter(slab)
    loop = asyncio.new_event_loop()
    connections = _Connections(loop)

    def body(media: str, data: bytes) -> str:
        names = ONE if media == NPY else ("a", "b")
        told = BOUNDARY if media == FORM else ""
        taken = counter.take(Sent(media, data, boundary=told, wanted=ProductOptions(), names=names))
        return f"{taken.status} {taken.code}".strip()

    found: dict[str, Target] = {
        name: cast("Target", lambda data, media=media: body(media, data)) for name, media in BODIES.items()
    }
    try:
        yield {**found, "inference": inference, "http": connections.take}
    finally:
        counter.close()
        slab.close()
        loop.close()


def inference(data: bytes) -> str:
    """Read the JSON part of an inference request, and the numbers in it."""
    try:
        asked = understood(memoryview(data))
        for tensor in asked.inputs:
            size = int(np.prod(tensor.described.shape, dtype=object))
            if isinstance(tensor.source, Listed) and size <= _MOST:
                json_tensors.fill(tensor.source.data, tensor.described, np.empty(size, np.float32))
    except TilewiseError as error:
        return f"{error.status} {error.code}"
    return "200"


class _Transport(asyncio.Transport):
    """The transport of a connection that is nowhere: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent, self.is_closed = bytearray(), False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        """Go on all the same: what has come is held, as a socket's system would hold it."""

    def resume_reading(self) -> None:
        """As pause_reading."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and say how long it is."""
    with suppress(ClientDisconnect):
        await _counted(scope, receive, send)


async def _counted(scope: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    await JSONResponse(size)(scope, receive, send)


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"code": code, "error": message}, status)


class _Connections:
    """A connection for each input, whose bytes come in two parts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        config = Config(_application, log_config=None)
        config.load()
        self._factory = protocol_factory(TransferLimits(), _error)
        self._config = config

    def take(self, data: bytes) -> str:
        """The statuses that bytes are answered, and whether the connection ends."""
        return self._loop.run_until_complete(self._taken(data))

    async def _taken(self, data: bytes) -> str:
        state, transport = ServerState(), _Transport()
        protocol = self._factory(self._config, state, {}, self._loop)
        protocol.connection_made(transport)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            await self._given(protocol, transport, part)
        transport.close()
        protocol.connection_lost(None)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for task in [*state.tasks]:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        lines = [
            line.split(b" ")[1].decode() for line in bytes(transport.sent).split(b"\n") if line.startswith(b"HTTP/1.1 ")
        ]
        return " ".join(lines[:_ANSWERS]) or "none"

    async def _given(self, protocol: asyncio.BufferedProtocol, transport: _Transport, part: bytes) -> None:
        """Have the protocol read bytes, as far as it gives places for them."""
        while part and not transport.is_closing():
            place = cast("memoryview[Any]", protocol.get_buffer(-1))
            count = min(len(place), len(part))
            place[:count] = part[:count]
            protocol.buffer_updated(count)
            part = part[count:]
            for _ in range(_TURNS):
                await asyncio.sleep(0)
