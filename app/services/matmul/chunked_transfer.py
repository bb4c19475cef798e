"""Chunked copies of a large product: uploaded while its body is received, downloaded while its answer is sent.

An optimisation only: the slab always holds every operand in full, and whatever has not been uploaded when the launch
starts is uploaded then. A result is in the slab as far as it was downloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.errors import ChildDied, TilewiseError
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.worker.serving import chunked_transfer
from app.worker.serving.chunked_transfer import Chunk
from app.worker.serving.product import MultiplyRequest, MultiplyResult

# Bytes of operands, and of a result, up to which they are copied at once: a device copies as many in a millisecond or a
# few, and the calls that would hide that take as long.
LARGE: Final = 2**25
# Bytes copied at once: no more of a device's time than other products can wait, and no fewer than are worth the calls
# and the wakeups of a copy, of which many clients' would take turns at the interpreter's lock. A multiple of 4096, as
# parts of buffers are.
PIECE: Final = 2**26
# The last bytes of the operands, which are copied with the product: few are waited for.
_LAST: Final = 2**24
# The first bytes of C that are copied, with the product: they leave while the others come.
_FIRST: Final = 2**24
# The same where C is compared with what the device made, and then as many as are there: these leave soon.
_FIRST_COMPARED: Final = 2**20
_DEADLINE: Final = 30.0  # seconds that a copy may take before it has the device's lease


@dataclass(slots=True)
class _Operand:
    """A matrix in the slab: how many of its first bytes are received, and how many copied."""

    key: int
    nbytes: int
    offset: int
    ready: int = 0
    copied: int = 0

    @property
    def is_ready(self) -> bool:
        return self.ready == self.nbytes

    def next(self, most: int) -> Chunk:
        count = min(most, self.nbytes - self.copied)
        return Chunk(self.key, self.nbytes, self.copied, count, self.offset + self.copied)


class ChunkedTransfer:
    """The copies of one product. Methods that copy, `attach_to` and `close` block: call them in a thread.

    `unit` is the device that operands are uploaded to, `d2h` the seconds that C took to be downloaded.
    """

    def __init__(
        self, cache: DeviceCacheDirectory, unit: Unit, sent: Mapping[str, tuple[int, int]], c: tuple[int, int]
    ) -> None:
        """`sent` and `c` are bytes and slab offset of each operand in the body, and of C."""
        whole = sum(nbytes for nbytes, _ in sent.values())
        self.unit, self.d2h, self.is_streamed = unit, 0.0, False
        self._check: Callable[[int, int], None] | None = None
        self._cache = cache
        self._operands = {name: _Operand(cache.new_key(), *each) for name, each in sent.items() if whole > LARGE}
        self._c, self._may_stay = _Operand(cache.new_key(), *c), False
        self._held: dict[int, Unit] = {}  # keys of which a worker may hold something
        self._copying = threading.Lock()
        self._is_open = bool(self._operands)
        if self._is_open:
            cache.sweep()  # they need the memory

    @property
    def is_open(self) -> bool:
        """Whether more of the operands may be uploaded."""
        return self._is_open

    @property
    def is_due(self) -> bool:
        """Whether there is a chunk to upload."""
        return self._next() is not None

    def ends(self, name: str) -> list[int]:
        """Up to which bytes an operand is received in turn: all of it at last, after what may be uploaded before."""
        one = self._operands.get(name)
        if one is None:
            return []
        beside = all(other.is_ready for other in self._operands.values() if other is not one)
        most = one.nbytes - (_LAST if beside else 0)
        return [*range(PIECE, most, PIECE), *([most] if 0 < most < one.nbytes else []), one.nbytes]

    def mark_received(self, name: str, nbytes: int) -> None:
        """Take note that an operand's first `nbytes` are in the slab."""
        if name in self._operands:
            self._operands[name].ready = nbytes

    def upload_next(self) -> None:
        """Upload the next chunk; if the device does not take it, it is the last."""
        with self._copying:
            operand = self._next() if self._is_open else None
            if operand is None:
                return
            piece = operand.next(min(PIECE, operand.ready - operand.copied))
            self._held[operand.key] = self.unit
            try:
                operand.copied = self._call(self.unit, chunked_transfer.upload_chunk, piece)
            except TilewiseError:  # the product will say what is wrong, if it still is
                operand.copied = 0
            if operand.copied < piece.end:
                self._is_open = False

    def uploaded_bytes(self, unit: Unit) -> int:
        """Bytes of operands that were uploaded to a device."""
        return sum(one.copied for one in self._operands.values()) if unit.device.id == self.unit.device.id else 0

    def stop(self) -> None:
        """Upload nothing more."""
        self._is_open = False

    def keep_on_device(self, *, streamed: bool = False) -> None:
        """Let a large C stay on its device, to be downloaded chunk by chunk; `streamed`, while its answer is sent."""
        self._may_stay, self.is_streamed = self._c.nbytes > LARGE, self.is_streamed or streamed

    def expect(self, check: Callable[[int, int], None]) -> None:
        """Have `check` look at C's bytes, from one to another: at those in the slab now, and raise as it does."""
        self._check = check
        if self._c.copied:
            check(0, self._c.copied)

    def attach_to(self, request: MultiplyRequest, unit: Unit) -> MultiplyRequest:
        """The request with the keys of what its device has already, and of C if it stays there; ends the uploads."""
        self.stop()
        result_key = self._c.key if self._may_stay else None
        head = _FIRST if request.sketch is None else _FIRST_COMPARED
        uploaded: tuple[int | None, int | None] = (None, None)
        with self._copying if unit.device.id == self.unit.device.id else nullcontext():
            if result_key is not None:
                self._held[result_key] = unit
            if unit.device.id == self.unit.device.id:
                uploaded = self._key("a"), self._key("b")
        return replace(request, uploaded=uploaded, result_key=result_key, result_head=0 if result_key is None else head)

    def mark_used(self, request: MultiplyRequest, result: MultiplyResult) -> None:
        """Take note that a request was served: its device has dropped the operands that were uploaded."""
        if result.on_device:
            self._c.copied, self.d2h = request.result_head, result.d2h
        for key in request.uploaded:
            if key is not None:
                del self._held[key]

    @property
    def pending_result_bytes(self) -> int:
        """Bytes of a C that stays on its device, else 0."""
        return self._c.nbytes if self._c.key in self._held else 0

    @property
    def downloaded_bytes(self) -> int:
        """How many of C's first bytes have come from the device."""
        return self._c.copied

    def download_next(self) -> int:
        """Copy the next chunk of C into the slab; gives how many of its first bytes are there.

        Raises ChildDied if C is gone with the worker that made it, DeviceError if the device failed, and as the check.
        """
        with self._copying:
            unit, started = self._held[self._c.key], perf_counter()
            piece = self._c.next(PIECE if self._check is None else min(PIECE, max(_FIRST_COMPARED, self._c.copied)))
            if not self._call(unit, chunked_transfer.download_chunk, piece):
                raise ChildDied(f"the result is gone with the process that held {unit.device.id}")
            self._c.copied = piece.end
            self.d2h += perf_counter() - started
            if piece.end == piece.whole:
                del self._held[piece.key]
            if self._check is not None:
                self._check(piece.at, piece.end)
            return piece.end

    def close(self) -> None:
        """Have the devices drop what they still hold."""
        self.stop()
        with self._copying:
            for key, unit in self._held.items():
                self._cache.release(unit, key)
            self._held.clear()

    def _key(self, name: str) -> int | None:
        """The key of an operand, if the device may hold some of it."""
        key = self._operands[name].key if name in self._operands else None
        return key if key in self._held else None

    def _next(self) -> _Operand | None:
        """The operand with a chunk to upload: a full one, or the last of one but for what comes with the product."""
        operands = self._operands.values()
        receiving = not all(one.is_ready for one in operands)

        def least(one: _Operand) -> int:
            early = one.nbytes - one.copied - (0 if receiving and one.is_ready else _LAST)
            return min(PIECE, early) if early > 0 else PIECE

        return next((one for one in operands if one.ready - one.copied >= least(one)), None)

    def _call(self, unit: Unit, function: Callable[..., int], piece: Chunk) -> int:
        found: int = unit.products.call(function, piece, priority=Priority.PRODUCT, deadline=_DEADLINE)
        return found
