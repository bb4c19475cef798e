"""C = op(A) x op(B) by cuda.core, NVIDIA's own Python: the measured cubin, launched as manifest.json says.

Matrices are row-major and contiguous, in the GPU's memory: their addresses are integers, as every library gives them
(tensor.data_ptr(), array.data.ptr, __cuda_array_interface__). A product outside the class of the export raises
OutsideClass: nothing here computes it another way. Devices, binaries, streams and memory are cuda.core's; a launch is
the driver's, for cuda.core passes no structure by value and makes each argument anew.
"""

import ctypes

import numpy as np
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
    seconds_of,
    sizes_of,
)

try:
    from cuda.core import Device, ObjectCode
except ImportError:  # before its version 1
    from cuda.core.experimental import Device, ObjectCode

__all__ = ["DTYPE", "MANIFEST", "REPEATED", "Declined", "Gemm", "OutsideClass", "sizes_of"]


class Gemm(Launches):
    """The kernel on a GPU, by its number."""

    def __init__(self, device=0):
        self.device = Device(device)
        self.device.set_current()
        self._room, self._default = None, int(self.device.default_stream.handle)
        self._kernels = {entry: ObjectCode.from_cubin(cubin).get_kernel(entry) for entry, cubin in cubins().items()}
        super().__init__({entry: function_of(kernel) for entry, kernel in self._kernels.items()})

    def multiply_host(self, a, b, times=1):
        """Multiply NumPy's arrays, so many times, and wait; raises Declined."""
        sizes, stream = sizes_of(a.shape, b.shape), self.device.default_stream
        held = self._operands(a, b, sizes, stream)
        for _ in range(times):
            self.multiply(*map(address_of, held), sizes)
        out = np.empty((*a.shape[:-2], sizes[0], sizes[1]), DTYPE)
        driven("cuCtxSynchronize")
        driven("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), pointer(held[2]), ctypes.c_size_t(out.nbytes))
        self.raise_if_declined()
        return out

    def seconds(self, a, b):
        """Seconds of launches with cold caches: each by events, or the mean of a graph as the service took it."""
        sizes, stream = sizes_of(a.shape, b.shape), self.device.create_stream()
        sets = [self._operands(a, b, sizes, stream) for _ in range(MANIFEST["measured"]["sets"])]
        busy = self.device.allocate(BUSY_BYTES, stream=stream)

        def multiply(one):
            self.multiply(*map(address_of, one), sizes, stream)

        self._takes_graphs = False  # what the service times are launches
        return seconds_of(multiply, sets, address_of(busy), int(stream.handle))

    def _operands(self, a, b, sizes, stream):
        """A, B and room for C in the GPU's memory."""
        m, n, _, batch = sizes
        stored = [np.ascontiguousarray(each, DTYPE) for each in (a, b)]
        wanted = (*(each.nbytes for each in stored), batch * m * n * DTYPE.itemsize)
        held = [self.device.allocate(nbytes, stream=stream) for nbytes in wanted]
        stream.sync()
        for buffer, each in zip(held, stored):
            driven("cuMemcpyHtoD_v2", pointer(buffer), ctypes.c_void_p(each.ctypes.data), ctypes.c_size_t(each.nbytes))
        return held

    def _handle_of(self, stream):
        return int(stream.handle) if stream else self._default

    def _grown(self, nbytes, handle):
        if self._room is None or self._room.size < nbytes:
            self._room = self.device.allocate(nbytes, stream=self.device.default_stream)
            self.device.default_stream.sync()
            zeroed = ctypes.c_size_t(MANIFEST["zeroed_bytes"])
            driven("cuMemsetD8Async", pointer(self._room), ctypes.c_ubyte(0), zeroed, ctypes.c_void_p(handle))
        return address_of(self._room)


def address_of(buffer):
    """Where a buffer begins."""
    return int(buffer.handle)


def pointer(buffer):
    """The same as the driver takes it."""
    return ctypes.c_uint64(address_of(buffer))


def function_of(kernel):
    """The driver's handle of a kernel's function in this context."""
    function = ctypes.c_void_p()
    handle = kernel.handle if hasattr(kernel, "handle") else kernel._handle
    driven("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(int(handle)))
    return function
