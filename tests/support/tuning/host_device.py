"""A device of its own in this process: memory is NumPy's, kernels are Python functions that a build names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from app.devices.backend import Buffer, LaunchResources, Operands, Program, Reading, Vendor, WorkerContext, nothing
from app.dtypes import Array
from app.errors import CompileFailed, LaunchFailed
from app.tuning.verify import tolerance
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.launch import Build, Launch
from kernels.problem import Problem

LIMITS = Limits(
    threads=4096, shared_bytes=2**20, warp=16, sms=2, bandwidth=1e10, peak=1e11, peak64=5e10, cache_bytes=2**20
)
DEVICE = Device("opencl:0", "opencl", "this process", "python", "1", "2", "3", "uuid", 2**33, LIMITS)

# What stands for a kernel: the problem, op(A), op(B), all elements of the memory that C lies in, and where C starts.
Function = Callable[[Problem, Array, Array, Array, int], None]


def data(buffer: Buffer) -> Array:
    """The buffer's bytes."""
    window: Array = buffer.handle[buffer.offset : buffer.offset + buffer.nbytes]
    return window


def launch_of(problem: Problem, name: str) -> Launch:
    """A launch of the Python function of that name, in the place of tiled's default."""
    tiled = CATALOGUE["tiled"]
    launch = tiled.launch(tiled.default(problem, DEVICE), problem, DEVICE)
    return replace(launch, build=Build("tiled", name, "matmul", ()))


@dataclass
class HostDevice:
    """What base.Backend asks for. Notes every act in `acts`.

    A build's text names a function; that of a kernel of ours (the reference kernel) does nothing. No other compiles.
    """

    functions: dict[str, Function]
    seconds: float = 1e-4
    memory: int = 2**30
    device: Device = DEVICE
    vendor: Vendor = field(default_factory=lambda: Vendor("NumPy"))
    acts: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    def upload(self, array: Array) -> Buffer:
        buffer = self.allocate(array.nbytes)
        buffer.handle[:] = array.reshape(-1).view(np.uint8)
        return buffer

    def write(self, buffer: Buffer, array: Array) -> None:
        data(buffer)[:] = array.reshape(-1).view(np.uint8)

    def allocate(self, nbytes: int) -> Buffer:
        if nbytes > self.memory:
            raise LaunchFailed(f"out of memory: {nbytes} bytes")
        return Buffer(np.zeros(nbytes, np.uint8), nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        data(buffer)[:] = byte

    def download(self, buffer: Buffer, out: Array) -> None:
        self.acts.append("download")
        out.reshape(-1).view(np.uint8)[:] = data(buffer)

    def compile(self, build: Build) -> Program:
        self.acts.append("compile")
        ours = dict.fromkeys((kernel.text for kernel in CATALOGUE.values()), idle)
        function = (ours | self.functions).get(build.text)
        if function is None:
            raise CompileFailed(f"error: unknown name {build.text!r}")
        return Program(function, build, registers=21)

    def warm(self, program: Program, launch: Launch, compiled: Callable[[], None] = nothing) -> None:
        self.acts.append(f"warm {program.build.name} {launch.grid}")
        compiled()

    def run(self, program: Program, launch: Launch, operands: Operands) -> None:
        self.acts.append("run")
        self._launch(program.handle, launch.problem, operands)

    def time(self, program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        for operands in sets:
            self._launch(program.handle, launch.problem, operands)
        return self._timed(len(sets), policy)

    def declined(self, launch: Launch) -> int:
        """Never."""
        del launch
        return 0

    def resources(self, program: Program, launch: Launch) -> LaunchResources:
        del program, launch
        return LaunchResources(None, None, 2048, None)

    def vendor_run(self, problem: Problem, operands: Operands) -> None:
        self.acts.append("run")
        self._launch(right, problem, operands)

    def vendor_time(self, problem: Problem, sets: Sequence[Operands], policy: str) -> list[float]:
        for operands in sets:
            self._launch(right, problem, operands)
        return self._timed(len(sets), policy)

    def reference(self, a: Array, b: Array) -> Array:
        self.acts.append("reference")
        return np.asarray(np.matmul(a, b, dtype=np.float64))

    def conditions(self) -> Reading | None:
        return self.readings.pop(0) if self.readings else None

    def free_bytes(self) -> int:
        return self.memory

    def close(self) -> None:
        self.acts.append("close")

    def _timed(self, count: int, policy: str) -> list[float]:
        self.acts.append(f"time {count} {policy}")
        return [self.seconds] * count if policy == "events" else [self.seconds]

    def _launch(self, function: Function, problem: Problem, operands: Operands) -> None:
        a, b = (data(one).view(problem.dtype) for one in (operands.a, operands.b))
        memory = operands.c.handle.view(problem.dtype)
        function(problem, *tolerance.applied(problem, a, b), memory, operands.c.offset // problem.itemsize)


def idle(*_: object) -> None:
    """Nothing."""


def right(_: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    """The product."""
    with np.errstate(invalid="ignore"):  # operands may hold NaN and infinities
        c = np.matmul(a, b).reshape(-1)
    memory[first : first + c.size] = c


@dataclass
class RecordedLink:
    """A link to nobody: what was leased, offered and named, in order, among the device's acts."""

    acts: list[str]
    deadlines: list[float] = field(default_factory=list)
    leased: bool = False

    def phase(self, stage: str, deadline: float) -> None:
        assert not self.leased
        self.deadlines.append(deadline)
        self.acts.append(f"phase {stage}")

    @contextmanager
    def lease(self, deadline: float) -> Iterator[None]:
        assert not self.leased
        self.deadlines.append(deadline)
        self.leased = True
        self.acts.append("lease")
        try:
            yield
        finally:
            self.leased = False
            self.acts.append("back")

    def offer(self, deadline: float) -> None:
        assert self.leased
        self.deadlines.append(deadline)
        self.acts.append("offer")


def held_by(backend: HostDevice) -> WorkerContext:
    """A device child's state, in this process."""
    return WorkerContext(backend, memoryview(b""))
