"""C = op(A) x op(B) by CuPy: the measured cubin, launched as manifest.json says on CuPy's current stream.

Matrices are row-major, [rows, columns] or [batch, rows, columns], and contiguous. A product outside the class of the
export raises OutsideClass: nothing here computes it another way. bfloat16 is handed in and out as its bits, uint16.
"""

from functools import lru_cache
from itertools import cycle, islice
from math import ceil

import cupy
import numpy as np
from tilewise_launch import (
    BLOCK,
    BUSY_BYTES,
    BUSY_TIMES,
    DTYPE,
    GRAPH_SECONDS,
    GRAPHS,
    GRID,
    HERE,
    MANIFEST,
    SAMPLES,
    Declined,
    encoded,
    sizes_of,
)
from tilewise_recipe import OutsideClass, QueuedMap, product

__all__ = ["DTYPE", "MANIFEST", "Declined", "Gemm", "OutsideClass", "by_value", "sizes_of"]


@lru_cache(maxsize=4096)
def by_value(tensor, address):
    """A tensor map's 128 bytes, as an argument that is passed by value."""
    return np.frombuffer(bytes(encoded(tensor, address)), dtype="V128").copy()


class Gemm:
    """The kernel on CuPy's current device."""

    def __init__(self):
        self._workspace = None
        self._kernels = {}
        for launch in MANIFEST["launches"]:
            module = cupy.RawModule(path=str(HERE / MANIFEST["binaries"][launch["entry"]]["cubin"]))
            kernel = module.get_function(launch["entry"])
            if launch["shared_bytes"] > 48 * 1024:
                kernel.max_dynamic_shared_size_bytes = launch["shared_bytes"]
            self._kernels[launch["entry"]] = kernel

    def multiply(self, a, b, c=None):
        """Queue a product of CuPy's arrays on the current stream, and give C."""
        sizes = sizes_of(a.shape, b.shape)
        found = product(MANIFEST, *sizes)
        for name, array in (("A", a), ("B", b), *((("C", c),) if c is not None else ())):
            if array.dtype != DTYPE or not array.flags.c_contiguous or array.data.ptr % 16:
                raise OutsideClass(f"{name} must be contiguous {DTYPE} that begins at a multiple of 16 bytes")
        if c is None:
            c = cupy.empty((*a.shape[:-2], sizes[0], sizes[1]), DTYPE)
        workspace = self._grown(found)
        places = {"a": a.data.ptr, "b": b.data.ptr, "c": c.data.ptr, "workspace": workspace}
        for launch in found.launches:
            given = tuple(_argument(each, places) for each in launch.arguments)
            self._kernels[launch.entry]((launch.grid,), launch.block, given, shared_mem=launch.shared_bytes)
        return c

    def multiply_host(self, a, b):
        """Multiply NumPy's arrays, and wait; raises Declined."""
        left, right = (cupy.asarray(np.ascontiguousarray(each, DTYPE)) for each in (a, b))
        out = self.multiply(left, right).get()
        self.raise_if_declined()
        return out

    def raise_if_declined(self):
        """Wait, and raise Declined if the last product was: only emulated arithmetic ever is."""
        at = MANIFEST["verdict_at"]
        if at is not None and int(self._workspace[at : at + 4].view(cupy.uint32)[0]):
            raise Declined("the operands are not such that emulated arithmetic keeps its bound")

    def seconds(self, a, b):
        """Seconds of launches with cold caches: each by events, or the mean of a graph as the service took it."""
        left, right = (cupy.asarray(np.ascontiguousarray(each, DTYPE)) for each in (a, b))
        sets = [(left.copy(), right.copy(), self.multiply(left, right)) for _ in range(MANIFEST["measured"]["sets"])]
        busy = cupy.empty(BUSY_BYTES, cupy.uint8)
        self._sweep = cupy.RawModule(path=str(HERE / "read_sweep.ptx")).get_function("read_sweep")
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.deviceSynchronize()
        turns = cycle(sets)
        with stream:
            once = [self._took(stream, busy, lambda: self.multiply(*next(turns))) for _ in range(2)][1]
            if MANIFEST["measured"]["policy"] != "graph":
                return [self._took(stream, busy, lambda: self.multiply(*next(turns))) for _ in range(SAMPLES)]
            count = ceil(GRAPH_SECONDS / once)
            stream.begin_capture()
            for each in islice(turns, count):
                self.multiply(*each)
            graph = stream.end_capture()
            taken = [self._took(stream, busy, lambda: graph.launch(stream)) for _ in range(GRAPHS + 1)]
            return [each / count for each in taken[1:]]

    def _took(self, stream, busy, launch):
        """Seconds between two events around what is launched, while the GPU is kept busy before."""
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        for _ in range(BUSY_TIMES):
            self._sweep((GRID,), (BLOCK,), (np.uint64(busy.data.ptr), np.uint64(BUSY_BYTES // 16)))
        start.record(stream)
        launch()
        end.record(stream)
        end.synchronize()
        return 1e-3 * cupy.cuda.get_elapsed_time(start, end)

    def _grown(self, found):
        """The address of the workspace, as large as is needed: the first bytes of a fresh one are zero."""
        needed = found.workspace_bytes
        if needed and (self._workspace is None or self._workspace.nbytes < needed):
            self._workspace = cupy.empty(needed, cupy.uint8)
            self._workspace.data.memset_async(0, found.zeroed_bytes, cupy.cuda.get_current_stream())
        return self._workspace.data.ptr if needed else 0


def _argument(argument, places):
    if isinstance(argument, QueuedMap):
        return by_value(argument, places[argument.operand])
    return np.uint64(places[argument]) if isinstance(argument, str) else np.int64(argument)
