"""Maps memory of other processes: POSIX shared memory by key, CUDA allocations by IPC handle."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.errors import InvalidRegion, TilewiseError
from app.worker.serving import ipc
from app.worker.serving.ipc import IpcHandle

RESERVED: Final = "tilewise."  # keys that begin so are the service's own
_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where the C library keeps shared memory on Linux
_KEY: Final = re.compile(r"/?(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
_SECONDS: Final = 30.0  # that a device has to open or close memory


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """`byte_size` bytes at `offset` of the POSIX shared memory `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """The first `byte_size` bytes of an allocation on cuda:`device_id` that another process made."""

    name: str
    device_id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Bytes of the slab, as this process sees them, and where in the slab a child finds them."""

    view: memoryview
    offset: int


class RegionMemory(Protocol):
    """A registered region's bytes, as products use them. Methods block."""

    def read(self, offset: int, place: HostSpan) -> None:
        """Copy into the slab; raises InvalidRegion where the bytes are gone, DeviceError."""
        ...

    def write(self, offset: int, place: HostSpan) -> None:
        """Copy from the slab; raises InvalidRegion where there is no room any more, DeviceError."""
        ...

    def is_nameless(self) -> bool:
        """Whether nobody who has not opened the memory yet can find it any more."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """POSIX shared memory through its descriptor: a mapping that its owner shortens would end this process."""

    name: str
    fd: int
    offset: int

    @classmethod
    def opened(cls, region: SystemRegion) -> SystemMemory:
        """Open a region's memory; raises InvalidRegion."""
        key = region.key
        if not _KEY.fullmatch(key):
            raise InvalidRegion(f"{key!r} is no key: letters, digits, dots, dashes and underscores after one slash")
        if key.removeprefix("/").startswith(RESERVED):
            raise InvalidRegion(f"keys that begin with {RESERVED} are the service's own")
        try:
            path = _FOLDER / key.removeprefix("/")
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise InvalidRegion(f"the shared memory {key} cannot be opened: {error.strerror}") from error
        try:
            _check(fd, region)
        except InvalidRegion:
            os.close(fd)
            raise
        return cls(region.name, fd, region.offset)

    def read(self, offset: int, place: HostSpan) -> None:
        """As RegionMemory."""
        self._moved(os.preadv, offset, place.view)

    def write(self, offset: int, place: HostSpan) -> None:
        """As RegionMemory; what its owner has shortened is not made longer again."""
        if os.fstat(self.fd).st_size < self.offset + offset + len(place.view):
            raise self._shortened()
        self._moved(os.pwritev, offset, place.view)

    def is_nameless(self) -> bool:
        """As RegionMemory."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """As RegionMemory."""
        with suppress(OSError):
            os.close(self.fd)

    def _moved(self, move: Callable[[int, list[memoryview], int], int], offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                count = move(self.fd, [view[done:]], self.offset + offset + done)
            except OSError as error:
                raise InvalidRegion(f"the memory of region {self.name} failed: {error.strerror}") from error
            if not count:
                raise self._shortened()
            done += count

    def _shortened(self) -> InvalidRegion:
        return InvalidRegion(f"the memory of region {self.name} is shorter than when it was registered")


def _check(fd: int, region: SystemRegion) -> None:
    """Raise InvalidRegion where the memory is not the caller's own, or too small."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidRegion(f"the shared memory {region.key} is not owned by the user that runs the service")
    end = region.offset + region.byte_size
    if end > found.st_size:
        message = f"the shared memory {region.key} has {found.st_size} bytes, the region ends at {end}"
        raise InvalidRegion(message, limit=found.st_size, size=end)


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """Memory of a CUDA device, opened in the child that serves products there; a child that is replaced opens anew."""

    unit: Unit
    handle: IpcHandle

    def check(self) -> None:
        """Open it now; raises InvalidRegion."""
        self._call(ipc.check, self.handle)

    def read(self, offset: int, place: HostSpan) -> None:
        """As RegionMemory."""
        self._call(ipc.fetch, self.handle, offset, place.offset, len(place.view))

    def write(self, offset: int, place: HostSpan) -> None:
        """As RegionMemory."""
        self._call(ipc.deliver, self.handle, offset, place.offset, len(place.view))

    def is_nameless(self) -> bool:
        """As RegionMemory: a handle is good for as long as its allocation is, which only its owner knows."""
        return False

    def close(self) -> None:
        """As RegionMemory."""
        with suppress(TilewiseError):  # a child that is gone holds nothing
            self._call(ipc.close, self.handle)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        self.unit.products.call(function, *arguments, priority=Priority.PRODUCT, deadline=_SECONDS)
