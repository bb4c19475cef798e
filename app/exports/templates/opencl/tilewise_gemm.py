"""C = op(A) x op(B) by pyopencl: the kernel of this export, launched as manifest.json says.

Matrices are row-major, [rows, columns] or [batch, rows, columns]. A product outside the class of the export raises
OutsideClass: nothing here computes it another way. bfloat16 is handed in and out as its bits, uint16.
"""

import json
from itertools import islice, cycle
from pathlib import Path

import numpy as np
import pyopencl as cl
from tilewise_recipe import OutsideClass, product

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
DTYPE = np.dtype(np.uint16 if PROBLEM["dtype"] == "bfloat16" else PROBLEM["dtype"])
SAMPLES = 30


def sizes_of(a_shape, b_shape):
    """m, n, k and batch of stored operands; raises OutsideClass where they do not fit each other."""
    batch = a_shape[0] if len(a_shape) == 3 else 1
    m, k = reversed(a_shape[-2:]) if PROBLEM["trans_a"] else a_shape[-2:]
    depth, n = reversed(b_shape[-2:]) if PROBLEM["trans_b"] else b_shape[-2:]
    if depth != k or batch != (b_shape[0] if len(b_shape) == 3 else 1):
        raise OutsideClass(f"A is {a_shape} and B is {b_shape}: they cannot be multiplied")
    return m, n, k, batch


class Gemm:
    """The kernel on one device: the first CPU or GPU of OpenCL, or that of a queue."""

    def __init__(self, queue=None):
        if queue is None:
            context = cl.create_some_context(interactive=False)
            queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self.queue, self.context = queue, queue.context
        self._workspace = None
        self._kernels = {}
        for entry, binary in MANIFEST["binaries"].items():
            program = cl.Program(self.context, (HERE / binary["source"]).read_text()).build(options=["-w"])
            self._kernels[entry] = cl.Kernel(program, entry)

    def multiply(self, a, b, c, sizes):
        """Queue a product of buffers; gives the events of its launches."""
        found = product(MANIFEST, *sizes)
        workspace = self._grown(found)
        places = {"a": a, "b": b, "c": c, "workspace": workspace}
        events = []
        for launch in found.launches:
            kernel, (x, y) = self._kernels[launch.entry], launch.block
            given = (places[each] if isinstance(each, str) else np.int64(each) for each in launch.arguments)
            kernel.set_args(*given)
            events.append(cl.enqueue_nd_range_kernel(self.queue, kernel, (launch.grid * x, y), (x, y)))
        return events

    def multiply_host(self, a, b):
        """Multiply NumPy's arrays, and wait."""
        sizes = sizes_of(a.shape, b.shape)
        product(MANIFEST, *sizes)
        *buffers, c = self._buffers(a, b, sizes)
        self.multiply(*buffers, c, sizes)
        out = np.empty((*a.shape[:-2], sizes[0], sizes[1]), DTYPE)
        cl.enqueue_copy(self.queue, out, c)
        return out

    def seconds(self, a, b):
        """Seconds of launches with cold caches, by the queue's profiling clock; none where the queue has none."""
        if not self.queue.properties & cl.command_queue_properties.PROFILING_ENABLE:
            return []
        sizes = sizes_of(a.shape, b.shape)
        sets = [self._buffers(a, b, sizes) for _ in range(MANIFEST["measured"]["sets"])]
        self.multiply(*sets[0], sizes)
        self.queue.finish()
        launched = [self.multiply(*each, sizes) for each in islice(cycle(sets), SAMPLES)]
        self.queue.finish()
        return [1e-9 * sum(one.profile.end - one.profile.start for one in events) for events in launched]

    def _buffers(self, a, b, sizes):
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        stored = [cl.Buffer(self.context, flags, hostbuf=np.ascontiguousarray(each, DTYPE)) for each in (a, b)]
        m, n, _, batch = sizes
        return [*stored, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, batch * m * n * DTYPE.itemsize)]

    def _grown(self, found):
        """The workspace, as large as is needed: the first bytes of a fresh one are zero."""
        needed = found.workspace_bytes
        if needed and (self._workspace is None or self._workspace.size < needed):
            self._workspace = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, needed)
            cl.enqueue_fill_buffer(self.queue, self._workspace, np.uint8(0), 0, found.zeroed_bytes).wait()
        return self._workspace
