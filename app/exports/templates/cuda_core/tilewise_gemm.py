"""C = op(A) x op(B) by cuda.core, NVIDIA's own Python: the measured cubin, launched as manifest.json says.

Matrices are row-major and contiguous, in the GPU's memory: their addresses are integers, as every library gives them
(tensor.data_ptr(), array.data.ptr, __cuda_array_interface__). A product outside the class of the export raises
OutsideClass: nothing here computes it another way.
"""

import ctypes
import json
from functools import lru_cache
from itertools import cycle, islice
from math import ceil
from operator import itemgetter
from pathlib import Path

import numpy as np
from tilewise_recipe import OutsideClass, QueuedMap, product

try:
    from cuda.core import Device, LaunchConfig, ObjectCode, launch
except ImportError:  # before its version 1
    from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
DTYPE = np.dtype(np.uint16 if PROBLEM["dtype"] == "bfloat16" else PROBLEM["dtype"])
ELEMENTS = {"float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}  # CUtensorMapDataType
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
L2_128B = 2
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
BUSY_BYTES = 2**27
SAMPLES, GRAPHS = 50, 12
KEPT = 1024  # sets of matrices whose tensor maps stay encoded
PLACES = ("a", "b", "c", "workspace")


class Declined(ArithmeticError):
    """Emulated arithmetic would not keep its bound on these operands: C is undefined."""


def sizes_of(a_shape, b_shape):
    """m, n, k and batch of stored operands; raises OutsideClass where they do not fit each other."""
    batch = a_shape[0] if len(a_shape) == 3 else 1
    m, k = reversed(a_shape[-2:]) if PROBLEM["trans_a"] else a_shape[-2:]
    depth, n = reversed(b_shape[-2:]) if PROBLEM["trans_b"] else b_shape[-2:]
    if depth != k or batch != (b_shape[0] if len(b_shape) == 3 else 1):
        raise OutsideClass(f"A is {a_shape} and B is {b_shape}: they cannot be multiplied")
    return m, n, k, batch


@lru_cache(maxsize=None)
def library():
    """The driver's own library, where cuda.core has no name for what is asked."""
    return ctypes.CDLL("libcuda.so.1")


def encoded(tensor, address):
    """A tensor map: 128 bytes at a multiple of 64, within the memory that this gives."""
    room = (ctypes.c_uint8 * 192)()
    at = -ctypes.addressof(room) % 64
    rank = len(tensor.sizes)
    status = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(room) + at),
        ctypes.c_int(ELEMENTS[tensor.element]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address + tensor.offset),
        (ctypes.c_uint64 * rank)(*tensor.sizes),
        (ctypes.c_uint64 * max(rank - 1, 1))(*tensor.strides),
        (ctypes.c_uint32 * rank)(*tensor.box),
        (ctypes.c_uint32 * rank)(*(1,) * rank),
        *map(ctypes.c_int, (0, SWIZZLES[tensor.swizzle], L2_128B, 0)),
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled gives {status} for {tensor}")
    return (ctypes.c_uint8 * 128).from_buffer(room, at)


class Gemm:
    """The kernel on a GPU, by its number."""

    def __init__(self, device=0):
        self.device = Device(device)
        self.device.set_current()
        self._workspace, self._kernels, self._plans = None, {}, {}
        self._default = self.device.default_stream
        for each in MANIFEST["launches"]:
            binary = ObjectCode.from_cubin((HERE / MANIFEST["binaries"][each["entry"]]["cubin"]).read_bytes())
            kernel = binary.get_kernel(each["entry"])
            if each["shared_bytes"] > 48 * 1024:
                allow_shared(kernel, each["shared_bytes"])
            self._kernels[each["entry"]] = kernel

    def multiply(self, a, b, c, sizes, stream=None):
        """Queue a product of matrices at three addresses on a stream; sizes are m, n, k and batch."""
        if (a | b | c) % 16:
            raise OutsideClass("a matrix must begin at a multiple of 16 bytes")
        needed, launches = self._plans.get(sizes) or self._planned(sizes)
        stream = stream or self._default
        workspace = self._grown(needed, stream) if needed else 0
        for each in launches:
            each(stream, a, b, c, workspace)

    def multiply_host(self, a, b):
        """Multiply NumPy's arrays, and wait; raises Declined."""
        sizes, stream = sizes_of(a.shape, b.shape), self.device.default_stream
        held = self._operands(a, b, sizes, stream)
        self.multiply(*map(address_of, held), sizes)
        out = np.empty((*a.shape[:-2], sizes[0], sizes[1]), DTYPE)
        driven("cuCtxSynchronize")
        driven("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), pointer(held[2]), ctypes.c_size_t(out.nbytes))
        self.raise_if_declined()
        return out

    def raise_if_declined(self):
        """Wait, and raise Declined if the last product was: only emulated arithmetic ever is."""
        at, verdict = MANIFEST["verdict_at"], ctypes.c_uint32()
        driven("cuCtxSynchronize")
        if at is not None:
            place = ctypes.c_uint64(address_of(self._workspace) + at)
            driven("cuMemcpyDtoH_v2", ctypes.byref(verdict), place, ctypes.c_size_t(4))
        if verdict.value:
            raise Declined("the operands are not such that emulated arithmetic keeps its bound")

    def seconds(self, a, b):
        """Seconds of launches with cold caches: each by events, or the mean of a graph as the service took it."""
        sizes, stream = sizes_of(a.shape, b.shape), self.device.create_stream()
        sets = [self._operands(a, b, sizes, stream) for _ in range(MANIFEST["measured"]["sets"])]
        places = [tuple(map(address_of, each)) for each in sets]
        busy = self.device.allocate(BUSY_BYTES, stream=stream)
        queue = ctypes.c_void_p(int(stream.handle))
        self.multiply(*places[0], sizes, stream)
        once = took(queue, busy, lambda: self.multiply(*places[-1], sizes, stream))
        if MANIFEST["measured"]["policy"] != "graph":
            each = islice(cycle(places), SAMPLES)
            return [took(queue, busy, lambda one=one: self.multiply(*one, sizes, stream)) for one in each]
        count = ceil(2e-3 / once)
        graph = self._captured(queue, places, count, sizes, stream)
        took(queue, busy, lambda: driven("cuGraphLaunch", graph, queue))
        return [took(queue, busy, lambda: driven("cuGraphLaunch", graph, queue)) / count for _ in range(GRAPHS)]

    def _captured(self, queue, places, count, sizes, stream):
        """A graph of so many products."""
        captured, graph = ctypes.c_void_p(), ctypes.c_void_p()
        driven("cuStreamBeginCapture_v2", queue, ctypes.c_int(RELAXED))
        for one in islice(cycle(places), count):
            self.multiply(*one, sizes, stream)
        driven("cuStreamEndCapture", queue, ctypes.byref(captured))
        driven("cuGraphInstantiateWithFlags", ctypes.byref(graph), captured, ctypes.c_ulonglong(0))
        return graph

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

    def _planned(self, sizes):
        """What is launched for sizes, kept: only the addresses differ from call to call."""
        found = product(MANIFEST, *sizes)
        launches = []
        for each in found.launches:
            has_maps = any(isinstance(one, QueuedMap) for one in each.arguments)
            launches.append((LaunchWithMaps if has_maps else ready)(self._kernels[each.entry], each))
        self._plans[sizes] = found.workspace_bytes, launches
        return self._plans[sizes]

    def _grown(self, needed, stream):
        """The address of the workspace, as large as is needed: the first bytes of a fresh one are zero."""
        if self._workspace is None or self._workspace.size < needed:
            self._workspace = self.device.allocate(needed, stream=stream)
            library().cuMemsetD8Async(
                ctypes.c_uint64(int(self._workspace.handle)),
                ctypes.c_ubyte(0),
                ctypes.c_size_t(MANIFEST["zeroed_bytes"]),
                ctypes.c_void_p(int(stream.handle)),
            )
        return int(self._workspace.handle)


def took(queue, busy, launch):
    """Seconds between two events around what is launched, while the GPU is kept busy before."""
    start, end, milliseconds = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    for event in (start, end):
        driven("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
    driven("cuMemsetD8Async", pointer(busy), ctypes.c_ubyte(0), ctypes.c_size_t(BUSY_BYTES), queue)
    driven("cuEventRecord", start, queue)
    launch()
    driven("cuEventRecord", end, queue)
    driven("cuEventSynchronize", end)
    driven("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    for event in (start, end):
        driven("cuEventDestroy_v2", event)
    return 1e-3 * milliseconds.value


def driven(name, *arguments):
    """Call the driver."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} gives {status}")


def address_of(buffer):
    """Where a buffer begins."""
    return int(buffer.handle)


def pointer(buffer):
    """The same as the driver takes it."""
    return ctypes.c_uint64(address_of(buffer))


def ready(kernel, queued):
    """A launch of which all but the addresses is ready: a function of the stream, A, B, C and the workspace."""
    sizes = tuple(np.int64(one) for one in queued.arguments if isinstance(one, int))
    config = LaunchConfig(grid=queued.grid, block=(*queued.block, 1), shmem_size=queued.shared_bytes)
    behind = iter(range(len(PLACES), len(PLACES) + len(sizes)))
    ordered = itemgetter(*(PLACES.index(one) if isinstance(one, str) else next(behind) for one in queued.arguments))

    def queue(stream, a, b, c, workspace):
        launch(stream, config, kernel, *ordered((a, b, c, workspace, *sizes)))

    def queue_plainly(stream, a, b, c, _):  # the same in half the time, which every small product has
        launch(stream, config, kernel, a, b, c, *sizes)

    plain = queued.arguments[:3] == PLACES[:3] and "workspace" not in queued.arguments
    return queue_plainly if plain else queue


class LaunchWithMaps:
    """A launch that takes tensor maps: cuda.core passes no structure by value, the driver does."""

    def __init__(self, kernel, queued):
        self._arguments, self._ready, self._queue = queued.arguments, {}, library().cuLaunchKernel
        shape = (queued.grid, 1, 1, *queued.block, 1, queued.shared_bytes)
        self._leading = function_of(kernel), *map(ctypes.c_uint, shape)

    def __call__(self, stream, *places):
        parameters, _ = self._ready.get(places) or self._made_ready(places)
        status = self._queue(*self._leading, ctypes.c_void_p(int(stream.handle)), parameters, None)
        if status:
            raise RuntimeError(f"cuLaunchKernel gives {status}")

    def _made_ready(self, places):
        """The addresses of what the driver copies at a launch, and what lies there; a program's matrices are few."""
        at = dict(zip(PLACES, places))
        values = [given_as(one, at) for one in self._arguments]
        if len(self._ready) == KEPT:
            self._ready.pop(next(iter(self._ready)))
        self._ready[places] = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)), values
        return self._ready[places]


def given_as(argument, places):
    """An argument in the host's memory, to be passed by its address."""
    if isinstance(argument, QueuedMap):
        return encoded(argument, places[argument.operand])
    return ctypes.c_int64(places[argument] if isinstance(argument, str) else argument)


@lru_cache(maxsize=None)
def function_of(kernel):
    """The driver's handle of a kernel's function in this context."""
    function = ctypes.c_void_p()
    handle = kernel.handle if hasattr(kernel, "handle") else kernel._handle
    status = library().cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(int(handle)))
    if status:
        raise RuntimeError(f"cuKernelGetFunction gives {status}")
    return function


def allow_shared(kernel, nbytes):
    """Let a launch have more than 48 KiB of shared memory."""
    if library().cuFuncSetAttribute(function_of(kernel), MAX_DYNAMIC_SHARED, ctypes.c_int(nbytes)):
        raise RuntimeError(f"the GPU has less than {nbytes} bytes of shared memory for a block")
