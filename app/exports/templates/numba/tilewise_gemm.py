"""C = op(A) x op(B) in a program of Numba: the measured cubin, launched as manifest.json says in Numba's own context.

Matrices are Numba's device arrays (bfloat16 as its bits, uint16), row-major, [rows, columns] or [batch, rows, columns],
and contiguous; streams are Numba's. Numba calls no kernel that it has not compiled, so the driver launches it. A
product outside the class of the export raises OutsideClass. Where the winner is the tiled kernel, tilewise_tiled.py has
it in Python, for Numba's compiler and its simulator.
"""

import ctypes

import numpy as np
from numba import cuda
from tilewise_launch import (
    BUSY_BYTES,
    DTYPE,
    MANIFEST,
    REPEATED,
    Declined,
    Launches,
    OutsideClass,
    cubins,
    driven,
    loaded,
    seconds_of,
    sizes_of,
)

__all__ = ["DTYPE", "MANIFEST", "REPEATED", "Declined", "Gemm", "OutsideClass", "sizes_of"]


class Gemm(Launches):
    """The kernel on Numba's current device."""

    def __init__(self):
        cuda.current_context()
        self._room = None
        super().__init__({entry: loaded(entry, cubin) for entry, cubin in cubins().items()})

    def multiply(self, a, b, c, stream=0):
        """Queue a product of device arrays on a stream of Numba."""
        for name, array in (("A", a), ("B", b), ("C", c)):
            if array.dtype != DTYPE or not array.is_c_contiguous():
                raise OutsideClass(f"{name} must be contiguous {DTYPE}")
        sizes = sizes_of(a.shape, b.shape)
        if c.shape != (*a.shape[:-2], *sizes[:2]):
            raise OutsideClass(f"C must be {(*a.shape[:-2], *sizes[:2])}, and is {c.shape}")
        super().multiply(*map(address_of, (a, b, c)), sizes, stream)

    def multiply_host(self, a, b, times=1):
        """Multiply NumPy's arrays, so many times, and wait; raises Declined."""
        held = self._operands(a, b)
        for _ in range(times):
            self.multiply(*held)
        self.raise_if_declined()
        return held[2].copy_to_host()

    def seconds(self, a, b):
        """Seconds of launches with cold caches: each by events, or the mean of a graph as the service took it."""
        stream, busy = cuda.stream(), cuda.device_array(BUSY_BYTES, np.uint8)
        sets = [self._operands(a, b) for _ in range(MANIFEST["measured"]["sets"])]
        cuda.synchronize()
        self._takes_graphs = False  # what the service times are launches
        return seconds_of(lambda one: self.multiply(*one, stream), sets, address_of(busy), self._handle_of(stream))

    @staticmethod
    def _operands(a, b):
        """A, B and room for C in the GPU's memory."""
        m, n, _, _ = sizes_of(a.shape, b.shape)
        stored = [np.ascontiguousarray(each, DTYPE) for each in (a, b)]
        return [*map(cuda.to_device, stored), cuda.device_array((*a.shape[:-2], m, n), DTYPE)]

    def _handle_of(self, stream):
        handle = getattr(stream, "handle", stream)
        return int(getattr(handle, "value", handle) or 0)

    def _grown(self, nbytes, handle):
        if self._room is None or self._room.size < nbytes:
            self._room = cuda.device_array(nbytes, np.uint8)
            zeroed, place = ctypes.c_size_t(MANIFEST["zeroed_bytes"]), ctypes.c_uint64(address_of(self._room))
            driven("cuMemsetD8Async", place, ctypes.c_ubyte(0), zeroed, ctypes.c_void_p(handle))
        return address_of(self._room)


def address_of(array):
    """Where a device array begins."""
    return array.__cuda_array_interface__["data"][0]
