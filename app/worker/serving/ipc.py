"""CUDA IPC: opens device memory of other processes by its handle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from app.devices.backend import Buffer, WorkerContext
from app.devices.process import WorkerLink
from app.devices.worker_entry import shared_memory

_COPYING = 1e8  # bytes a second that no copy is slower than: a deadline, not an estimate


@dataclass(frozen=True, slots=True)
class IpcHandle:
    """An allocation by the 64 bytes that CUDA names it by to other processes; `nbytes` of it are used."""

    raw: bytes
    nbytes: int


@dataclass
class OpenedHandles:
    """The allocations that this worker has opened."""

    buffers: dict[IpcHandle, Buffer] = field(default_factory=dict)


def check(held: WorkerContext, link: WorkerLink, handle: IpcHandle) -> None:
    """Open a handle and keep it open; raises InvalidRegion if it is invalid or its memory too small, or Unsupported."""
    with link.lease(_deadline(0)):
        _opened(held, handle)


def fetch(held: WorkerContext, link: WorkerLink, handle: IpcHandle, at: int, offset: int, nbytes: int) -> None:
    """Copy `nbytes` at `at` of an allocation to `offset` of the slab; raises InvalidRegion, LaunchFailed."""
    with _window(held, link, handle, at, nbytes) as window:
        held.backend.download(window, np.frombuffer(held.slab, np.uint8, nbytes, offset))


def deliver(held: WorkerContext, link: WorkerLink, handle: IpcHandle, at: int, offset: int, nbytes: int) -> None:
    """Copy `nbytes` at `offset` of the slab to `at` of an allocation; raises InvalidRegion, LaunchFailed."""
    with _window(held, link, handle, at, nbytes) as window:
        shared_memory(held).write(window, np.frombuffer(held.slab, np.uint8, nbytes, offset))


def close(held: WorkerContext, link: WorkerLink, handle: IpcHandle) -> None:
    """Close a handle, if it is open."""
    buffer = _open(held).pop(handle, None)
    if buffer is not None:
        with link.lease(_deadline(0)):
            shared_memory(held).close(buffer)


@contextmanager
def _window(held: WorkerContext, link: WorkerLink, handle: IpcHandle, at: int, nbytes: int) -> Iterator[Buffer]:
    with link.lease(_deadline(nbytes)):
        whole = _opened(held, handle)
        yield Buffer(whole.handle, nbytes, whole.offset + at)


def _opened(held: WorkerContext, handle: IpcHandle) -> Buffer:
    """The handle's memory: a child that replaced another has opened none yet."""
    known = _open(held)
    if handle not in known:
        known[handle] = shared_memory(held).open(handle.raw, handle.nbytes)
    return known[handle]


def _open(held: WorkerContext) -> dict[IpcHandle, Buffer]:
    return held.state(OpenedHandles).buffers


def _deadline(nbytes: int) -> float:
    return 5.0 + nbytes / _COPYING
