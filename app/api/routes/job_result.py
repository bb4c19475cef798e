"""GET /jobs/{id}/result: C from a file, in any format."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from math import prod
from os import fstat, pread
from typing import Any, BinaryIO, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.body.dispatch import answer_media
from app.api.formats import json_matrix, npy, npz
from app.api.negotiation import VARY, listed
from app.api.response import TextResponse, prefix, sending
from app.api.state import service_of, threads_of
from app.dtypes import Array, numpy_dtype
from app.errors import TooLarge
from app.server.thread_pool import RequestThreads
from app.services.matmul.certificates.certificate import Certificate
from app.store.records import JobRecord

_MEMBERS: Final = ("dtype", "kernel", "config", "match", "instructions", "precision", "declined", "certificate")
_PIECE: Final = 2**20  # bytes read at once


async def result_of(request: Request, job: JobRecord, convert: bool | None, own: str = npy.MEDIA) -> Response:
    """A finished product's C, as Accept says, or in the form `own`.

    Raises NoResult, NotAcceptable, TooLarge, and Unsupported for 16-bit elements as JSON without `convert`.
    """
    media = answer_media(listed(request, "accept"), own)
    service, threads = service_of(request), threads_of(request)
    made: dict[str, Any] = job.result or {}
    if media == json_matrix.MEDIA and made:
        json_matrix.check_dtype(made["dtype"], convert)
    file = await threads.call(service.results.open, job)
    if media == json_matrix.MEDIA:
        return _text(file, made, threads)
    kind = (made["dtype"], tuple(made["shape"]))
    front, end = await threads.call(_around, file, *kind) if media == npz.MEDIA else (prefix(media, *kind), b"")
    return OpenFileResponse((front, end), file, media, _headers(made), threads)


def _around(file: BinaryIO, dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What an archive has before and after the file, which is read once for its checksum."""
    found = npz.around(dtype, shape, iter(lambda: file.read(_PIECE), b""))
    file.seek(0)
    return found


def _headers(made: dict[str, Any]) -> dict[str, str]:
    """What made the product, as the synchronous answer's headers say it."""
    timing = ", ".join(f"{phase};dur={took:.3f}" for phase, took in made["timing_ms"].items())
    devices: dict[str, int] = made.get("devices") or {}
    return {
        "X-Device": made["device"],
        "X-Kernel": made["kernel"],
        "X-Config": ",".join(f"{name}={value}" for name, value in made["config"].items()),
        "X-Match": made["match"],
        "X-Instructions": made["instructions"],
        "X-Precision": made["precision"],
        **({"X-Declined": made["declined"]} if made["declined"] else {}),
        **({"X-Tiles": str(made["tiles"])} if made.get("tiles", 1) > 1 else {}),
        **({"X-Devices": ",".join(f"{name}={n}" for name, n in devices.items())} if devices else {}),
        **({"X-Certificate": Certificate(**made["certificate"]).header()} if made.get("certificate") else {}),
        "X-Shape": "x".join(map(str, made["shape"])),
        "X-Dtype": made["dtype"],
        "Server-Timing": timing,
        **VARY,
    }


def _text(file: BinaryIO, made: dict[str, Any], threads: RequestThreads) -> Response:
    """C in JSON, read as it is sent; raises TooLarge."""
    held = AsyncExitStack()
    held.callback(file.close)
    dtype, shape = numpy_dtype(made["dtype"]), tuple(made["shape"])
    elements = prod(shape)
    if elements > json_matrix.MOST:
        file.close()
        message = f"JSON takes {json_matrix.MOST} elements, C has {elements}: ask for another form"
        raise TooLarge(message, limit=json_matrix.MOST, size=elements)

    def numbers(start: int, count: int) -> Array:
        return np.frombuffer(pread(file.fileno(), count * dtype.itemsize, start * dtype.itemsize), dtype)

    pieces = json_matrix.write_numbers(shape, numbers, {name: made.get(name) for name in _MEMBERS})
    headers = {**_headers(made), "Content-Type": json_matrix.MEDIA}
    return TextResponse(pieces, elements * dtype.itemsize, headers, threads, held)


class OpenFileResponse(Response):
    """An answer from an open file: its removal does not cut it short."""

    def __init__(
        self, around: tuple[bytes, bytes], file: BinaryIO, media: str, headers: dict[str, str], threads: RequestThreads
    ) -> None:
        self.status_code, self.background = 200, None
        (self._front, self._end), self._file, self._threads = around, file, threads
        length = len(self._front) + fstat(file.fileno()).st_size + len(self._end)
        self.init_headers({**headers, "Content-Type": media, "Content-Length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it piece by piece, and close the file whatever comes of it."""
        del receive
        with closing(self._file):
            async with sending(self, scope, send) as put:
                piece = self._front or await self._threads.call(self._file.read, _PIECE)
                while piece:
                    await put(piece)
                    piece = await self._threads.call(self._file.read, _PIECE)
                await put(self._end)
