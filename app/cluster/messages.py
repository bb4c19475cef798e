"""What the service and a node's actor tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from app.devices.backend import Vendor
from app.devices.lease import Priority
from app.worker.serving.device_memory import Panel
from kernels.device import Device

Role = Literal["products", "trials"]


@dataclass(frozen=True, slots=True)
class SharedSlab:
    """Where a process's slab may be found by another of the same host; `token` are the bytes at `offset` then."""

    pid: int
    fd: int
    nbytes: int
    offset: int
    token: bytes


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node's actor opens its devices with; `patience`: seconds without a word from the service until it ends."""

    devices: str
    cache_dir: Path
    slab_bytes: int
    sandboxed: bool
    patience: float


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a node's actor holds: its devices by their ids there, and why it does not hold others.

    `reads_slab` says that it reads operands where the service has them, and the service results where it has them.
    """

    versions: tuple[str, ...]
    devices: tuple[tuple[Device, Vendor], ...] = ()
    reasons: tuple[str, ...] = ()
    width: int = 1
    slab: SharedSlab | None = None
    reads_slab: bool = False


@dataclass(frozen=True, slots=True)
class NodeOperands:
    """The rows of the service's slab that a call reads, in order, and those that it writes its result to."""

    reads: tuple[Panel, ...] = ()
    writes: tuple[Panel, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that they take where they lie one after the other, each at whole pages."""
        return sum(whole_pages(panel.nbytes) for panel in (*self.reads, *self.writes))


NO_OPERANDS: Final = NodeOperands()


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One call of a device's worker. `ask` and `kill` are seconds from now, as a worker's `until`; None: never.

    The offsets of a request with operands count from the beginning of these.
    """

    number: int
    device: str
    role: Role
    function: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    priority: Priority
    deadline: float
    leased: bool
    limit: tuple[float, float]
    operands: NodeOperands = NO_OPERANDS


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """How a call ended. `generation` and `trouble` are the worker's; of a result, `offset` is where the node has it."""

    kind: Literal["value", "error", "stopped"]
    value: Any
    generation: int = 0
    trouble: str | None = None
    offset: int = 0


def whole_pages(nbytes: int) -> int:
    """Bytes of the pages that so many take."""
    return -(-nbytes // 4096) * 4096
