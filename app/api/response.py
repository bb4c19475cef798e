"""The product's response: its headers, and C's bytes streamed from the slab."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.body.flow_control import TooSlow, TransferWatchdog
from app.api.formats import json_matrix, npy, npz, safetensors
from app.api.formats.operand_spec import bytes_of
from app.api.negotiation import VARY
from app.api.state import State, state_of
from app.dtypes import Array
from app.errors import TilewiseError
from app.server import EXTENSION
from app.server.thread_pool import FEW, RequestThreads
from app.services.matmul.buffers import Product

_LOG = logging.getLogger(__name__)
_PIECE: Final = 2**21  # bytes handed to the connection at once
_LENT: Final = 2**26  # the same where the connection copies none of it
_GATHERED: Final = 2**19  # the same of a text, which is written while it is sent


def product_headers(product: Product, c: Array, seconds: Mapping[str, float]) -> dict[str, str]:
    """The headers of a product in every form; `seconds` are by phase."""
    config = ",".join(f"{name}={value}" for name, value in product.config.items())
    timing = ", ".join(f"{phase};dur={1e3 * took:.3f}" for phase, took in seconds.items())
    declined = {"X-Declined": product.declined} if product.declined else {}
    if product.tiles > 1:
        declined["X-Tiles"] = str(product.tiles)
    if product.devices:
        declined["X-Devices"] = ",".join(f"{name}={tiles}" for name, tiles in product.devices.items())
    if product.certificate is not None:
        declined["X-Certificate"] = product.certificate.header()
    if product.together > 1:
        timing = timing.replace("kernel;", f'kernel;desc="{product.together} together";')
    return {
        "X-Device": product.device.id,
        "X-Kernel": product.kernel,
        "X-Config": config,
        "X-Match": product.match,
        "X-Instructions": product.instructions,
        "X-Precision": product.precision,
        **declined,
        "X-Shape": "x".join(map(str, c.shape)),
        "X-Dtype": c.dtype.name,
        "Server-Timing": timing,
        **VARY,
    }


def product_json(product: Product, c: Array) -> Iterator[bytes]:
    """C and what made it as JSON, in pieces."""
    members: dict[str, Any] = {
        "dtype": c.dtype.name,
        "kernel": product.kernel,
        "config": dict(product.config),
        "match": product.match,
        "instructions": product.instructions,
        "precision": product.precision,
        "declined": product.declined,
        "certificate": product.certificate.facts() if product.certificate else None,
    }
    return json_matrix.write(c, members)


async def encode(media: str, c: Array, threads: RequestThreads) -> list[bytes | memoryview]:
    """C in a binary form: its own bytes, between what the form has before and after them."""
    data = bytes_of(c)
    if media == npz.MEDIA:
        front, end = await threads.sized(c.nbytes, npz.around, c.dtype.name, c.shape, [data])
        return [front, data, end]
    return [prefix(media, c.dtype.name, c.shape), data]


def prefix(media: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What stands before C's bytes in a form that has nothing after them."""
    writers = {npy.MEDIA: npy.prefix, safetensors.MEDIA: safetensors.prefix}
    return writers[media](dtype, shape) if media in writers else b""


class TextResponse(Response):
    """An answer in pieces of text that are written as it is sent: no more of it is kept than its connection holds.

    One of few bytes of data is written at once, and its length is told. `held` is closed once the last byte was taken.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        nbytes: int,
        headers: Mapping[str, str],
        threads: RequestThreads,
        held: AsyncExitStack | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self._pieces, self._nbytes, self._threads = pieces, nbytes, threads
        self._held, self._text = held or AsyncExitStack(), None if nbytes > FEW else b"".join(pieces)
        length = {} if self._text is None else {"Content-Length": str(len(self._text))}
        self.init_headers({**headers, **length})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them in turn; few bytes at once, without a look at the clock."""
        del receive
        if self._text is not None:
            await self._held.aclose()
            await send(start_of(self))
            await send({"type": "http.response.body", "body": self._text})
            return
        async with self._held, sending(self, scope, send, self._nbytes) as put:
            while piece := await self._threads.call(_gathered, self._pieces):
                await put(piece)

    async def aclose(self) -> None:
        """Give back unsent what is held."""
        await self._held.aclose()


Put = Callable[[bytes], Awaitable[None]]


def start_of(response: Response) -> Message:
    """The message that an answer begins with."""
    return {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}


@asynccontextmanager
async def sending(response: Response, scope: Scope, send: Send, held: int = 0) -> AsyncIterator[Put]:
    """Send an answer whose pieces the block puts, each of which has left the connection when `put` returns.

    It holds so many bytes of the slab meanwhile.

    The time between them is not the client's. One that reads too slowly is cut off, and what was not sent is dropped:
    the block then ends early.
    """
    transport: Transport | None = scope.get("extensions", {}).get(EXTENSION)
    sent = 0
    state = state_of(scope["app"])
    clock = TransferWatchdog(state.limits, lambda: sent - (transport.pending if transport else 0), state.slow_transfers)
    clock.held = held

    async def put(piece: bytes) -> None:
        nonlocal sent
        sent += len(piece)
        async with clock.running():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if transport is not None:
                await transport.emptied()

    await send(start_of(response))
    try:
        yield put
        await send({"type": "http.response.body", "body": b""})
    except BaseException as error:
        if transport is not None:
            await transport.abort()
        if not isinstance(error, TooSlow):
            raise


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """The next pieces, as far as they are worth a message; nothing at the end."""
    few, size = list[bytes](), 0
    for piece in pieces:
        few.append(piece)
        size += len(piece)
        if size > _GATHERED:
            break
    return b"".join(few)


class Transport(Protocol):
    """The connection of a request, where the server tells of it."""

    @property
    def pending(self) -> int:
        """Bytes of answers that it still holds."""
        ...

    async def emptied(self) -> None:
        """Wait until it holds none, or is closed."""
        ...

    async def abort(self) -> None:
        """Close at once, dropping what it holds, and wait until it is closed."""
        ...


class PendingBody(Protocol):
    """Bytes of the slab that are being written, in their order."""

    nbytes: int

    async def until(self, nbytes: int) -> int:
        """Wait until so many of them are there; gives how many are. Raises TilewiseError where they will not be."""
        ...


class SlabResponse(Response):
    """An answer of bytes that lie in the slab; `stack` gives them back once the connection holds none of them.

    That is before the client has its last byte: a next request of its own finds the room again. The last bytes of the
    answer may be `rest`, and come while those before them are sent; where they do not come, the client is cut off.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | memoryview],
        media: str,
        headers: Mapping[str, str],
        stack: AsyncExitStack,
        status: int = 200,
        rest: PendingBody | None = None,
    ) -> None:
        self.status_code, self.background, self._rest = status, None, rest
        self._pieces, self._stack = [memoryview(piece) for piece in pieces if piece], stack
        self._length = sum(map(len, self._pieces))
        self.init_headers({**headers, "Content-Type": media, "Content-Length": str(self._length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A client that reads too slowly is cut off: the server closes an answer that is not whole."""
        del receive
        transport: Transport | None = scope.get("extensions", {}).get(EXTENSION)
        async with self._stack:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            early, late = _cut(self._pieces, self._length - FEW)
            try:
                await _send(early, send, transport, state_of(scope["app"]), self._there)
                await self._there(self._length)
            except BaseException as error:
                if transport is not None:
                    await transport.abort()
                if isinstance(error, TilewiseError):
                    _LOG.warning("an answer was cut off: %s", error.message)
                elif not isinstance(error, TooSlow):
                    raise
            else:
                end = b"".join(late)
                await self._stack.aclose()
                await send({"type": "http.response.body", "body": end})

    async def _there(self, end: int) -> int:
        """Wait until the answer is there up to a byte; gives how much of it is."""
        if self._rest is None:
            return self._length
        front = self._length - self._rest.nbytes
        return front + await self._rest.until(end - front)

    async def aclose(self) -> None:
        """Give the slab's bytes back unsent."""
        await self._stack.aclose()


def _cut(pieces: Sequence[memoryview], at: int) -> tuple[list[memoryview], list[memoryview]]:
    """Pieces up to a byte, and those after it."""
    early, late = list[memoryview](), list[memoryview]()
    for piece in pieces:
        here = max(0, at)
        early += [piece[:here]] if here else []
        late.append(piece[here:])
        at -= len(piece)
    return early, late


async def _send(
    pieces: Sequence[memoryview],
    send: Send,
    transport: Transport | None,
    state: State,
    there: Callable[[int], Awaitable[int]],
) -> None:
    """Send pieces, each when the connection holds nothing of the one before: none is copied but by the system.

    Where the connection cannot tell, copies are sent. `there` waits until the answer is there up to a byte, and gives
    how much of it is: so much is sent at once.
    """
    sent = 0
    clock = TransferWatchdog(state.limits, lambda: sent - (transport.pending if transport else 0), state.slow_transfers)
    clock.held, most = sum(map(len, pieces)), _LENT if transport else _PIECE
    for whole in pieces:
        left = whole
        while left:
            piece = left[: min(most, await there(sent + 1) - sent)]
            left = left[len(piece) :]
            sent += len(piece)
            async with clock.running():
                body = piece if transport else bytes(piece)
                await send({"type": "http.response.body", "body": body, "more_body": True})
                if transport is not None:
                    await transport.emptied()
