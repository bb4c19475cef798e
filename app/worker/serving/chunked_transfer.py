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
        self._incoming: dict[int, _IncomingOperand] = {}
        self._outgoing: dict[int, Buffer] = {}

    def take(self, backend: Backend, chunk: Chunk, data: Array) -> int:
        """Copy the next chunk of an operand; returns the bytes from its start that are here. Others are not copied.

        Raises LaunchFailed.
        """
        if chunk.at == 0:
            self._incoming[chunk.key] = _IncomingOperand(backend.allocate(chunk.whole))
        incoming = self._incoming.get(chunk.key)
        if incoming is None or incoming.there != chunk.at:
            return incoming.there if incoming else 0
        backend.write(incoming.buffer.window(chunk.at, chunk.nbytes), data)
        incoming.there = chunk.end
        return chunk.end

    def whole(self, backend: Backend, key: int | None, data: Array) -> Buffer | None:
        """An operand, with its missing part copied now; None if none of it is here. Raises LaunchFailed."""
        incoming = None if key is None else self._incoming.get(key)
        if incoming is None:
            return None
        if incoming.there < data.nbytes:
            rest = incoming.buffer.window(incoming.there, data.nbytes - incoming.there)
            backend.write(rest, data[incoming.there :])
            incoming.there = data.nbytes
        return incoming.buffer

    def keep_result(self, key: int, buffer: Buffer) -> None:
        """Keep a result until its last chunk has left."""
        self._outgoing[key] = buffer

    def outgoing(self, key: int) -> Buffer | None:
        """A result that has not left yet."""
        return self._outgoing.get(key)

    def forget(self, keys: Iterable[int | None]) -> None:
        """Drop the buffers of some keys."""
        for key in keys:
            if key is not None:
                self._incoming.pop(key, None)
                self._outgoing.pop(key, None)

    def spare(self, needed: Collection[int | None]) -> bool:
        """Drop every operand on its way but the needed ones: their bytes are in the slab; whether there was one."""
        others = [key for key in self._incoming if key not in needed]
        self.forget(others)
        return bool(others)

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys that there is something of."""
        return (*self._incoming, *self._outgoing)


def transfers_of(held: WorkerContext) -> TransferBuffers:
    """The transfers to and from this worker's device."""
    return held.state(TransferBuffers)


def upload_chunk(held: WorkerContext, link: WorkerLink, chunk: Chunk) -> int:
    """Copy a chunk of an operand from the slab; returns the bytes from its start that are on the device.

    Fewer than the chunk's end if there is no memory for it, or this worker lacks the chunks before it.
    """
    transfers = transfers_of(held)
    with link.lease(_LEAST + chunk.nbytes / COPYING):
        try:
            return transfers.take(held.backend, chunk, bytes_at(held, chunk.offset, chunk.nbytes))
        except LaunchFailed as error:
            if error.facts.get("fatal", True):
                raise
            transfers.forget([chunk.key])
            return 0


def download_chunk(held: WorkerContext, link: WorkerLink, chunk: Chunk) -> bool:
    """Copy a chunk of a result into the slab, and drop the result after its last; False if it is not here."""
    transfers = transfers_of(held)
    buffer = transfers.outgoing(chunk.key)
    if buffer is None:
        return False
    with link.lease(_LEAST + chunk.nbytes / COPYING):
        held.backend.download(buffer.window(chunk.at, chunk.nbytes), bytes_at(held, chunk.offset, chunk.nbytes))
    if chunk.end == chunk.whole:
        transfers.forget([chunk.key])
    return True
