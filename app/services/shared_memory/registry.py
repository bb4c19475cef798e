"""Registered shared memory regions, by principal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Literal

from app.devices.fleet import Fleet, Unit
from app.errors import InvalidRegion, RegionExists, SharedMemoryOff, TilewiseError, UnknownDevice, UnknownRegion
from app.services.principal import Principal
from app.services.shared_memory.memory import CudaMemory, CudaRegion, HostSpan, RegionMemory, SystemMemory, SystemRegion
from app.worker.serving.ipc import IpcHandle

_MOST: Final = 512  # regions of one principal
_ABANDONED: Final = 600.0  # seconds unused, after which memory that nobody else can find is given back

Kind = Literal["system", "cuda"]


@dataclass
class _Lent:
    """A region with its bytes, closed once it is unregistered and nobody uses it."""

    kind: Kind
    region: SystemRegion | CudaRegion
    store: RegionMemory
    users: int = 1
    used: float = field(default_factory=monotonic)


class SharedMemoryRegistry:
    """The shared memory that principals have registered, each seeing its own. Methods block: call them in a thread.

    Memory whose key is gone is its caller's alone, and a caller that died does not unregister it: once it was not used
    for `abandoned` seconds, it is forgotten when somebody registers other memory.
    """

    def __init__(self, fleet: Fleet, *, allowed: bool, abandoned: float = _ABANDONED) -> None:
        self.allowed = allowed
        self._abandoned = abandoned
        self._fleet = fleet
        self._lock = threading.Lock()
        self._lent: dict[tuple[str, str], _Lent] = {}

    @property
    def has_cuda(self) -> bool:
        """Whether memory of a CUDA device can be registered."""
        return self.allowed and any(unit.device.platform == "cuda" for unit in self._fleet.units)

    def register_system(self, principal: Principal, region: SystemRegion) -> None:
        """Take a region on; raises SharedMemoryOff, InvalidRegion, RegionExists."""
        self._register(principal, "system", region, lambda: SystemMemory.opened(region))

    def register_cuda(self, principal: Principal, region: CudaRegion, raw_handle: bytes) -> None:
        """Take a region on; raises SharedMemoryOff, UnknownDevice, InvalidRegion, RegionExists, DeviceError."""

        def opened() -> RegionMemory:
            store = CudaMemory(self._unit(region.device_id), IpcHandle(raw_handle, region.byte_size))
            store.check()
            return store

        self._register(principal, "cuda", region, opened)

    def listed(self, principal: Principal, kind: Kind, name: str | None) -> list[SystemRegion | CudaRegion]:
        """A principal's regions of one kind, or the one of a name; raises UnknownRegion."""
        with self._lock:
            found = [self._lent[key].region for key in sorted(self._named(principal, kind, name))]
        if name is not None and not found:
            raise UnknownRegion(f"there is no {kind} shared memory region {name}")
        return found

    def unregister(self, principal: Principal, kind: Kind, name: str | None) -> None:
        """Forget one region or all of a kind; what a product still uses is closed after it. None is no error."""
        with self._lock:
            gone = [self._lent.pop(key) for key in self._named(principal, kind, name)]
        for lent in gone:
            self._left(lent)

    @contextmanager
    def window(self, principal: Principal, name: str, offset: int, nbytes: int) -> Iterator[RegionWindow]:
        """Use a part of a region, which stays open meanwhile; raises UnknownRegion, InvalidRegion."""
        with self._lock:
            lent = self._lent.get((principal.name, name))
            if lent is None:
                raise UnknownRegion(f"there is no shared memory region {name}")
            lent.users += 1
        try:
            size = lent.region.byte_size
            if offset < 0 or nbytes < 0 or offset + nbytes > size:
                message = f"{nbytes} bytes at {offset} are not within the {size} bytes of region {name}"
                raise InvalidRegion(message, limit=size, size=offset + nbytes)
            yield RegionWindow(lent.store, offset, nbytes)
        finally:
            self._left(lent)

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            gone = list(self._lent.values())
            self._lent.clear()
        for lent in gone:
            self._left(lent)

    def _register(
        self, principal: Principal, kind: Kind, region: SystemRegion | CudaRegion, opened: Callable[[], RegionMemory]
    ) -> None:
        if not self.allowed:
            raise SharedMemoryOff("shared memory is off: the service's owner allows it by TILEWISE_SHARED_MEMORY=on")
        self._forget_abandoned()
        key = (principal.name, region.name)
        self._check_free(key)
        store = opened()
        try:
            with self._lock:
                self._check_free(key)
                self._lent[key] = _Lent(kind, region, store)
        except TilewiseError:
            store.close()
            raise

    def _forget_abandoned(self) -> None:
        before = monotonic() - self._abandoned
        with self._lock:
            unused = [key for key, lent in self._lent.items() if lent.users == 1 and lent.used <= before]
            gone = [self._lent.pop(key) for key in unused if self._lent[key].store.is_nameless()]
        for lent in gone:
            self._left(lent)

    def _check_free(self, key: tuple[str, str]) -> None:
        if key in self._lent:
            raise RegionExists(f"the shared memory region {key[1]} is registered already")
        count = sum(owner == key[0] for owner, _ in self._lent)
        if count >= _MOST:
            raise InvalidRegion(f"{count} regions are registered already: unregister some", limit=_MOST, size=count + 1)

    def _named(self, principal: Principal, kind: Kind, name: str | None) -> list[tuple[str, str]]:
        return [
            key
            for key, lent in self._lent.items()
            if key[0] == principal.name and lent.kind == kind and name in {None, key[1]}
        ]

    def _left(self, lent: _Lent) -> None:
        with self._lock:
            lent.users -= 1
            lent.used = monotonic()
            is_last = lent.users == 0
        if is_last:
            lent.store.close()

    def _unit(self, number: int) -> Unit:
        """The CUDA device of a number; raises UnknownDevice."""
        unit = next((unit for unit in self._fleet.units if unit.device.id == f"cuda:{number}"), None)
        if unit is None:
            raise UnknownDevice(f"there is no device cuda:{number} here, so its memory cannot be opened")
        return unit


@dataclass(frozen=True, slots=True)
class RegionWindow:
    """A part of a region. Methods block."""

    _store: RegionMemory
    _offset: int
    nbytes: int

    def read(self, place: HostSpan) -> None:
        """Copy the window to a place that is as long."""
        self._store.read(self._offset, place)

    def write(self, place: HostSpan) -> None:
        """Copy a place that is not longer into the window."""
        self._store.write(self._offset, place)
