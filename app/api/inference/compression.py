"""Accept-Encoding: compressed answers of the inference protocol."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.body.stream import CODINGS
from app.api.negotiation import best_coding, listed
from app.api.response import sending
from app.errors import NotAcceptable
from app.server.thread_pool import RequestThreads

_PACKED: Final = 2**20  # bytes packed at once
_LEVEL: Final = 1  # numbers hardly shrink, whatever it costs


def answer_coding(request: Request) -> str | None:
    """The Content-Encoding of an answer that is mostly numbers, which hardly shrink: None unless it is asked for.

    Raises NotAcceptable if the request accepts neither a coding nor an uncompressed answer.
    """
    coding = best_coding(listed(request, "accept-encoding"), tuple(CODINGS))
    if coding is None:
        raise NotAcceptable("the answer can be coded as gzip, deflate or identity", accepted=[*CODINGS, "identity"])
    return coding if coding in CODINGS else None


class PackedResponse(Response):
    """An answer in pieces, compressed as it is sent; `held` is closed once its last byte was taken."""

    def __init__(
        self,
        pieces: Iterable[bytes | memoryview],
        coding: str,
        headers: Mapping[str, str],
        threads: RequestThreads,
        held: AsyncExitStack,
    ) -> None:
        self.status_code, self.background = 200, None
        self._pieces, self._coding, self._threads, self._held = iter(pieces), coding, threads, held
        self.init_headers({**headers, "Content-Encoding": coding})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what the packer gives, as it comes: its length is known only then."""
        del receive
        async with self._held, sending(self, scope, send) as put:
            async for packed in self._packed():
                await put(packed)

    async def _packed(self) -> AsyncIterator[bytes]:
        packer = zlib.compressobj(_LEVEL, wbits=CODINGS[self._coding])
        while piece := await self._threads.call(next, self._pieces, b""):
            for at in range(0, len(piece), _PACKED):
                part = memoryview(piece)[at : at + _PACKED]
                if packed := await self._threads.sized(len(part), packer.compress, part):
                    yield packed
        yield packer.flush()
