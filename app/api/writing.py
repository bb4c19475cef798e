"""The answer of POST /matmul: its headers, and C's bytes out of the slab."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.formats import npy, rows, tensors
from app.api.formats.operands import bytes_of
from app.api.landing import STALLED
from app.devices.base import Array
from app.services.matmul import Product

_PIECE: Final = 2**19  # bytes copied out of the slab at once: the transport keeps none of the slab's own


@dataclass(frozen=True, slots=True)
class Made:
    """A product as it is answered: C in the shape of the operands, what made it, and seconds by phase."""

    c: Array
    product: Product
    seconds: Mapping[str, float]

    def headers(self) -> dict[str, str]:
        """The headers of every form."""
        config = ",".join(f"{name}={value}" for name, value in self.product.config.items())
        timing = ", ".join(f"{phase};dur={1e3 * seconds:.3f}" for phase, seconds in self.seconds.items())
        return {
            "X-Device": self.product.device.id,
            "X-Kernel": self.product.kernel,
            "X-Config": config,
            "X-Match": self.product.match,
            "X-Shape": ",".join(map(str, self.c.shape)),
            "X-Dtype": self.c.dtype.name,
            "Server-Timing": timing,
        }

    def text(self) -> list[bytes]:
        """C and what made it as JSON, in pieces."""
        members: dict[str, Any] = {
            "dtype": self.c.dtype.name,
            "kernel": self.product.kernel,
            "config": dict(self.product.config),
            "match": self.product.match,
        }
        return rows.write(self.c, members)


def prefix(media: str, c: Array) -> bytes:
    """What stands before C's bytes in a binary form."""
    writers = {npy.MEDIA: npy.prefix, tensors.MEDIA: tensors.prefix}
    return writers[media](c.dtype.name, c.shape) if media in writers else b""


class PiecesResponse(Response):
    """An answer that is there in pieces."""

    def __init__(self, pieces: list[bytes], media: str, headers: Mapping[str, str]) -> None:
        self.status_code, self.background = 200, None
        self._pieces = pieces
        self.init_headers({**headers, "Content-Type": media, "Content-Length": str(sum(map(len, pieces)))})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them in turn."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class SlabResponse(Response):
    """An answer whose bytes are sent out of the slab; `held` gives the slab's bytes back once they are sent."""

    def __init__(self, made: Made, media: str, held: AsyncExitStack) -> None:
        self.status_code, self.background = 200, None
        self._front, self._c, self._held = prefix(media, made.c), made.c, held
        length = len(self._front) + prod(made.c.shape) * made.c.itemsize
        self.init_headers({**made.headers(), "Content-Type": media, "Content-Length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send copies of pieces, so that the slab's bytes are free once the last was taken."""
        del scope, receive
        async with self._held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with suppress(TimeoutError):  # the server closes the connection of an answer that is not whole
                await self._send(send)

    async def _send(self, send: Send) -> None:
        memory = bytes_of(self._c)
        pieces = (bytes(memory[at : at + _PIECE]) for at in range(0, len(memory), _PIECE))
        for piece in chain([self._front] if self._front else [], pieces):
            async with asyncio.timeout(STALLED):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
