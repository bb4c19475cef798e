"""C = op(A) x op(B) by cuda.core, NVIDIA's own Python: the measured cubin, launched as manifest.json says.

Matrices are row-major and contiguous, in the GPU's memory: their addresses are integers, as every library gives them
(tensor.data_ptr(), array.data.ptr, __cuda_array_interface__). A product outside the class of the export raises
OutsideClass: nothing here computes it another way.
"""

import ctypes
import json
from functools import lru_cache
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


@lru_cache(maxsize=4096)
def encoded(tensor, address):
    """A tensor map: 128 bytes at a multiple of 64, within the memory that this gives."""
    driver = ctypes.CDLL("libcuda.so.1")
    room = (ctypes.c_uint8 * 192)()
    at = -ctypes.addressof(room) % 64
    rank = len(tensor.sizes)
    status = driver.cuTensorMapEncodeTiled(
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
        for each in MANIFEST["launches"]:
            binary = ObjectCode.from_cubin((HERE / MANIFEST["binaries"][each["entry"]]["cubin"]).read_bytes())
            kernel = binary.get_kernel(each["entry"])
            if each["shared_bytes"] > 48 * 1024:
                allow_shared(kernel, each["shared_bytes"])
            self._kernels[each["entry"]] = kernel

    def multiply(self, a, b, c, sizes, stream=None):
        """Queue a product of matrices at three addresses on a stream; sizes are m, n, k and batch."""
        stream = stream or self.device.default_stream
        plan = self._plans.get(sizes) or self._planned(sizes)
        needed, launches = plan
        workspace = self._grown(needed, stream) if needed else 0
        if (a | b | c) % 16:
            raise OutsideClass("a matrix must begin at a multiple of 16 bytes")
        places = {"a": a, "b": b, "c": c, "workspace": workspace}
        for kernel, config, arguments in launches:
            given = [given_as(each, places) for each in arguments]
            if any(isinstance(each, ctypes.Array) for each in given):
                launch_with_maps(stream, config, kernel, given)
            else:
                launch(stream, config, kernel, *given)

    def _planned(self, sizes):
        """What is launched for sizes, kept: only the addresses differ from call to call."""
        found = product(MANIFEST, *sizes)
        launches = []
        for each in found.launches:
            x, y = each.block
            config = LaunchConfig(grid=each.grid, block=(x, y, 1), shmem_size=each.shared_bytes)
            arguments = [np.int64(one) if isinstance(one, int) else one for one in each.arguments]
            launches.append((self._kernels[each.entry], config, arguments))
        self._plans[sizes] = found.workspace_bytes, launches
        return self._plans[sizes]

    def _grown(self, needed, stream):
        """The address of the workspace, as large as is needed: the first bytes of a fresh one are zero."""
        if self._workspace is None or self._workspace.size < needed:
            self._workspace = self.device.allocate(needed, stream=stream)
            ctypes.CDLL("libcuda.so.1").cuMemsetD8Async(
                ctypes.c_uint64(int(self._workspace.handle)),
                ctypes.c_ubyte(0),
                ctypes.c_size_t(MANIFEST["zeroed_bytes"]),
                ctypes.c_void_p(int(stream.handle)),
            )
        return int(self._workspace.handle)


def given_as(argument, places):
    """An argument as cuda.core takes it, or as the bytes of a tensor map."""
    if isinstance(argument, QueuedMap):
        return encoded(argument, places[argument.operand])
    return places[argument] if isinstance(argument, str) else argument


def launch_with_maps(stream, config, kernel, given):
    """As launch, which passes no structure by value: the driver does."""
    values = [each if isinstance(each, ctypes.Array) else ctypes.c_int64(int(each)) for each in given]
    parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    sizes = [ctypes.c_uint(each) for each in (*config.grid, *config.block, config.shmem_size)]
    status = ctypes.CDLL("libcuda.so.1").cuLaunchKernel(
        function_of(kernel), *sizes, ctypes.c_void_p(int(stream.handle)), parameters, None
    )
    if status:
        raise RuntimeError(f"cuLaunchKernel gives {status}")


@lru_cache(maxsize=None)
def function_of(kernel):
    """The driver's handle of a kernel's function in this context."""
    function = ctypes.c_void_p()
    handle = kernel.handle if hasattr(kernel, "handle") else kernel._handle
    status = ctypes.CDLL("libcuda.so.1").cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(int(handle)))
    if status:
        raise RuntimeError(f"cuKernelGetFunction gives {status}")
    return function


def allow_shared(kernel, nbytes):
    """Let a launch have more than 48 KiB of shared memory."""
    if ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(function_of(kernel), MAX_DYNAMIC_SHARED, ctypes.c_int(nbytes)):
        raise RuntimeError(f"the GPU has less than {nbytes} bytes of shared memory for a block")
