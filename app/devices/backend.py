"""The Backend protocol, implemented in the worker of a device: upload, compile, run, time, download."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from app.dtypes import Array
from kernels.device import Device
from kernels.launch import COUNTERS, Build, Launch
from kernels.problem import Problem

T = TypeVar("T")
_PIECE: Final = 2**22  # bytes of rows that are gathered at once
_COUNTERS_BYTES: Final = 4 * COUNTERS
_LEAST: Final = 2**22  # bytes: so that few launches want more
_KEPT: Final = 2**26  # bytes: more is given back after its launch, for the other child


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes on a device: `handle` is the backend's own (it keeps the memory alive), the window starts at `offset`."""

    handle: Any
    nbytes: int
    offset: int = 0

    def window(self, offset: int, nbytes: int) -> Buffer:
        """A part of this buffer; offsets are multiples of 4096 bytes so that every device can address them."""
        return Buffer(self.handle, nbytes, self.offset + offset)


@dataclass(frozen=True, slots=True)
class Operands:
    """The three buffers of a launch: A, B and C."""

    a: Buffer
    b: Buffer
    c: Buffer


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled and loaded build. `registers` and `spills`, bytes of local memory, are per thread; None if unknown.

    `compile_seconds` are the compiler's, when it made the binary; None where that happens at the first launch.
    """

    handle: Any
    build: Build
    registers: int | None = None
    spills: int | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchResources:
    """What a launch takes of a multiprocessor by the driver's word; None where it does not tell.

    Registers and bytes of local memory are a thread's, of shared memory a block's, of constant memory the function's;
    `max_threads` is the most that a block of this function may have.
    """

    registers: int | None
    local_bytes: int | None
    shared_bytes: int | None
    blocks_per_sm: int | None
    constant_bytes: int | None = None
    max_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a device's sensors: clocks in MHz, power in watts, degrees Celsius; None for a missing sensor.

    `throttled` names the reasons for lower clocks.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vendor:
    """The vendor's library as this device has it: its name with version, or the reason why there is none."""

    name: str | None
    reason: str | None = None


@runtime_checkable
class AsyncExecution(Protocol):
    """A device that copies rows of bytes which lie apart in the host's memory, and does so while it computes.

    Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
    """

    def write_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Any:
        """Copy rows into a buffer, one after the other, after the copies to the device before; gives a mark.

        Unless it waits, that is done once the mark is finished. Raises LaunchFailed.
        """
        ...

    def read_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Any:
        """Copy a buffer's bytes into rows; as `write_rows`."""
        ...

    def start(self, program: Program, launch: Launch, operands: Operands, after: Sequence[Any]) -> Any:
        """Queue a launch, which begins once some marks are finished, and may run beside others; gives its mark.

        Raises LaunchFailed.
        """
        ...

    def finish(self, mark: Any) -> None:
        """Wait for a launch or a copy; raises LaunchFailed."""
        ...

    def settle(self) -> None:
        """Wait for all launches and copies; raises LaunchFailed."""
        ...


class SyncExecution:
    """The same for any other device: pieces of the rows are gathered first, and nothing goes on meanwhile."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def write_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> None:
        """Copy rows into a buffer."""
        del wait
        for start, piece in _pieces(rows):
            self._backend.write(buffer.window(start * rows.shape[1], piece.nbytes), np.ascontiguousarray(piece))

    def read_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> None:
        """Copy a buffer's bytes into rows."""
        del wait
        for start, piece in _pieces(rows):
            fresh = np.empty(piece.shape, np.uint8)
            self._backend.download(buffer.window(start * rows.shape[1], piece.nbytes), fresh)
            piece[:] = fresh

    def start(self, program: Program, launch: Launch, operands: Operands, after: Sequence[Any]) -> None:
        """Launch and wait."""
        del after
        self._backend.run(program, launch, operands)

    def finish(self, mark: Any) -> None:
        """Nothing is queued."""

    def settle(self) -> None:
        """Nothing goes on."""


def _pieces(rows: Array) -> Iterator[tuple[int, Array]]:
    """Few of the rows at a time, and the number of their first."""
    step = max(1, _PIECE // rows.shape[1])
    return ((start, rows[start : start + step]) for start in range(0, len(rows), step))


def nothing() -> None:
    """A callback that does nothing."""


class Backend(Protocol):
    """One device, held by the process that calls. Not thread-safe.

    Raises CompileFailed from compile, LaunchFailed from everything that touches memory or launches
    (out-of-memory and illegal accesses included).
    """

    device: Device
    vendor: Vendor

    def upload(self, array: Array) -> Buffer:
        """Copy a C-contiguous array into fresh device memory."""
        ...

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy a C-contiguous array into a buffer, or a window of one, of as many bytes, and wait."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """Fresh device memory, its content unspecified."""
        ...

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Set every byte of the buffer (0xFF makes NaN of every float)."""
        ...

    def download(self, buffer: Buffer, out: Array) -> None:
        """Copy the buffer's bytes into a C-contiguous array of the same number of bytes, and wait."""
        ...

    def compile(self, build: Build) -> Program:
        """Load a build's cached binary, or compile and cache it; raises CompileFailed with the compiler's words."""
        ...

    def warm(self, program: Program, launch: Launch, compiled: Callable[[], None] = nothing) -> None:
        """Launch on a problem of a few elements, as the first launch takes longer (PoCL compiles then).

        Calls `compiled` once nothing is left to compile. Writes up to a mebibyte outside the operands are harmless.
        """
        ...

    def run(self, program: Program, launch: Launch, operands: Operands) -> None:
        """Launch once and wait."""
        ...

    def declined(self, launch: Launch) -> int:
        """The verdict of the launch that `run` made last: 0 if its product is whole, else the bits that say why not.

        It is to be asked before anything else is run; of a launch with no `verdict_at` it is 0.
        """
        ...

    def time(self, program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        """The seconds of one launch for each set of operands, in order, on a device that is kept busy before.

        Policy "events" times each launch by a pair of events. Policy "graph", if the device has graphs, times all
        launches in one graph and gives their mean. Raises ValueError for any other policy.
        """
        ...

    def resources(self, program: Program, launch: Launch) -> LaunchResources:
        """What the driver says that a launch of a compiled program takes."""
        ...

    def vendor_run(self, problem: Problem, operands: Operands) -> None:
        """The vendor's product of the problem, into the same buffers."""
        ...

    def vendor_time(self, problem: Problem, sets: Sequence[Operands], policy: str) -> list[float]:
        """As `time`, for the vendor's library; raises LaunchFailed with the reason if a graph cannot hold it."""
        ...

    def reference(self, a: Array, b: Array) -> Array:
        """The float64 product of op(A) and op(B), batched, by a path that is none of our candidates'."""
        ...

    def conditions(self) -> Reading | None:
        """Read the sensors, in well under a millisecond; None if the device has none."""
        ...

    def free_bytes(self) -> int:
        """Device memory that an allocation could take now."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Workspace:
    """The workspace of a backend, allocated on first use; its counters are zero whenever no launch runs."""

    def __init__(self, allocate: Callable[[int], Buffer], fill: Callable[[Buffer, int], None]) -> None:
        self._allocate = allocate
        self._fill = fill
        self._held: Buffer | None = None

    def lend(self, nbytes: int) -> Buffer | None:
        """At least `nbytes`, None for 0; raises LaunchFailed if there is no memory."""
        if not nbytes:
            return None
        if self._held is None or self._held.nbytes < nbytes:
            self.forget()
            fresh = self._allocate(max(nbytes, _LEAST))
            self._fill(fresh.window(0, _COUNTERS_BYTES), 0)
            self._held = fresh
        return self._held

    def trim(self) -> None:
        """Free a workspace that is too large to keep."""
        if self._held is not None and self._held.nbytes > _KEPT:
            self.forget()

    def forget(self) -> None:
        """Give it all back."""
        self._held = None


@dataclass(frozen=True)
class WorkerContext:
    """The context of functions in a device worker: backend, slab, and one state object of each type."""

    backend: Backend
    slab: memoryview
    states: dict[Callable[[], object], object] = field(default_factory=dict)

    def state(self, kind: Callable[[], T]) -> T:
        """The worker's state of this type, kept between calls; it is made with no arguments when first asked for."""
        if kind not in self.states:
            self.states[kind] = kind()
        return cast("T", self.states[kind])
