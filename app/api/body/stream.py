"""A request body: decompressed, and received into slab memory, directly into operands or into a staging buffer."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, Protocol, TypeVar, cast

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.api.body.flow_control import SlowTransfers, TooSlow, TransferWatchdog, UploadSlots
from app.api.errors import too_large
from app.api.state import state_of
from app.errors import BodyTooLarge, InvalidMatrix, Malformed, UnsupportedMediaType
from app.server import EXTENSION, TransferLimits
from app.server.thread_pool import FEW, RequestThreads

_PIECE: Final = 2**18  # bytes of a body that is read as a stream, at once

# The window bits by which zlib is told the framing: RFC 1952's for gzip; RFC 1950's for deflate, as RFC 9110 has it.
CODINGS: Final[Mapping[str, int]] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_TAKEN: Final = 2**16  # compressed bytes taken at once
_MADE: Final = 2**18  # bytes unpacked at once, under a millisecond's work
_RATIO: Final = 100  # bytes that a compressed byte may become
_FREE: Final = 2**20  # bytes that a body may become in any case
_EMPTY: Final = 16  # members of a gzip file that have nothing in them

Lend = Callable[[int], AbstractContextManager[memoryview]]
T = TypeVar("T")


class ByteSource(Protocol):
    """Where a body's bytes come from."""

    @property
    def received(self) -> int:
        """How many bytes came."""
        ...

    @property
    def is_threaded(self) -> bool:
        """Whether threads receive large pieces, and not the event loop."""
        ...

    def has(self, nbytes: int) -> bool:
        """Whether `nbytes`, or all that are left, are there already: no timeout is needed."""
        ...

    async def take(self, most: int) -> bytes:
        """At least one byte, at most `most`; none once the body has ended. Raises ClientDisconnect."""
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Bytes into `view` until it is full or the body has ended; gives how many. Raises ClientDisconnect."""
        ...


async def _copied(source: ByteSource, view: memoryview) -> int:
    """Pieces of a source copied into `view` until it is full or the source has ended; gives how many bytes."""
    at = 0
    while at < len(view) and (piece := await source.take(len(view) - at)):
        view[at : at + len(piece)] = piece
        at += len(piece)
    return at


class RequestStream:
    """A body as the framework gives it: every byte is copied once more."""

    def __init__(self, request: Request) -> None:
        self.received, self.is_threaded = 0, False
        self._stream = request.stream()
        self._rest = memoryview(b"")

    def has(self, nbytes: int) -> bool:
        """As ByteSource."""
        return nbytes <= len(self._rest)

    async def take(self, most: int) -> bytes:
        """As ByteSource."""
        while not self._rest:
            piece = await anext(self._stream, None)
            if piece is None:
                return b""
            self.received += len(piece)
            self._rest = memoryview(piece)
        taken, self._rest = bytes(self._rest[:most]), self._rest[most:]
        return taken

    async def receive_into(self, view: memoryview) -> int:
        """As ByteSource."""
        return await _copied(self, view)


class Body:
    """The body of one request, wherever it comes from. A client that sends too slowly is answered 408."""

    def __init__(
        self,
        source: ByteSource,
        length: int | None,
        limits: TransferLimits,
        slots: UploadSlots,
        slow: SlowTransfers,
    ) -> None:
        self.length, self._slots, self._has_slot = length, slots, False
        self._source, self._clock = source, TransferWatchdog(limits, lambda: source.received, slow)
        self._taken = 0
        self._start, self._expected = 0, length

    @property
    def taken(self) -> int:
        """Bytes that were handed over."""
        return self._taken

    def expect(self, nbytes: int) -> None:
        """Expect exactly `nbytes` more; raises InvalidMatrix if the declared length differs."""
        if self.length is not None and self.length - self._taken != nbytes:
            raise wrong_length(nbytes, self.length - self._taken)
        self._start, self._expected = self._taken, nbytes

    def hold(self, nbytes: int) -> None:
        """Say that so many bytes of the slab are kept until the body is there."""
        self._clock.held = nbytes

    async def some(self, most: int) -> bytes:
        """At least one byte, at most `most`; none once the body has ended."""
        piece = await self._timely(1, self._source.take(most))
        self._taken += len(piece)
        return piece

    async def fill(self, view: memoryview) -> None:
        """Receive exactly len(view) bytes into `view`; raises InvalidMatrix if the body ends before."""
        async with self.slot(len(view)):
            count = await self._timely(len(view), self._source.receive_into(view))
        self._taken += count
        if count < len(view):
            expected = self._taken - count + len(view) if self._expected is None else self._start + self._expected
            raise wrong_length(expected - self._start, self._taken - self._start)

    @asynccontextmanager
    async def slot(self, nbytes: int) -> AsyncIterator[None]:
        """Hold an upload slot while this many bytes are received; waits for one, raises nothing."""
        if self._has_slot:
            yield
            return
        async with self._slots.slot(nbytes):
            self._has_slot = True
            try:
                yield
            finally:
                self._has_slot = False

    async def finish(self) -> None:
        """Expect the end; raises InvalidMatrix if something follows."""
        if await self.some(1):
            raise wrong_length(self._taken - self._start - 1, self._taken - self._start)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The rest as it comes."""
        while piece := await self.some(_PIECE):
            yield piece

    async def _timely(self, nbytes: int, waiting: Awaitable[T]) -> T:
        """Wait for the client, no longer than the limits allow; raises HTTPException 408."""
        if self._source.has(nbytes):
            return await waiting
        try:
            async with self._clock.running():
                return await waiting
        except TooSlow as error:
            raise HTTPException(408, str(error), {"Connection": "close"}) from error


def body_of(request: Request) -> Body:
    """The request's body: straight from the socket where the server can, else as the framework gives it."""
    source = source_of(request) or RequestStream(request)
    state = state_of(request.app)
    slots = state.threaded_slots if source.is_threaded else state.upload_slots
    return Body(source, declared_length(request), state.limits, slots, state.slow_transfers)


def source_of(request: Request) -> ByteSource | None:
    """The request's body as it comes from the socket, where the server can tell."""
    transport = request.scope.get("extensions", {}).get(EXTENSION)
    return cast("ByteSource | None", transport and transport.source)


def declared_length(request: Request) -> int | None:
    """The body's length as declared, None if it comes in chunks."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def wrong_length(expected: int, size: int) -> InvalidMatrix:
    """The error of a body that has not exactly its matrices' bytes."""
    more = " or more" if size > expected else ""
    return InvalidMatrix(f"the matrices take {expected} bytes, the body has {size}{more}", expected=expected, size=size)


def coding_of(request: Request) -> str | None:
    """The body's Content-Encoding, or None; raises UnsupportedMediaType for one that is not read."""
    coding = ",".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding in {"", "identity"}:
        return None
    if coding not in CODINGS:
        known = ["gzip", "deflate"]
        raise UnsupportedMediaType(f"a body coded as {coding} is not read, {' and '.join(known)} are", accepted=known)
    return coding


def unpacked_body(request: Request, limit: int) -> Body:
    """The request's body, decompressed if it is compressed; then its length is not known.

    Its methods raise Malformed if it cannot be decompressed, BodyTooLarge if more than `limit` bytes come out.
    """
    coding, body = coding_of(request), body_of(request)
    if coding is None:
        return body
    state = state_of(request.app)
    source = DecompressedBody(body, coding, limit, state.threads)
    return Body(source, None, state.limits, state.upload_slots, state.slow_transfers)


class DecompressedBody:
    """A body that is decompressed as it is read, never more at once than is asked for."""

    def __init__(self, body: Body, coding: str, limit: int, threads: RequestThreads) -> None:
        self._body, self._coding, self._limit, self._threads = body, coding, limit, threads
        self._unpacker = zlib.decompressobj(CODINGS[coding])
        self._packed = b""
        self._has_more = False  # whether the unpacker may have bytes that it had no room for
        self._size = self._made = self._empty = 0
        self.is_threaded = False

    @property
    def received(self) -> int:
        """Bytes that came, decompressed."""
        return self._size

    def has(self, nbytes: int) -> bool:
        """As ByteSource: what is not decompressed yet cannot be counted."""
        del nbytes
        return False

    async def take(self, most: int) -> bytes:
        """At least one byte, at most `most`; none once the body has ended."""
        most = min(most, _MADE)
        while True:
            if not self._packed and not self._has_more and not await self._fed():
                return b""
            piece = self._unpack(most) if most <= FEW else await self._threads.call(self._unpack, most)
            if piece:
                self._size += len(piece)
                self._check_size()
                return piece

    async def receive_into(self, view: memoryview) -> int:
        """Bytes into `view` until it is full or the body has ended; gives how many."""
        return await _copied(self, view)

    def _check_size(self) -> None:
        """Refuse what is over the limit, or unpacks to far more than was sent; raises BodyTooLarge."""
        if self._size > self._limit:
            raise too_large(self._limit, self._size)
        sent = self._body.taken
        most = max(_FREE, _RATIO * sent)
        if self._size > most:
            message = f"the body unpacks to more than {_RATIO} times the {sent} bytes that were sent"
            raise BodyTooLarge(message, limit=most, size=self._size)

    async def _fed(self) -> bool:
        """Take more compressed bytes; False at the end, which must be the end of what was compressed too."""
        self._packed = await self._body.some(_TAKEN)
        if not self._packed and not self._unpacker.eof:
            raise Malformed(f"the body ends within its {self._coding} stream")
        return bool(self._packed)

    def _unpack(self, most: int) -> bytes:
        if self._unpacker.eof:  # a gzip file may have further members; zlib's format has one stream
            if CODINGS[self._coding] != CODINGS["gzip"]:
                raise Malformed(f"something follows the body's {self._coding} stream")
            self._empty += not self._made
            if self._empty > _EMPTY:
                raise Malformed(f"more than {_EMPTY} members of the body's gzip file are empty", limit=_EMPTY)
            self._made = 0
            self._unpacker = zlib.decompressobj(CODINGS[self._coding])
        try:
            piece = self._unpacker.decompress(self._packed, most)
        except zlib.error as error:
            raise Malformed(f"the body is no {self._coding} stream: {error}") from error
        self._made += len(piece)
        self._packed = self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
        self._has_more = len(piece) == most and not self._unpacker.eof
        return piece


class StagedBody:
    """A body of any length while it is received: `data` is what has come."""

    def __init__(self, lend: Lend, threads: RequestThreads, slow: SlowTransfers) -> None:
        self._lend, self._threads, self._slow = lend, threads, slow
        self._held = AsyncExitStack()
        self._memory = memoryview(bytearray(FEW))
        self._size = 0

    @property
    def data(self) -> memoryview:
        """What has come."""
        return self._memory[: self._size]

    @property
    def lent_bytes(self) -> int:
        """Bytes of the slab that are lent for it."""
        return len(self._memory) if len(self._memory) > FEW else 0

    async def reserve(self, nbytes: int) -> None:
        """Reserve memory for `nbytes`, in the slab if they are more than a few; raises TooLarge, NoRoom."""
        if nbytes <= len(self._memory):
            return
        async with AsyncExitStack() as held:
            memory = await self._slow.make_room(
                lambda: held.enter_async_context(self._threads.entered(self._lend(nbytes)))
            )
            await self._threads.sized(self._size, _copy, memory[: self._size], self.data)
            old, self._held, self._memory = self._held, held.pop_all(), memory
        await old.aclose()

    async def write(self, data: bytes) -> None:
        """Append a piece; raises TooLarge, NoRoom."""
        end = self._size + len(data)
        if end > len(self._memory):
            await self.reserve(max(end, 4 * len(self._memory)))
        self._memory[self._size : end] = data
        self._size = end

    async def receive(self, body: Body) -> None:
        """Receive the rest of a body of declared length; raises TooLarge, NoRoom."""
        await self.receive_next(body, (body.length or 0) - body.taken)

    async def receive_next(self, body: Body, nbytes: int) -> None:
        """Receive exactly so many bytes of a body; raises TooLarge, NoRoom."""
        await self.reserve(self._size + nbytes)
        body.hold(self.lent_bytes)
        await body.fill(self._memory[self._size : self._size + nbytes])
        self._size += nbytes

    async def receive_pieces(self, body: Body, check: Callable[[int], None]) -> None:
        """Receive the rest of a body of any length; `check` is called with what has come so far."""
        async for piece in body.pieces():
            await self.write(piece)
            body.hold(self.lent_bytes)
            check(self._size)

    async def aclose(self) -> None:
        """Release the memory."""
        self._memory = memoryview(b"")
        await self._held.aclose()


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy, and let other threads run meanwhile: a memoryview's own assignment holds the interpreter's lock."""
    np.copyto(np.asarray(target), np.asarray(source))


@asynccontextmanager
async def staging(nbytes: int, lend: Lend, threads: RequestThreads, slow: SlowTransfers) -> AsyncIterator[StagedBody]:
    """A staging area with memory for `nbytes` at first."""
    area = StagedBody(lend, threads, slow)
    try:
        await area.reserve(nbytes)
        yield area
    finally:
        await area.aclose()
