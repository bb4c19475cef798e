"""What tests run in a serving child: a device that has no memory while it keeps more than some copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.devices.backend import Backend, Buffer, WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.worker.serving import product
from app.worker.serving.chunked_transfer import transfers_of
from app.worker.serving.device_memory import DeviceBufferCache
from app.worker.serving.product import MultiplyRequest, MultiplyResult


class Tight:
    """A backend, but for its memory."""

    def __init__(self, backend: Backend, kept: DeviceBufferCache, most: int) -> None:
        self._backend, self._kept, self._most = backend, kept, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def allocate(self, nbytes: int) -> Buffer:
        if len(self._kept.keys) > self._most:
            raise LaunchFailed(f"out of memory: {nbytes} bytes are asked for", fatal=False)
        return self._backend.allocate(nbytes)


def multiply(held: WorkerContext, link: WorkerLink, order: MultiplyRequest, most: int) -> MultiplyResult:
    backend: Any = Tight(held.backend, product.buffer_cache_of(held), most)
    return product.multiply(replace(held, backend=backend), link, order)


def passing(held: WorkerContext, link: WorkerLink) -> tuple[int, ...]:
    """The keys of what is on its way to the device or from it."""
    del link
    return transfers_of(held).keys
