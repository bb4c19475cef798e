"""A device that takes no time, for tests and benchmarks of the data path: large products are not computed.

    python -m benchmarks.serving.nulldevice [--loop uvloop] [--stamps] [--copy-rate BYTES] [--launch SECONDS]
        [--until-eof]

serves on a free port of loopback. Products that are small enough to verify a kernel by are NumPy's. Of a larger one C
is left as it lies in the slab, or with --stamps holds A's first eight bytes over and over, and A's last eight at its
end: whoever sends A and B as one pattern can tell every byte of C. With --copy-rate its copies take time, as those of a
device do: so many bytes a second. With --launch so do products, unless they are small, and none of the processor's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, Final

import numpy as np

from app.cli.serve import serve
from app.devices.backend import Buffer, LaunchResources, Operands, Program, Reading, Vendor, WorkerContext, nothing
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Fleet, Unit
from app.devices.lease import Lease
from app.devices.process import Worker
from app.devices.slab import Slab, attach
from app.dtypes import Array
from app.settings import Settings
from app.tuning.verify.tolerance import applied
from kernels.device import Device, Limits
from kernels.launch import Build, Launch
from kernels.problem import Problem

_SMALL: Final = 2**22  # bytes of an operand that is computed with
_FEW: Final = 2**28  # flops of the products that a kernel is verified by
LIMITS: Final = Limits(
    threads=4096, shared_bytes=2**20, warp=16, sms=2, bandwidth=1e12, peak=1e15, peak64=1e15, cache_bytes=2**20
)
DEVICE: Final = Device("opencl:0", "opencl", "no device", "null", "1", "2", "3", "uuid", 2**40, LIMITS)


@dataclass
class Memory:
    """Bytes of the device: real where they are few or are the slab's own, else none at all, and what will be told.

    `stamp` is the first and the last eight bytes, `written` how many of the first bytes were.
    """

    nbytes: int
    data: Array | None = None
    stamp: Array | None = None
    written: int = 0


def data(buffer: Buffer) -> Array | None:
    """The bytes of a buffer, if it has any."""
    memory: Memory = buffer.handle
    return None if memory.data is None else memory.data[buffer.offset : buffer.offset + buffer.nbytes]


@dataclass
class NullDevice:
    """What base.Backend asks for."""

    stamps: bool = False
    copy_rate: float = 0.0
    launch: float = 0.0
    device: Device = DEVICE
    vendor: Vendor = field(default_factory=lambda: Vendor("none"))

    def upload(self, array: Array) -> Buffer:
        """The array's own bytes: what is in the slab is on the device."""
        self._copy(array.nbytes)
        return Buffer(Memory(array.nbytes, array.reshape(-1).view(np.uint8)), array.nbytes)

    def write(self, buffer: Buffer, array: Array) -> None:
        """Into what there is; of a promise the first and the last bytes, where what is before them was written."""
        self._copy(array.nbytes)
        memory, flat = buffer.handle, array.reshape(-1).view(np.uint8)
        if (found := data(buffer)) is not None:
            found[:] = flat
            return
        if not buffer.offset:  # used again
            memory.stamp, memory.written = None, 0
        if buffer.offset != memory.written:
            raise RuntimeError(f"{memory.written} bytes were written, not {buffer.offset}")
        first = flat if memory.stamp is None else memory.stamp.view(np.uint8)
        memory.stamp = np.concatenate([first[:8], flat[-8:]]).view(np.uint64)
        memory.written += flat.nbytes

    def allocate(self, nbytes: int) -> Buffer:
        """Few bytes, or a promise."""
        return Buffer(Memory(nbytes, np.zeros(nbytes, np.uint8) if nbytes <= _SMALL else None), nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Fill what there is."""
        if (memory := data(buffer)) is not None:
            memory[:] = byte

    def download(self, buffer: Buffer, out: Array) -> None:
        """What there is, or the stamp."""
        self._copy(out.nbytes)
        memory: Memory = buffer.handle
        flat = out.reshape(-1).view(np.uint8)
        if (found := data(buffer)) is not None:
            flat[:] = found
        elif memory.stamp is not None:
            flat.view(np.uint64)[:] = memory.stamp[0]
            if buffer.offset + buffer.nbytes == memory.nbytes:
                flat.view(np.uint64)[-1] = memory.stamp[-1]

    def compile(self, build: Build) -> Program:
        """Nothing to do."""
        return Program(None, build, registers=1)

    def warm(self, program: Program, launch: Launch, compiled: Callable[[], None] = nothing) -> None:
        """Nothing to do."""
        del program, launch
        compiled()

    def run(self, program: Program, launch: Launch, operands: Operands) -> None:
        """The product where all of it is small."""
        del program
        self.vendor_run(launch.problem, operands)

    def declined(self, launch: Launch) -> int:
        """Never."""
        del launch
        return 0

    def time(self, program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        """No time."""
        del program, launch
        return [1e-6] * (len(sets) if policy == "events" else 1)

    def resources(self, program: Program, launch: Launch) -> LaunchResources:
        """Nothing that anybody knows."""
        del program, launch
        return LaunchResources(None, None, None, None)

    def vendor_run(self, problem: Problem, operands: Operands) -> None:
        """The product where all of it is small."""
        a, b, c = data(operands.a), data(operands.b), data(operands.c)
        for one in (operands.a, operands.b):
            if data(one) is None and one.handle.written < one.nbytes:
                raise RuntimeError(f"of {one.nbytes} bytes {one.handle.written} were uploaded")
        if self.launch and problem.flops > _FEW:
            sleep(self.launch)
        if c is None:
            memory: Memory = operands.c.handle
            ends = operands.a.handle.stamp if a is None else a.view(np.uint64)[[0, -1]].copy()
            memory.stamp = ends if self.stamps else None
        elif self.launch and a is not None and problem.flops > _FEW:
            c.view(np.uint64)[:], c.view(np.uint64)[-1] = a.view(np.uint64)[[0, -1]]
        elif a is not None and b is not None and max(a.nbytes, b.nbytes, c.nbytes) <= _SMALL:
            with np.errstate(all="ignore"):
                made = np.matmul(*applied(problem, a.view(problem.dtype), b.view(problem.dtype)))
            c.view(problem.dtype)[:] = made.reshape(-1)

    def vendor_time(self, problem: Problem, sets: Sequence[Operands], policy: str) -> list[float]:
        """No time."""
        del problem
        return [1e-6] * (len(sets) if policy == "events" else 1)

    def reference(self, a: Array, b: Array) -> Array:
        """NumPy's product."""
        return np.asarray(np.matmul(a, b, dtype=np.float64))

    def conditions(self) -> Reading | None:
        """No sensors."""
        return None

    def free_bytes(self) -> int:
        """All of it."""
        return self.device.memory_bytes

    def close(self) -> None:
        """Nothing to give back."""

    def _copy(self, nbytes: int) -> None:
        """Take the time that so many bytes take."""
        if self.copy_rate:
            sleep(nbytes / self.copy_rate)


def hold(device: NullDevice, slab_fd: int, slab_bytes: int) -> WorkerContext:
    """Set up a child that holds the device."""
    return WorkerContext(device, attach(slab_fd, slab_bytes))


@contextmanager
def null_fleet(
    slab_bytes: int, *, stamps: bool = False, copy_rate: float = 0.0, launch: float = 0.0
) -> Iterator[Fleet]:
    """A fleet of the one device, in a child like every other's."""
    slab, lease = Slab(slab_bytes), Lease()
    arguments = (NullDevice(stamps, copy_rate, launch), slab.fd, slab.nbytes)
    child = Worker(f"{DEVICE.id} products", hold, arguments, descriptors=(slab.fd,), lease=lease)
    with tempfile.TemporaryDirectory() as folder:
        compilers = Compilers(Path(folder))
        try:
            child.start()
            yield Fleet((Unit(DEVICE, Vendor("none"), lease, child, child, compilers),), slab)
        finally:
            child.close()
            compilers.close()
            lease.close()
            slab.close()


def main() -> None:
    """Serve until SIGTERM or the end of standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stamps", action="store_true")
    parser.add_argument("--copy-rate", type=float, default=0.0)
    parser.add_argument("--launch", type=float, default=0.0)
    parser.add_argument("--loop", choices=("auto", "asyncio", "uvloop"), default="auto")
    parser.add_argument("--until-eof", action="store_true")
    given: Any = parser.parse_args()
    settings = Settings(port=int(os.environ.get("TILEWISE_PORT", "0")))
    fleet = partial(null_fleet, stamps=given.stamps, copy_rate=given.copy_rate, launch=given.launch)
    serve(settings, until_eof=given.until_eof, fleet=fleet, loop=given.loop)


if __name__ == "__main__":
    # The child finds what it is handed by the module's name, which is not __main__'s.
    from importlib import import_module

    import_module("benchmarks.serving.nulldevice").main()
