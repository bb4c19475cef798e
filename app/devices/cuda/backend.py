"""One CUDA device, driven by RawModule and memory calls alone: no kernel of CuPy's own is ever compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import cupy
import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib
from cupy.cuda import driver, nvrtc, runtime

from app.devices.backend import Buffer, LaunchResources, Operands, Program, Reading, Vendor, Workspace, nothing
from app.devices.cuda.availability import compiled_for, explanation, unsupported, usable
from app.devices.cuda.cublas import Cublas, stay_strict
from app.devices.cuda.launch import allow_dynamic_smem, queue, verdict
from app.devices.cuda.nvml import Sensors
from app.devices.cuda.nvrtc import compile_cubin
from app.devices.cuda.properties import Software, identify, software
from app.devices.cuda.streams import OverlappedStreams, failing, is_fatal
from app.devices.cuda.timing import LaunchTimer
from app.devices.host_blas import reference as host_reference
from app.dtypes import Array
from app.errors import CompileFailed, DeviceError, LaunchFailed, NoDevice
from kernels.device import Device
from kernels.launch import Build, Launch, Step
from kernels.problem import Problem

_POOLED: Final = 2**25  # bytes: larger buffers are given back to the device when they are dropped, for the other child
_ROOM: Final = 2**20  # bytes on each side of what a kernel is warmed up on
_WIDENED: Final = 2**21  # elements that are made float64 at once
_COPIED: Final = 2**27  # bytes that are copied to measure a device's bandwidth
_LOADED: Final = 64  # modules that CuPy remembers before it is told to forget those nobody holds
_OUT_OF_MEMORY: Final = 2


def discover(which: str, cache_dir: Path) -> tuple[list[Device], list[str]]:
    """The CUDA devices, as `cuda:0` and so on, and why others cannot be used; `which` is "cuda" or one id.

    Raises NoDevice with the reason if CUDA shows none.
    """
    del cache_dir
    devices, reasons = usable(runtime, which, _software, _measured)
    known = compiled_for(ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)) if devices else []
    refused = {device.id: unsupported(device.architecture, _nvrtc_name(), known) for device in devices}
    reasons += [f"{device_id}: {reason}" for device_id, reason in refused.items() if reason is not None]
    return [device for device in devices if refused[device.id] is None], reasons


def occupancy_blocks(program: Program, threads: int, dynamic_smem_bytes: int = 0) -> int:
    """How many blocks of `threads` threads, with `dynamic_smem_bytes` each, the driver says an SM holds at once."""
    allow_dynamic_smem(program, dynamic_smem_bytes)
    return int(driver.occupancyMaxActiveBlocksPerMultiprocessor(program.handle.kernel.ptr, threads, dynamic_smem_bytes))


@contextmanager
def profiled() -> Iterator[None]:
    """Mark the launches inside the block for a profiler that profiles what is marked alone."""
    runtime.profilerStart()
    try:
        yield
    finally:
        runtime.profilerStop()


class CudaBackend(OverlappedStreams):
    """One CUDA device, as base.Backend says.

    Everything is in order on the legacy default stream, but what AsyncExecution names.
    """

    def __init__(self, device_id: str, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._loaded = 0
        self._cublas_workspace: Any = None
        self._sensors: Sensors | None = None
        self._workspace = Workspace(self.allocate, self.fill)
        self._steps: dict[str, Program] = {}
        self._verdict = 0
        super().__init__()
        number = int(device_id.partition(":")[2])
        self.device = _opened(number)
        with failing():
            self._bus: str = runtime.deviceGetPCIBusId(number)
            self._cublas, self.vendor = _cublas()
            self._clock = LaunchTimer(self.device.limits, lambda nbytes: self.allocate(nbytes).handle)

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs of timed launches that are kept, the one used last at the end."""
        return self._clock.graphs

    def upload(self, array: Array) -> Buffer:
        """Copy a C-contiguous array into fresh device memory."""
        buffer = self.allocate(array.nbytes)
        self.write(buffer, array)
        return buffer

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy a C-contiguous array into a buffer, or a window of one, of as many bytes, and wait."""
        with failing():
            runtime.memcpy(_address(buffer), array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)

    def allocate(self, nbytes: int) -> Buffer:
        """Fresh device memory; raises LaunchFailed, not fatal, if there is none."""
        with failing():
            try:
                return Buffer(_memory(nbytes), nbytes)
            except (cupy.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
                if getattr(error, "status", _OUT_OF_MEMORY) != _OUT_OF_MEMORY:
                    raise
                self._clock.forget()
                self._workspace.forget()
                cupy.get_default_memory_pool().free_all_blocks()
            return Buffer(_memory(nbytes), nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Set every byte of the buffer."""
        with failing():
            runtime.memset(_address(buffer), byte, buffer.nbytes)

    def download(self, buffer: Buffer, out: Array) -> None:
        """Copy the buffer's bytes into a C-contiguous array of the same number of bytes, and wait."""
        with failing():
            runtime.memcpy(out.ctypes.data, _address(buffer), out.nbytes, runtime.memcpyDeviceToHost)

    def compile(self, build: Build) -> Program:
        """Load a build's cubin, compiling it here if it is not cached; raises CompileFailed."""
        cubin = compile_cubin(build, self.device.architecture, self._cache_dir)
        self._loaded += 1
        if self._loaded % _LOADED == 0:
            cupy.clear_memo()
        try:
            kernel = cupy.RawModule(path=str(cubin.path)).get_function(build.entry)
            registers, local = int(kernel.num_regs), int(kernel.local_size_bytes)
        except (driver.CUDADriverError, runtime.CUDARuntimeError) as error:
            raise CompileFailed(f"the binary cannot be loaded: {error}", fatal=is_fatal(error)) from error
        return Program(kernel, build, registers, local, cubin.seconds)

    def warm(self, program: Program, launch: Launch, compiled: Callable[[], None] = nothing) -> None:
        """Launch one block on a problem of one element: the driver loads the code then."""
        compiled()
        tiny = Problem(1, 1, 1, dtype=launch.problem.dtype)
        buffers = [self.allocate(tiny.c_bytes + 2 * _ROOM) for _ in range(4)]
        with failing():
            for buffer in buffers:
                self.fill(buffer, 0)
            windows = [buffer.window(_ROOM, tiny.c_bytes) for buffer in buffers]
            ones = (1,) * len(launch.scalars)
            maps = tuple(each.tiny() for each in launch.maps)
            one = replace(launch, grid=launch.cluster, problem=tiny, scalars=ones, maps=maps, before=(), after=())
            addresses = [_address(window) for window in windows]
            queue(program, one, addresses)
            for step in (*launch.before, *launch.after):
                queue(self._program(step), replace(one.as_step(step), grid=1), addresses)
            runtime.deviceSynchronize()

    def run(self, program: Program, launch: Launch, operands: Operands) -> None:
        """Launch once and wait."""
        with failing():
            self._queued(program, launch, operands)()
            runtime.deviceSynchronize()
            self._verdict = verdict(launch, self._workspace)
        self._workspace.trim()

    def declined(self, launch: Launch) -> int:
        """The verdict that the last launch left in the workspace."""
        del launch
        return self._verdict

    def time(self, program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        """Seconds of each launch by events, or their mean by a graph: the policies that base.Backend names."""
        queueing = self._queueing(program, launch)
        launches = [partial(queueing, operands) for operands in sets]
        workspace = self._workspace.lend(launch.workspace_bytes)
        key = (launch, _address(workspace) if workspace else 0, *map(_addresses, sets))
        with failing():
            seconds = self._clock.seconds(policy, launches, program, key, nullcontext)
        self._workspace.trim()
        return seconds

    def resources(self, program: Program, launch: Launch) -> LaunchResources:
        """By the attributes of the function, and the driver's own calculation of occupancy."""
        with failing():
            static, more = int(program.handle.shared_size_bytes), launch.dynamic_smem_bytes
            blocks = occupancy_blocks(program, launch.threads, more)
            constant, threads = int(program.handle.const_size_bytes), int(program.handle.max_threads_per_block)
        return LaunchResources(program.registers, program.spills, static + more, blocks, constant, threads)

    def vendor_run(self, problem: Problem, operands: Operands) -> None:
        """The product by cuBLAS, into the same buffers; raises DeviceError if there is no cuBLAS."""
        with failing():
            self._library().multiply(problem, *_addresses(operands))
            runtime.deviceSynchronize()

    def vendor_time(self, problem: Problem, sets: Sequence[Operands], policy: str) -> list[float]:
        """As `time`, for cuBLAS."""
        library = self._library()
        launches = [partial(library.multiply, problem, *_addresses(operands)) for operands in sets]

        def around(stream: int) -> AbstractContextManager[None]:
            self._cublas_workspace = self._cublas_workspace or self.allocate(library.workspace_bytes).handle
            return library.on(stream, int(self._cublas_workspace.ptr))

        with failing():
            return self._clock.seconds(policy, launches, library, (problem, *map(_addresses, sets)), around)

    def reference(self, a: Array, b: Array) -> Array:
        """The float64 product of op(A) and op(B), by cuBLAS or, without it, by NumPy."""
        if self._cublas is None:
            return host_reference(a, b)
        batch = a.shape[0] if a.ndim > 2 else 1  # noqa: PLR2004 - a matrix has two dimensions
        (left, trans_a), (right, trans_b) = self._widened(a), self._widened(b)
        sides = a.shape[-2], b.shape[-1], a.shape[-1]
        problem = Problem(*sides, batch=batch, dtype="float64", trans_a=trans_a, trans_b=trans_b)
        product = self.allocate(problem.c_bytes)
        self.vendor_run(problem, Operands(left, right, product))
        out = np.empty((*a.shape[:-1], b.shape[-1]))
        self.download(product, out)
        return out

    def conditions(self) -> Reading | None:
        """Clocks, power and temperature by NVML; None without it."""
        self._sensors = self._sensors or Sensors(self._bus)
        return self._sensors.read()

    def free_bytes(self) -> int:
        """Free device memory, including this process's pool."""
        with failing():
            return int(runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())

    def close(self) -> None:
        """Wait until the device is idle; the rest goes with the process."""
        with failing():
            runtime.deviceSynchronize()

    def _widened(self, array: Array) -> tuple[Buffer, bool]:
        """A matrix, or a batch of them, as float64 on the device, and whether it lies there transposed.

        By way of one piece of host memory: touching as much as the whole matrix would take longer than its product.
        """
        is_turned = array.strides[-2] < array.strides[-1]
        stored = array.swapaxes(-2, -1) if is_turned else array
        rows = stored.reshape(-1, stored.shape[-1])
        buffer, step = self.allocate(8 * rows.size), max(1, _WIDENED // max(1, rows.shape[1]))
        staged = np.empty((min(step, len(rows)), rows.shape[1]))
        for start in range(0, len(rows), step):
            part = staged[: len(rows) - start]
            part[...] = rows[start : start + step]
            self.write(buffer.window(8 * start * rows.shape[1], part.nbytes), part)
        return buffer, is_turned

    def _library(self) -> Cublas:
        if self._cublas is None:
            raise DeviceError(f"cuBLAS is not here: {self.vendor.reason}")
        return self._cublas

    def _program(self, step: Step) -> Program:
        """The cached program of a step, compiled here if it is not in the cache on disk."""
        return self._steps.get(step.build.digest) or self._steps.setdefault(step.build.digest, self.compile(step.build))

    def _queued(self, program: Program, launch: Launch, operands: Operands) -> Callable[[], None]:
        """A launch with the steps before and after it, ready to be queued as often as is wanted."""
        return partial(self._queueing(program, launch), operands)

    def _queueing(self, program: Program, launch: Launch) -> Callable[[Operands], None]:
        """What queues a launch and the steps around it on operands that it is given."""
        workspace = self._workspace.lend(launch.workspace_bytes)
        address = _address(workspace) if workspace else 0
        before = [(self._program(step), launch.as_step(step)) for step in launch.before]
        after = [(self._program(step), launch.as_step(step)) for step in launch.after]

        def go(operands: Operands) -> None:
            addresses = (*_addresses(operands), address)
            for each, step in (*before, (program, launch), *after):
                queue(each, step, addresses)

        return go


def _software() -> Software:
    return software(runtime, nvrtc.getVersion())


def _nvrtc_name() -> str:
    return "NVRTC {}.{}".format(*nvrtc.getVersion())


def _opened(number: int) -> Device:
    """Make a device the current one, with its context; raises NoDevice with what stands in the way."""
    try:
        cupy.cuda.Device(number).use()
        runtime.free(0)  # the context is made here, not at the first allocation
        return identify(runtime, number, _software(), lambda: _measured(number))
    except runtime.CUDARuntimeError as error:
        raise NoDevice(explanation(runtime, error, number)) from error


def _measured(number: int) -> float:
    """A device's bandwidth."""
    with cupy.cuda.Device(number):
        return _copy_bandwidth()


def _copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying 128 MiB on the current device: the best of three."""
    source, target_ = _memory(_COPIED), _memory(_COPIED)
    milliseconds = []
    for _ in range(3):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        runtime.memcpyAsync(target_.ptr, source.ptr, _COPIED, runtime.memcpyDeviceToDevice, 0)
        end.record()
        end.synchronize()
        milliseconds.append(cupy.cuda.get_elapsed_time(start, end))
    return float(2e3 * _COPIED / min(milliseconds))


def _cublas() -> tuple[Cublas | None, Vendor]:
    """Load cuBLAS, or say why there is none."""
    stay_strict()
    try:
        found = Cublas()
    except (LaunchFailed, RuntimeError, OSError, AttributeError) as error:
        return None, Vendor(None, f"cuBLAS cannot be loaded: {str(error).strip()}")
    return found, Vendor(found.name)


def _memory(nbytes: int) -> Any:
    """Device memory: small allocations from CuPy's pool, large ones from the device."""
    if nbytes <= _POOLED:
        return cupy.cuda.alloc(nbytes)
    return cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)


def _address(buffer: Buffer) -> int:
    return int(buffer.handle.ptr) + buffer.offset


def _addresses(operands: Operands) -> tuple[int, int, int]:
    return _address(operands.a), _address(operands.b), _address(operands.c)
