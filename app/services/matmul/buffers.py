"""The buffers of one product: A, B and C of a problem in the slab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.devices.slab import SlabRegion
from app.dtypes import Array
from app.services.matmul.admission import AdmissionTicket
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.resident_matrices import PendingMatrix
from kernels.problem import Problem

NOWHERE: Final = SlabRegion(0, 0)


@dataclass(frozen=True, slots=True)
class OperandBuffers:
    """A, B and C of one problem in the slab, as NumPy views (as stored; three-dimensional where batch > 1).

    An operand that is resident has nowhere to land: its view is empty. `keys` are those of resident matrices, and
    `left` is C where it stays resident. `ticket` is its place in the queue. A large product has a `passage`.
    """

    problem: Problem
    a: Array
    b: Array
    c: Array
    offsets: tuple[int, int, int]
    keys: tuple[int | None, int | None, int | None] = (None, None, None)
    left: PendingMatrix | None = None
    ticket: AdmissionTicket | None = None
    passage: ChunkedTransfer | None = None
    region: SlabRegion = NOWHERE

    @property
    def regions(self) -> tuple[SlabRegion, ...]:
        """What was lent for it, and for a C that stays."""
        return (self.region, self.left.resident.region) if self.left else (self.region,)
