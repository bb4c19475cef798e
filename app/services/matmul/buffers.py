"""One product: the buffers of A, B and C in the slab, and what made C."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Final

from app.devices.fleet import Unit
from app.devices.slab import SlabRegion
from app.dtypes import Array
from app.errors import DeviceError
from app.observability.tracing import Attributes, trace_phases
from app.services.matmul.admission import AdmissionTicket
from app.services.matmul.certificates.certificate import Certificate, Certifier
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.resident_matrices import PendingMatrix
from app.worker.serving.device_memory import TileTransfer
from app.worker.serving.product import MultiplyResult
from app.worker.serving.sketch import SketchRequest
from kernels.device import Device
from kernels.problem import Problem

NOWHERE: Final = SlabRegion(0, 0)
# Spans by phase, where they have another name; compiling and verifying are traced where they happen.
_SPANS: Final[dict[str, str | None]] = {"kernel": "launch", "build": None}


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` by `columns` of C from `row` and `column` on, of `count` products of a batch from `first` on.

    With `slices` its panels come in so many of k, whose products are added up.
    """

    first: int
    count: int
    row: int
    rows: int
    column: int
    columns: int
    slices: tuple[int, ...] = ()

    def problem(self, whole: Problem) -> Problem:
        """What it computes."""
        return replace(whole, m=self.rows, n=self.columns, batch=self.count)


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How a product is made: in `tiles`, None: as a whole; by all of `units`, none: by the one that is free first.

    `fits` says that one device holds all of it, whatever its tiles are for.
    """

    tiles: tuple[Tile, ...] | None = None
    units: tuple[Unit, ...] = ()
    fits: bool = False


WHOLE: Final = ProductPlan()


@dataclass(frozen=True, slots=True)
class OperandBuffers:
    """A, B and C of one problem in the slab, as NumPy views (as stored; three-dimensional if batch > 1).

    A resident operand is not uploaded: its view is empty. `keys` are those of resident matrices, `pending_result` is C
    if it stays resident. `stacked` operands came as a batch, be it of one. A large product has a `transfer`; of a
    `tile` of a `whole` product the views are that one's, and `more` deals the tiles that may be made with it. One whose
    certificate begins while its operands arrive has a `certifier`.
    """

    problem: Problem
    a: Array
    b: Array
    c: Array
    offsets: tuple[int, int, int]
    keys: tuple[int | None, int | None, int | None] = (None, None, None)
    pending_result: PendingMatrix | None = None
    ticket: AdmissionTicket | None = None
    transfer: ChunkedTransfer | None = None
    region: SlabRegion = NOWHERE
    stacked: bool = False
    tile: TileTransfer | None = None
    plan: ProductPlan = WHOLE
    certifier: Certifier | None = None
    more: Callable[[], Sequence[OperandBuffers]] | None = None
    whole: Problem | None = None

    @property
    def principal(self) -> str:
        """The name of whose product it is."""
        return "" if self.ticket is None else self.ticket.principal.name

    @property
    def regions(self) -> tuple[SlabRegion, ...]:
        """The slab's regions of the product, and of a C that stays resident."""
        pending = self.pending_result
        return (self.region, pending.resident.region) if pending else (self.region,)

    @property
    def asked_sketch(self) -> SketchRequest | None:
        """What the device is asked to find of the product where it makes it; nothing of a tile."""
        on_device = self.certifier.on_device if self.certifier is not None and self.tile is None else None
        return on_device.request if on_device is not None else None

    def take_sketch(self, result: MultiplyResult) -> None:
        """Keep what the device has found, if it was asked."""
        if self.certifier is not None and self.certifier.on_device is not None and self.tile is None:
            self.certifier.on_device.take(result.sketch)

    def is_lost_tile(self, error: DeviceError) -> bool:
        """Whether it is a tile whose device was lost with what it held: it is dealt anew."""
        return self.tile is not None and bool(error.facts.get("outside"))

    @property
    def result(self) -> Array:
        """C in the operands' shape: a batch of one is still a batch."""
        return self.c.reshape((1, *self.c.shape)) if self.stacked and self.problem.batch == 1 else self.c


@dataclass(frozen=True, slots=True)
class Product:
    """What made a product: the device, the kernel with its config and instructions, how exact that answer was.

    For the vendor's library `instructions` is its name. `seconds` has queue (waiting), build (compiling and verifying
    at a first use, and kernels that failed; missing if there was none), h2d, kernel and d2h. One launch made `together`
    products; all seconds but the queue's are of all of them. `precision` is the one it was made in, `declined` says why
    that is strict though it was to be emulated. `certificate` is of one that was to be verified: the seconds that
    this took after it was made are `verify`. It was made in so many `tiles`, of which
    each of several `devices` made so many. A tile has those `following` that were made with it.
    """

    device: Device
    kernel: str
    config: dict[str, int]
    match: str
    instructions: str
    seconds: dict[str, float]
    together: int = 1
    precision: str = "strict"
    declined: str | None = None
    certificate: Certificate | None = None
    tiles: int = 1
    devices: Mapping[str, int] = field(default_factory=dict)
    following: tuple[Product, ...] = ()

    def trace(self, started: float) -> None:
        """Spans of its phases."""
        where = {"tilewise.device": self.device.id, "tilewise.kernel": self.kernel}
        told: Attributes = {**where, "tilewise.together": self.together}
        trace_phases(started, [(_SPANS.get(name, name), took) for name, took in self.seconds.items()], told)

    def certified(self, certifier: Certifier, transfer: ChunkedTransfer | None) -> Product:
        """The product with the certificate of C, which is there, or is read as it comes from the device.

        Of one that the device has seen, C may stay there to be streamed: each chunk is compared with it as it comes.
        Raises CertificateFailed, ChildDied if C is gone with the worker that made it, and DeviceError.
        """
        started, copied, on_device = perf_counter(), 0.0, certifier.on_device
        if transfer is not None and transfer.is_streamed and transfer.pending_result_bytes and on_device is not None:
            certificate = certifier.early(self.precision)
            if certificate is not None:
                transfer.expect(on_device.check_of_c())
                return self._with(certificate, started, perf_counter() - started + on_device.seconds)
        certifier.begin(self.precision)
        while transfer is not None and transfer.pending_result_bytes:
            certifier.advance("c", transfer.download_next())
            copied = transfer.d2h
        certifier.advance("c")
        certificate, took = certifier.certificate(self.precision), perf_counter() - started - copied
        took += on_device.seconds if on_device is not None else 0.0
        return self._with(certificate, started, took, copied)

    def _with(self, certificate: Certificate, started: float, took: float, copied: float = 0.0) -> Product:
        """The product with its certificate, which took so long after it was made, beside copies."""
        phases = {"d2h": self.seconds.get("d2h", 0.0) + copied} if copied else {}
        trace_phases(started, [*phases.items(), ("verify", took)])
        return replace(self, certificate=certificate, seconds=self.seconds | phases | {"verify": took})
