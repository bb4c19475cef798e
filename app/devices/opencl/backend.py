"""One OpenCL device with one queue, and NumPy's BLAS beside it on the same memory."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from app.devices.backend import Buffer, LaunchResources, Operands, Program, Reading, Vendor, Workspace, nothing
from app.devices.host import available_bytes
from app.devices.host_blas import multiply, reference, undisturbed, vendor
from app.devices.opencl.pocl.environment import environment
from app.devices.opencl.properties import cpus, identify
from app.devices.process import allocator
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed, NoDevice
from kernels.device import Device
from kernels.launch import Build, Launch, Step
from kernels.problem import Problem

# PoCL compiles one function for every local size, and one more where a dimension of the grid has more work items.
_SMALL_GRID: Final = 65_535
_ROOM: Final = 2**20  # bytes on each side of what a kernel is warmed up on: its memory is the process's own
_GLANCES: Final = (2e-4, 1e-2)  # seconds between looks at whether PoCL still compiles: the first, and at most


def discover(which: str, cache_dir: Path) -> tuple[list[Device], list[str]]:
    """The CPUs that PoCL shows, as `opencl:0` and so on; `which` is "opencl" or one id. Raises NoDevice: why not."""
    cl = _load(cache_dir)
    devices = [identify(device, f"opencl:{number}") for number, device in enumerate(cpus(cl))]
    return [device for device in devices if which in {"opencl", device.id}], []


class OpenCLBackend:
    """One OpenCL device, as base.Backend says; the vendor's library is NumPy's BLAS."""

    def __init__(self, device_id: str, cache_dir: Path) -> None:
        self._cl = cl = _load(cache_dir)
        found = {f"opencl:{number}": device for number, device in enumerate(cpus(cl))}
        if device_id not in found:
            raise NoDevice(f"there is no {device_id}")
        self._native = found[device_id]
        self.device = identify(self._native, device_id)
        self.vendor: Vendor = vendor()
        self._context = cl.Context([self._native])
        self._queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._workspace = Workspace(self.allocate, self.fill)
        self._steps: dict[str, Program] = {}

    def upload(self, array: Array) -> Buffer:
        """Copy a C-contiguous array into fresh device memory."""
        buffer = self.allocate(array.nbytes)
        self.write(buffer, array)
        return buffer

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy a C-contiguous array into a buffer, or a window of one, of as many bytes, and wait."""
        with self._failing():
            self._cl.enqueue_copy(self._queue, buffer.handle, array, dst_offset=buffer.offset)

    def allocate(self, nbytes: int) -> Buffer:
        """Fresh device memory; raises LaunchFailed if a buffer or the host has no room for it."""
        free = self.free_bytes()
        if nbytes > free:
            raise LaunchFailed(f"out of memory: {nbytes} bytes are asked for, {free} can be had", fatal=False)
        with self._failing():
            return Buffer(self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, nbytes), nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Set every byte of the buffer."""
        with self._failing():
            pattern = np.uint8(byte)
            self._cl.enqueue_fill_buffer(self._queue, buffer.handle, pattern, buffer.offset, buffer.nbytes).wait()

    def download(self, buffer: Buffer, out: Array) -> None:
        """Copy the buffer's bytes into a C-contiguous array of the same number of bytes, and wait."""
        with self._failing():
            self._cl.enqueue_copy(self._queue, _bytes(out), buffer.handle, src_offset=buffer.offset)

    def compile(self, build: Build) -> Program:
        """Compile a build; raises CompileFailed with the compiler's log.

        PoCL has a cache on disk by text, macros and device. A cache of binaries here would make it compile every
        function twice: for any local size, to get the binary, and again at the launch.
        """
        cl = self._cl
        try:
            program = cl.Program(self._context, build.text).build(options=[*_macros(build), *_options(self.device)])
            return Program(cl.Kernel(program, build.entry), build)
        except cl.Error as error:
            raise CompileFailed(_words(error)) from error

    def warm(self, program: Program, launch: Launch, compiled: Callable[[], None] = nothing) -> None:
        """Make PoCL compile the function that the launch will use: same local size, same class of grid.

        PoCL compiles after it has taken the launch in, and calls it running when that is done.
        """
        for step in (*launch.before, *launch.after):
            self.warm(self._program(step), launch.as_step(step))
        width = launch.block[0]
        grid = 1 if launch.grid * width <= _SMALL_GRID else _SMALL_GRID // width + 1
        tiny = Problem(1, 1, 1, batch=grid, dtype=launch.problem.dtype)
        buffers = [self.allocate(tiny.c_bytes + 2 * _ROOM) for _ in range(4)]
        with self._failing():
            for buffer in buffers:
                self.fill(buffer, 0)
            windows = [_region(buffer.window(_ROOM, tiny.c_bytes)) for buffer in buffers]
            ones = (1,) * len(launch.scalars)
            event = self._enqueue(program, replace(launch, grid=grid, problem=tiny, scalars=ones), windows)
            self._queue.flush()
            glance, longest = _GLANCES
            while event.command_execution_status > self._cl.command_execution_status.RUNNING:
                sleep(glance)
                glance = min(2 * glance, longest)
            compiled()
            event.wait()
        allocator.give_back()  # of LLVM, which takes tens of megabytes for each

    def run(self, program: Program, launch: Launch, operands: Operands) -> None:
        """Launch once and wait."""
        with self._failing():
            self._enqueue_all(program, launch, operands)[-1].wait()
        self._workspace.trim()

    def declined(self, launch: Launch) -> int:
        """Never: no kernel of OpenCL's has a verdict."""
        del launch
        return 0

    def time(self, program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        """Launch once for each set of operands; seconds by the queue's profiling clock, which is policy "events"."""
        _expect_events(policy)
        with self._failing():
            launches = [self._enqueue_all(program, launch, operands) for operands in sets]
            self._queue.finish()
            nanoseconds = [sum(event.profile.end - event.profile.start for event in events) for events in launches]
        self._workspace.trim()
        return [max(1, each) * 1e-9 for each in nanoseconds]

    def resources(self, program: Program, launch: Launch) -> LaunchResources:
        """A block's local memory: PoCL tells one size of private memory for all, and a CPU holds no blocks at once."""
        del launch
        with self._failing():
            named, asked = self._cl.kernel_work_group_info, program.handle.get_work_group_info
            shared, threads = (asked(one, self._native) for one in (named.LOCAL_MEM_SIZE, named.WORK_GROUP_SIZE))
        return LaunchResources(None, None, int(shared), None, None, int(threads))

    def vendor_run(self, problem: Problem, operands: Operands) -> None:
        """NumPy's product, on the buffers' own memory."""
        with self._failing(), self._mapped(problem, operands) as arrays:
            multiply(problem, *arrays)

    def vendor_time(self, problem: Problem, sets: Sequence[Operands], policy: str) -> list[float]:
        """As `time`, for NumPy's BLAS, while PoCL's threads are at rest; the mapping is not timed."""
        _expect_events(policy)
        seconds = []
        for operands in sets:
            with self._failing(), self._mapped(problem, operands) as arrays, undisturbed():
                started = perf_counter()
                multiply(problem, *arrays)
                seconds.append(perf_counter() - started)
        return seconds

    def reference(self, a: Array, b: Array) -> Array:
        """The float64 product of op(A) and op(B), by NumPy."""
        return reference(a, b)

    def conditions(self) -> Reading | None:
        """None: a CPU has no sensors that every user may read."""
        return None

    def free_bytes(self) -> int:
        """The largest buffer that can be had now: the host's available memory, and OpenCL's own bound on one."""
        return min(available_bytes(), int(self._native.max_mem_alloc_size))

    def close(self) -> None:
        """Wait until the queue is empty; the rest goes with the process."""
        self._queue.finish()

    def _program(self, step: Step) -> Program:
        """The program of a step, kept."""
        return self._steps.get(step.build.digest) or self._steps.setdefault(step.build.digest, self.compile(step.build))

    def _enqueue_all(self, program: Program, launch: Launch, operands: Operands) -> list[Any]:
        """The events of the steps before a launch, of the launch, and of those after it."""
        workspace = self._workspace.lend(launch.workspace_bytes)
        regions = [*map(_region, (operands.a, operands.b, operands.c)), workspace.handle if workspace else None]
        before = [(self._program(step), launch.as_step(step)) for step in launch.before]
        after = [(self._program(step), launch.as_step(step)) for step in launch.after]
        return [self._enqueue(each, step, regions) for each, step in (*before, (program, launch), *after)]

    def _enqueue(self, program: Program, launch: Launch, regions: Sequence[Any]) -> Any:
        """Queue one launch on A, B, C and the workspace."""
        kernel, problem, block = program.handle, launch.problem, launch.block
        *operands, workspace = regions
        more = (workspace, *map(np.int64, launch.scalars)) if launch.scalars else ()
        kernel.set_args(*operands, *map(np.int64, (problem.m, problem.n, problem.k)), *more)
        return self._cl.enqueue_nd_range_kernel(self._queue, kernel, (launch.grid * block[0], block[1]), block)

    @contextmanager
    def _mapped(self, problem: Problem, operands: Operands) -> Iterator[list[Any]]:
        """A, B and C in the host's memory, without a copy, as stored and batched."""
        shapes = (problem.a_shape, problem.b_shape, (problem.m, problem.n))
        flags = self._cl.map_flags.READ | self._cl.map_flags.WRITE
        arrays: list[Any] = []
        try:
            for buffer, shape in zip((operands.a, operands.b, operands.c), shapes, strict=True):
                whole = (problem.batch, *shape)
                array, _ = self._cl.enqueue_map_buffer(
                    self._queue, buffer.handle, flags, buffer.offset, whole, numpy_dtype(problem.dtype)
                )
                arrays.append(array)
            yield arrays
        finally:
            for array in arrays:
                array.base.release(self._queue)
            self._queue.finish()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Translate OpenCL's errors into DeviceErrors. None is fatal: a fault in PoCL kills the process."""
        try:
            yield
        except (self._cl.Error, MemoryError) as error:
            raise LaunchFailed(_words(error), fatal=False) from error


def _load(cache_dir: Path) -> ModuleType:
    """Import pyopencl in the environment that PoCL needs; raises NoDevice."""
    os.environ |= environment(cache_dir)
    try:
        import pyopencl as cl  # noqa: PLC0415 - both read the environment when they are imported
    except ImportError as error:
        raise NoDevice(f"pyopencl cannot be imported: {error}") from error
    warnings.simplefilter("ignore", cl.CompilerWarning)  # a compiler's remarks on a text that it accepted
    return cast(ModuleType, cl)


def _macros(build: Build) -> list[str]:
    return [f"-D{name}={value}" for name, value in build.macros]


def _expect_events(policy: str) -> None:
    if policy != "events":
        raise ValueError(f"OpenCL has no policy {policy!r}")


def _region(buffer: Buffer) -> Any:
    """The buffer's window as an OpenCL sub-buffer; raises pyopencl's error if it is misaligned."""
    if buffer.offset == 0 and buffer.nbytes == buffer.handle.size:
        return buffer.handle
    return buffer.handle.get_sub_region(buffer.offset, buffer.nbytes)


def _bytes(array: Array) -> Array:
    """A C-contiguous array's own bytes: bfloat16 is none of the types that a buffer of Python's may have."""
    return array.reshape(-1).view(np.uint8)


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _options(device: Device) -> list[str]:
    """Further compiler options: the CPU's name, since PoCL's cache key may lack it."""
    processor = f"-DPROCESSOR_{re.sub(r'[^A-Z0-9]', '_', device.architecture.upper())}"
    # No warnings: how a vector wider than the processor's is passed matters to nobody; CI compiles the texts too.
    return [processor, "-w"]
