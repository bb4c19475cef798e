"""Chunked copies of a large product: uploaded while its body is received, downloaded while its answer is sent.

It is quicker, and nothing else: the slab has every byte of the operands, and what the device lacks of them when the
launch's turn has come is copied then. A result is in the slab as far as it was pulled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.errors import ChildDied, TilewiseError
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.worker.serving import chunked_transfer
from app.worker.serving.chunked_transfer import Chunk
from app.worker.serving.product import MultiplyRequest

# Bytes of operands, and of a result, up to which they are copied at once: a device copies as many in a millisecond or a
# few, and the calls that would hide that take as long.
LARGE: Final = 2**25
# Bytes copied at once: five milliseconds of the fastest loopback, and no more of a device's time than other products
# can wait. A multiple of 4096, as parts of buffers are.
PIECE: Final = 2**24
_DEADLINE: Final = 30.0  # seconds that a copy may take before it has the device's lease


@dataclass(slots=True)
class _TransferProgress:
    """A matrix in the slab: how many of its first bytes are to be copied, and were."""

    key: int
    nbytes: int
    offset: int
    ready: int = 0
    copied: int = 0

    @property
    def is_ready(self) -> bool:
        return self.ready == self.nbytes

    def next(self) -> Chunk:
        count = min(PIECE, self.nbytes - self.copied)
        return Chunk(self.key, self.nbytes, self.copied, count, self.offset + self.copied)


class ChunkedTransfer:
    """One product's. `push`, `pull`, `ordered` and `close` block: call them in a thread.

    `unit` has the device that operands are pushed to, `d2h` is how many seconds C took to be pulled.
    """

    def __init__(
        self, copies: DeviceCacheDirectory, unit: Unit, sent: Mapping[str, tuple[int, int]], c: tuple[int, int]
    ) -> None:
        """Take the bytes and the slab offset of each operand that is sent, and of C."""
        whole = sum(nbytes for nbytes, _ in sent.values())
        self.unit, self.d2h = unit, 0.0
        self._copies = copies
        self._operands = {name: _TransferProgress(copies.key(), *each) for name, each in sent.items() if whole > LARGE}
        self._c, self._may_stay = _TransferProgress(copies.key(), *c), False
        self._held: dict[int, Unit] = {}  # keys that a child may have something of
        self._copying = threading.Lock()
        self._is_open = bool(self._operands)

    @property
    def is_open(self) -> bool:
        """Whether pieces of operands may still be pushed."""
        return self._is_open

    @property
    def is_due(self) -> bool:
        """Whether there is a piece to push."""
        return self._next() is not None

    def landed(self, name: str, nbytes: int) -> None:
        """Take note of how many of an operand's first bytes have landed."""
        if name in self._operands:
            self._operands[name].ready = nbytes

    def push(self) -> None:
        """Copy a piece that has landed to the device; where it does not take it, that was the last."""
        with self._copying:
            window = self._next() if self._is_open else None
            if window is None:
                return
            piece = window.next()
            self._held[window.key] = self.unit
            try:
                window.copied = self._call(self.unit, chunked_transfer.push, piece)
            except TilewiseError:  # the product will say what is wrong, if it still is
                window.copied = 0
            if window.copied < piece.end:
                self._is_open = False

    def pushed(self, unit: Unit) -> int:
        """Bytes of operands that a device has."""
        return sum(one.copied for one in self._operands.values()) if unit.device.id == self.unit.device.id else 0

    def stop(self) -> None:
        """Push nothing more."""
        self._is_open = False

    def stays(self) -> None:
        """Say that C will be pulled: where it is large it may stay on its device."""
        self._may_stay = self._c.nbytes > LARGE

    def ordered(self, order: MultiplyRequest, unit: Unit) -> MultiplyRequest:
        """The order with the keys of what its device has already, and of C where that is to stay; ends the pushing."""
        self.stop()
        late = self._c.key if self._may_stay else None
        ahead: tuple[int | None, int | None] = (None, None)
        with self._copying if unit.device.id == self.unit.device.id else nullcontext():
            if late is not None:
                self._held[late] = unit
            if unit.device.id == self.unit.device.id:
                ahead = self._key("a"), self._key("b")
        return replace(order, ahead=ahead, late=late)

    def made(self, order: MultiplyRequest) -> None:
        """Take note that an order's product was made: its device has dropped what was pushed of the operands."""
        for key in order.ahead:
            if key is not None:
                del self._held[key]

    @property
    def left(self) -> int:
        """Bytes of C if it was left on its device, else none."""
        return self._c.nbytes if self._c.key in self._held else 0

    def pull(self) -> int:
        """Copy the next piece of C into the slab; gives how many of its first bytes are there.

        Raises ChildDied where C is gone with the child that made it, and DeviceError where the device failed.
        """
        with self._copying:
            unit, piece, started = self._held[self._c.key], self._c.next(), perf_counter()
            if not self._call(unit, chunked_transfer.pull, piece):
                raise ChildDied(f"the result is gone with the process that held {unit.device.id}")
            self._c.copied = piece.end
            self.d2h += perf_counter() - started
            if piece.end == piece.whole:
                del self._held[piece.key]
            return piece.end

    def close(self) -> None:
        """Have the devices drop what is left."""
        self.stop()
        with self._copying:
            for key, unit in self._held.items():
                self._copies.let_go(unit, key)
            self._held.clear()

    def _key(self, name: str) -> int | None:
        """The key of an operand, if the device may have something of it."""
        key = self._operands[name].key if name in self._operands else None
        return key if key in self._held else None

    def _next(self) -> _TransferProgress | None:
        """The operand with a piece to push: a full one, or the last of one while another is still landing."""
        windows = self._operands.values()
        landing = not all(one.is_ready for one in windows)
        least = {one.key: 1 if landing and one.is_ready else PIECE for one in windows}
        return next((one for one in windows if one.ready - one.copied >= least[one.key]), None)

    def _call(self, unit: Unit, function: Callable[..., int], piece: Chunk) -> int:
        found: int = unit.products.call(function, piece, priority=Priority.PRODUCT, deadline=_DEADLINE)
        return found


@contextmanager
def passage(
    copies: DeviceCacheDirectory, unit: Unit, sent: Mapping[str, tuple[int, int]], c: tuple[int, int]
) -> Iterator[ChunkedTransfer | None]:
    """The passage of a product, closed at the end; None where its operands and its result are small."""
    if max(sum(nbytes for nbytes, _ in sent.values()), c[0]) <= LARGE:
        yield None
        return
    opened = ChunkedTransfer(copies, unit, sent, c)
    try:
        yield opened
    finally:
        opened.close()
