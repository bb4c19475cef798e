"""CUDA IPC memory (CUDA Programming Guide, Interprocess Communication)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cupy.cuda import runtime

from app.devices.backend import Buffer
from app.dtypes import Array
from app.errors import InvalidRegion, LaunchFailed

HANDLE_BYTES: Final = 64  # CUDA_IPC_HANDLE_SIZE


class _Address:
    """A pointer as a Buffer's handle."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Sharing:
    """Opens allocations by their handles. A process may open each only once: users of one are counted."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[int, int]] = {}

    def open(self, raw: bytes, nbytes: int) -> Buffer:
        """The first `nbytes` of an allocation; raises InvalidRegion if there is none, or it is smaller."""
        if len(raw) != HANDLE_BYTES:
            raise InvalidRegion(f"a handle of device memory has {HANDLE_BYTES} bytes, this one {len(raw)}")
        address, users = self._open.get(raw, (0, 0))
        if not users:
            try:
                address = int(runtime.ipcOpenMemHandle(raw))
            except runtime.CUDARuntimeError as error:
                raise InvalidRegion(f"the handle names no memory that can be opened: {error}") from error
        self._open[raw] = (address, users + 1)
        buffer = Buffer(_Address(address), nbytes)
        size = _size(address)
        if nbytes > size:
            self.close(buffer)
            raise InvalidRegion(f"the memory has {size} bytes, the region {nbytes}", limit=size, size=nbytes)
        return buffer

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy a C-contiguous array of the buffer's size into it, and wait until its owner can read it.

        A copy from pageable memory returns once it is staged (CUDA Driver API, API synchronization behavior).
        """
        with _failing():
            address = int(buffer.handle.ptr) + buffer.offset
            runtime.memcpy(address, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)
            runtime.streamSynchronize(0)

    def close(self, buffer: Buffer) -> None:
        """Give an opened allocation back."""
        for raw, (address, users) in list(self._open.items()):
            if address == buffer.handle.ptr and users > 1:
                self._open[raw] = (address, users - 1)
            elif address == buffer.handle.ptr:
                del self._open[raw]
                with _failing():
                    runtime.ipcCloseMemHandle(address)


def _size(address: int) -> int:
    """Bytes of the allocation around an address (cuMemGetAddressRange of the driver; the runtime has none)."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    if status:
        raise InvalidRegion(f"the driver does not know how large the memory is: CUDA error {status}")
    return size.value - (address - base.value)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except runtime.CUDARuntimeError as error:
        raise LaunchFailed(str(error), fatal=True) from error
