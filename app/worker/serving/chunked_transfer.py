"""The worker's side of chunked copies: device buffers that are filled while a body is received.

Whatever is missing here is in the slab: the child may be replaced, or be short of memory, at any point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from app.devices.backend import Backend, Buffer, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.errors import LaunchFailed
from app.worker.serving.device_memory import bytes_at

COPYING: Final = 1e8  # bytes a second that no copy is slower than: a deadline, not an estimate
_LEAST: Final = 2.0  # seconds that every copy may take


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `at` to `at + nbytes` of the matrix of a key, which has `whole`; in the slab they start at `offset`."""

    key: int
    whole: int
    at: int
    nbytes: int
    offset: int

    @property
    def end(self) -> int:
        """The byte after its last."""
        return self.at + self.nbytes


@dataclass(slots=True)
class _IncomingOperand:
    """An operand's place on the device, and how many of its first bytes are there."""

    buffer: Buffer
    there: int = 0


class TransferBuffers:
    """Device bytes of single products by key."""

    def __init__(self) -> None:
        self._coming: dict[int, _IncomingOperand] = {}
        self._leaving: dict[int, Buffer] = {}

    def take(self, backend: Backend, piece: Chunk, data: Array) -> int:
        """Copy the next chunk of an operand; returns the bytes from its start that are here. Others are not copied.

        Raises LaunchFailed.
        """
        if piece.at == 0:
            self._coming[piece.key] = _IncomingOperand(backend.allocate(piece.whole))
        coming = self._coming.get(piece.key)
        if coming is None or coming.there != piece.at:
            return coming.there if coming else 0
        backend.write(coming.buffer.window(piece.at, piece.nbytes), data)
        coming.there = piece.end
        return piece.end

    def whole(self, backend: Backend, key: int | None, data: Array) -> Buffer | None:
        """An operand, with its missing part copied now; None if none of it is here. Raises LaunchFailed."""
        coming = None if key is None else self._coming.get(key)
        if coming is None:
            return None
        if coming.there < data.nbytes:
            rest = coming.buffer.window(coming.there, data.nbytes - coming.there)
            backend.write(rest, data[coming.there :])
            coming.there = data.nbytes
        return coming.buffer

    def leave(self, key: int, buffer: Buffer) -> None:
        """Keep a result until its last piece has left."""
        self._leaving[key] = buffer

    def leaving(self, key: int) -> Buffer | None:
        """A result that has not left yet."""
        return self._leaving.get(key)

    def forget(self, keys: Iterable[int | None]) -> None:
        """Drop the buffers of some keys."""
        for key in keys:
            if key is not None:
                self._coming.pop(key, None)
                self._leaving.pop(key, None)

    def spare(self, needed: Collection[int | None]) -> bool:
        """Drop every operand on its way but the needed ones: their bytes are in the slab; whether there was one."""
        others = [key for key in self._coming if key not in needed]
        self.forget(others)
        return bool(others)

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys that there is something of."""
        return (*self._coming, *self._leaving)


def transfers_of(held: WorkerContext) -> TransferBuffers:
    """The transfers to and from this worker's device."""
    return held.state(TransferBuffers)


def push(held: WorkerContext, link: WorkerLink, piece: Chunk) -> int:
    """Copy a chunk of an operand from the slab; returns the bytes from its start that are on the device.

    Fewer than the chunk's end if there is no memory for it, or this worker lacks the chunks before it.
    """
    transit = transfers_of(held)
    with link.lease(_LEAST + piece.nbytes / COPYING):
        try:
            return transit.take(held.backend, piece, bytes_at(held, piece.offset, piece.nbytes))
        except LaunchFailed as error:
            if error.facts.get("fatal", True):
                raise
            transit.forget([piece.key])
            return 0


def pull(held: WorkerContext, link: WorkerLink, piece: Chunk) -> bool:
    """Copy a chunk of a result into the slab, and drop the result after its last; False if it is not here."""
    transit = transfers_of(held)
    buffer = transit.leaving(piece.key)
    if buffer is None:
        return False
    with link.lease(_LEAST + piece.nbytes / COPYING):
        held.backend.download(buffer.window(piece.at, piece.nbytes), bytes_at(held, piece.offset, piece.nbytes))
    if piece.end == piece.whole:
        transit.forget([piece.key])
    return True
