"""Launches of the measured cubin by the CUDA driver, in the current context, as manifest.json says.

What a launch takes is made ready once for given sizes, matrices and stream, and where these come again and again the
launches become a graph, which takes the driver less than half of their time. Addresses are integers. A product outside
the class of the export raises OutsideClass.
"""

import ctypes
import json
from functools import lru_cache
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from threading import Lock, get_ident
from weakref import WeakSet

import numpy as np
from tilewise_recipe import OutsideClass, QueuedLaunch, QueuedMap, product

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
DTYPE = np.dtype(np.uint16 if PROBLEM["dtype"] == "bfloat16" else PROBLEM["dtype"])
ELEMENTS = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11}  # CUtensorMapDataType
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
L2_128B = 2
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
LEGACY = 1  # CU_STREAM_LEGACY, the default stream: it cannot be captured
KEPT = 1024  # sets of sizes, matrices and stream whose launches stay ready
REPEATED = 16  # products of one of them, after which it has a graph: to make one takes 50 us
MOST_GRAPHS = 64
BUSY_BYTES = 2**28  # more than twice any GPU's cache
BUSY_TIMES = 6  # reads of them: long enough for a host that is slow to queue the first launch
GRID, BLOCK = 528, 512
SAMPLES, GRAPHS = 50, 12
GRAPH_SECONDS = 2e-3


class Declined(ArithmeticError):
    """Emulated arithmetic would not keep its bound on these operands: C is undefined."""


class LaunchConfig(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class KernelNode(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        *((name, ctypes.c_void_p) for name in ("parameters", "extra", "kernel", "context")),
    )


class ReadyProduct:
    """A product's launches, and the graph of them once it has come as often as pays for that."""

    __slots__ = ("graph", "handle", "launches", "times")

    def __init__(self, launches, handle):
        self.launches, self.handle, self.times, self.graph = launches, handle, 0, None


class Graph:
    """A CUgraphExec of a product's launches, which one thread alone launches: the one that made it."""

    __slots__ = ("__weakref__", "capture_status", "capture_status_at", "executable", "may_be_captured", "thread")

    def __init__(self, executable, stream):
        self.executable, self.thread, self.capture_status = executable, get_ident(), ctypes.c_int()
        self.capture_status_at = ctypes.byref(self.capture_status)
        self.may_be_captured = (stream.value or LEGACY) != LEGACY

    def __del__(self):
        library().cuGraphExecDestroy(self.executable)  # once the GPU is done with it


class Launches:
    """The kernels of the export, and the launches of them that are ready; `functions` has each entry's CUfunction.

    Whose memory and streams they have, a subclass says by two methods: `_grown(nbytes, handle)` gives the address of at
    least so many bytes, of which the first `zeroed_bytes` of the manifest were set to zero on that stream when they
    were allocated, and `_handle_of(stream)` gives a stream's handle, the default stream's for None.
    """

    def __init__(self, functions):
        self._functions, self._ready, self._workspace = functions, {}, 0
        self._launch, self._launch_graph = library().cuLaunchKernelEx, library().cuGraphLaunch
        self._is_capturing = library().cuStreamIsCapturing
        self._graphs, self._making, self._takes_graphs = WeakSet(), Lock(), True
        for each in MANIFEST["launches"]:
            if each["shared_bytes"] > 48 * 1024:
                nbytes = ctypes.c_int(each["shared_bytes"])
                driven("cuFuncSetAttribute", functions[each["entry"]], MAX_DYNAMIC_SHARED, nbytes)

    def multiply(self, a, b, c, sizes, stream=None):
        """Queue a product of matrices at three addresses on a stream; sizes are m, n, k and batch."""
        ready = self._ready.get((a, b, c, sizes, stream)) or self._made_ready(a, b, c, sizes, stream)
        graph = ready.graph
        if graph is None or graph.thread != get_ident():
            return self._launch_each(ready)
        if graph.may_be_captured and self._captures(ready.handle, graph):
            return self._launch_each(ready)
        status = self._launch_graph(graph.executable, ready.handle)
        if status:
            raise RuntimeError(f"cuGraphLaunch gives {status}")

    def _captures(self, handle, graph):
        """Whether a stream is captured, and takes no graph."""
        return self._is_capturing(handle, graph.capture_status_at) or graph.capture_status.value

    def _launch_each(self, ready):
        for arguments, _ in ready.launches:
            status = self._launch(*arguments)
            if status:
                raise RuntimeError(f"cuLaunchKernelEx gives {status}")
        ready.times += 1
        if ready.times >= REPEATED and self._takes_graphs:
            self._make_graph(ready)

    def _make_graph(self, ready):
        """Make the graph of a product that has none, where the driver does: it is asked once, or after many products."""
        with self._making:
            if ready.graph is None and len(self._graphs) < MOST_GRAPHS:
                ready.times = 0
                ready.graph = graph_of(ready)
                self._graphs.update([ready.graph] if ready.graph else ())

    def _made_ready(self, a, b, c, sizes, stream):
        """The launches of a product, kept; a workspace that has moved makes those before it void."""
        if (a | b | c) % 16:
            raise OutsideClass("a matrix must begin at a multiple of 16 bytes")
        found, handle = product(MANIFEST, *sizes), self._handle_of(stream)
        workspace = self._grown(found.workspace_bytes, handle) if found.workspace_bytes else self._workspace
        if workspace != self._workspace:
            self._ready.clear()
            self._workspace = workspace
        if len(self._ready) == KEPT:
            self._ready.pop(next(iter(self._ready)))
        places = {"a": a, "b": b, "c": c, "workspace": workspace}
        launches = [made_ready(self._functions[each.entry], each, places, handle) for each in found.launches]
        self._ready[a, b, c, sizes, stream] = ready = ReadyProduct(launches, ctypes.c_void_p(handle))
        return ready

    def raise_if_declined(self):
        """Wait, and raise Declined if the last product was: only emulated arithmetic ever is."""
        at, verdict = MANIFEST["verdict_at"], ctypes.c_uint32()
        driven("cuCtxSynchronize")
        if at is not None:
            place = ctypes.c_uint64(self._workspace + at)
            driven("cuMemcpyDtoH_v2", ctypes.byref(verdict), place, ctypes.c_size_t(4))
        if verdict.value:
            raise Declined("the operands are not such that emulated arithmetic keeps its bound")


def made_ready(function, queued, places, stream):
    """The arguments of cuLaunchKernelEx for a launch, and what lies where they point: its config, and the values."""
    values = [given_as(one, places) for one in queued.arguments]
    parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    config = LaunchConfig((queued.grid, 1, 1), (*queued.block, 1), queued.shared_bytes, stream)
    return (ctypes.byref(config), function, parameters, None), (config, values)


def graph_of(ready):
    """The graph of a product's launches, one behind the other; None where the driver makes none.

    Its kernels have the default priority: a stream of another one has none. It is not what another thread captures.
    """
    graph, made, priority, mode = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(RELAXED)
    driver, before = library(), None
    if driver.cuStreamGetPriority(ready.handle, ctypes.byref(priority)) or priority.value:
        return None
    driven("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    status = driver.cuGraphCreate(ctypes.byref(graph), 0)
    for (_, function, parameters, _), (config, _) in ready.launches:
        node, given = ctypes.c_void_p(), KernelNode(function, config.grid, config.block, config.shared_bytes)
        given.parameters = ctypes.addressof(parameters)
        after = (None, ctypes.c_size_t(0)) if before is None else (ctypes.byref(before), ctypes.c_size_t(1))
        status = status or driver.cuGraphAddKernelNode_v2(ctypes.byref(node), graph, *after, ctypes.byref(given))
        before = node
    status = status or driver.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, ctypes.c_ulonglong(0))
    driven("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    if graph:
        driven("cuGraphDestroy", graph)
    return None if status else Graph(made, ready.handle)


def given_as(argument, places):
    """An argument in the host's memory, to be passed by its address."""
    if isinstance(argument, QueuedMap):
        return encoded(argument, places[argument.operand])
    return ctypes.c_int64(places[argument] if isinstance(argument, str) else argument)


def encoded(tensor, address):
    """A tensor map: 128 bytes at a multiple of 64, within the memory that this gives."""
    room = (ctypes.c_uint8 * 192)()
    at = -ctypes.addressof(room) % 64
    rank = len(tensor.sizes)
    driven(
        "cuTensorMapEncodeTiled",
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
    return (ctypes.c_uint8 * 128).from_buffer(room, at)


def loaded(entry, binary):
    """The driver's function of an entry, whose binary is loaded into the current context."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driven("cuModuleLoadData", ctypes.byref(module), binary)
    driven("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
    return function


def cubins():
    """Of each entry the binary that was measured."""
    entries = {each["entry"] for each in MANIFEST["launches"]}
    return {each: (HERE / MANIFEST["binaries"][each]["cubin"]).read_bytes() for each in entries}


def sizes_of(a_shape, b_shape):
    """m, n, k and batch of stored operands; raises OutsideClass where they do not fit each other."""
    batch = a_shape[0] if len(a_shape) == 3 else 1
    m, k = reversed(a_shape[-2:]) if PROBLEM["trans_a"] else a_shape[-2:]
    depth, n = reversed(b_shape[-2:]) if PROBLEM["trans_b"] else b_shape[-2:]
    if depth != k or batch != (b_shape[0] if len(b_shape) == 3 else 1):
        raise OutsideClass(f"A is {a_shape} and B is {b_shape}: they cannot be multiplied")
    return m, n, k, batch


def seconds_of(multiply, sets, busy, stream):
    """Seconds of products with cold caches: each by events, or the mean of a graph as the service took it.

    `multiply` queues a product of one of the sets on the stream, whose handle is given; `busy` is the address of
    BUSY_BYTES that are read before, so that the GPU is not idle when the launch comes.
    """
    queue, turns, sweep = ctypes.c_void_p(stream), cycle(sets), made_busy(busy, stream)

    def timed():
        return took(queue, sweep, lambda: multiply(next(turns)))

    once = [timed() for _ in range(2)][1]
    if MANIFEST["measured"]["policy"] != "graph":
        return [timed() for _ in range(SAMPLES)]
    count, captured, graph = ceil(GRAPH_SECONDS / once), ctypes.c_void_p(), ctypes.c_void_p()
    driven("cuStreamBeginCapture_v2", queue, ctypes.c_int(RELAXED))
    for one in islice(turns, count):
        multiply(one)
    driven("cuStreamEndCapture", queue, ctypes.byref(captured))
    driven("cuGraphInstantiateWithFlags", ctypes.byref(graph), captured, ctypes.c_ulonglong(0))
    taken = [took(queue, sweep, lambda: driven("cuGraphLaunch", graph, queue)) for _ in range(GRAPHS + 1)]
    return [each / count for each in taken[1:]]


def made_busy(busy, stream):
    """The arguments of a launch that reads BUSY_BYTES from an address on, and what they point to."""
    function = loaded("read_sweep", (HERE / "read_sweep.ptx").read_bytes() + b"\0")
    queued = QueuedLaunch("read_sweep", GRID, (BLOCK, 1), 0, ("busy", BUSY_BYTES // 16))
    return made_ready(function, queued, {"busy": busy}, stream)


def took(queue, sweep, launch):
    """Seconds between two events around what is launched, while the GPU is kept busy before."""
    start, end = ctypes.c_void_p(), ctypes.c_void_p()
    for event in (start, end):
        driven("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
    for _ in range(BUSY_TIMES):
        driven("cuLaunchKernelEx", *sweep[0])
    driven("cuEventRecord", start, queue)
    launch()
    driven("cuEventRecord", end, queue)
    return elapsed(start, end)


def elapsed(start, end):
    """Seconds between two events, which are destroyed."""
    milliseconds = ctypes.c_float()
    driven("cuEventSynchronize", end)
    driven("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    for event in (start, end):
        driven("cuEventDestroy_v2", event)
    return 1e-3 * milliseconds.value


@lru_cache(maxsize=None)
def library():
    """The driver's own library."""
    return ctypes.CDLL("libcuda.so.1")


def driven(name, *arguments):
    """Call the driver; raises RuntimeError with its status."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} gives {status}")
