"""Content-Encoding: gzip and deflate bodies, decompressed as they are read."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

from app.api.body.stream import Body, body_of
from app.api.body.transfer_watchdog import limits_of
from app.api.body.upload_slots import upload_slots_of
from app.api.errors import too_large
from app.api.state import FEW, RequestThreads, threads_of
from app.errors import Malformed, UnsupportedMediaType

# The window bits by which zlib is told the framing: RFC 1952's for gzip; RFC 1950's for deflate, as RFC 9110 has it.
CODINGS: Final[Mapping[str, int]] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_TAKEN: Final = 2**16  # compressed bytes taken at once
_MADE: Final = 2**18  # bytes unpacked at once, under a millisecond's work
_EMPTY: Final = 16  # members of a gzip file that have nothing in them


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
    """The request's body as it was before it was compressed, if it was; then its length is not known.

    Its methods raise Malformed where it cannot be unpacked, BodyTooLarge where more than `limit` bytes come out.
    """
    coding, body = coding_of(request), body_of(request)
    if coding is None:
        return body
    return Body(
        DecompressedBody(body, coding, limit, threads_of(request)),
        None,
        limits_of(request),
        upload_slots_of(request),
    )


class DecompressedBody:
    """A body's bytes out of its compressed ones: never more at once than somebody asks for."""

    def __init__(self, body: Body, coding: str, limit: int, threads: RequestThreads) -> None:
        self._body, self._coding, self._limit, self._threads = body, coding, limit, threads
        self._unpacker = zlib.decompressobj(CODINGS[coding])
        self._packed = b""
        self._has_more = False  # whether the unpacker may have bytes that it had no room for
        self._size = self._made = self._empty = 0

    @property
    def received(self) -> int:
        """Compressed bytes that came."""
        return self._body.taken

    def has(self, nbytes: int) -> bool:
        """As ByteSource: who knows what is in there."""
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
                if self._size > self._limit:
                    raise too_large(self._limit, self._size)
                return piece

    async def land(self, view: memoryview) -> int:
        """Bytes into `view` until it is full or the body has ended; gives how many."""
        at = 0
        while at < len(view) and (piece := await self.take(len(view) - at)):
            view[at : at + len(piece)] = piece
            at += len(piece)
        return at

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
