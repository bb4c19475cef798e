"""Accept-Encoding: compressed answers of the inference protocol."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.body.decompression import CODINGS
from app.api.negotiation import listed
from app.api.response import sending
from app.api.state import RequestThreads
from app.errors import NotAcceptable

_PACKED: Final = 2**20  # bytes packed at once
_LEVEL: Final = 1  # numbers hardly shrink, whatever it costs
_QUALITY: Final = re.compile(r"q=(0(\.[0-9]{0,3})?|1(\.0{0,3})?)")


def answer_coding(request: Request) -> str | None:
    """The Content-Encoding of an answer that is mostly numbers, or None.

    Libraries name by default all they know, and numbers do not shrink: an answer is compressed where one coding alone
    is named, as a caller who was told to does, and where `identity` is refused. Raises NotAcceptable for nothing left.
    """
    weights = _weights(listed(request, "accept-encoding"))
    wanted = [name for name in CODINGS if weights.get(name, weights.get("*", 0.0))]
    if not weights.get("identity", weights.get("*", 1.0)):
        if not wanted:
            raise NotAcceptable("the answer can be coded as gzip, deflate or identity", accepted=[*CODINGS, "identity"])
        return wanted[0]
    named = [name for name, weight in weights.items() if weight]
    return named[0] if len(named) == 1 and named[0] in CODINGS else None


def _weights(text: str) -> dict[str, float]:
    weights = {}
    for entry in filter(None, (each.strip().lower() for each in text.split(","))):
        name, _, quality = (part.strip() for part in entry.partition(";"))
        found = _QUALITY.fullmatch(quality)
        weights[name] = float(found[1]) if found else 1.0
    return weights


class PackedResponse(Response):
    """An answer in pieces, compressed as it is sent; `held` is closed once its last byte was taken."""

    def __init__(
        self,
        pieces: Sequence[bytes | memoryview],
        coding: str,
        headers: Mapping[str, str],
        threads: RequestThreads,
        held: AsyncExitStack,
    ) -> None:
        self.status_code, self.background = 200, None
        self._pieces, self._coding, self._threads, self._held = pieces, coding, threads, held
        self.init_headers({**headers, "Content-Encoding": coding, "Vary": "Accept-Encoding"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what the packer gives, as it comes: its length is known only then."""
        del receive
        async with self._held, sending(self, scope, send) as put:
            async for packed in self._packed():
                await put(packed)

    async def _packed(self) -> AsyncIterator[bytes]:
        packer = zlib.compressobj(_LEVEL, wbits=CODINGS[self._coding])
        for piece in self._pieces:
            for at in range(0, len(piece), _PACKED):
                part = memoryview(piece)[at : at + _PACKED]
                if packed := await self._threads.sized(len(part), packer.compress, part):
                    yield packed
        yield packer.flush()
