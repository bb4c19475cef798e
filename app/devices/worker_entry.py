"""Functions that a worker process runs first: discover devices, open one."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from app.devices.backend import Backend, Buffer, Reading, Vendor, WorkerContext
from app.devices.gpu_health import GpuReader, GpuReading
from app.devices.process.worker_main import WorkerLink
from app.devices.slab import attach
from app.dtypes import Array
from app.errors import NoDevice, Unsupported
from kernels.device import Device
from kernels.launch import Build

PLATFORMS: Final = ("cuda", "opencl")
_LOG = logging.getLogger(__name__)


def nothing() -> None:
    """Set up a child that holds nothing."""


def discover(_: None, link: WorkerLink, which: str, cache_dir: Path) -> tuple[list[Device], list[str]]:
    """The usable devices of a platform, or the one of an id, and reasons for the others.

    Raises NoDevice with the reason if there is none.
    """
    del link
    find: Callable[[str, Path], tuple[list[Device], list[str]]]
    if which.startswith("cuda"):
        _expect_a_driver()
        find = import_cuda(cache_dir).discover
    else:
        from app.devices.opencl import discover as find  # noqa: PLC0415 - only this process may
    return find(which, cache_dir)


def hold(
    platform: str, device_id: str, cache_dir: Path, slab_fd: int, slab_bytes: int, serves: bool = False
) -> WorkerContext:
    """Set up a child that holds a device; one that serves products copies from and to the slab, and has it locked."""
    backend: Backend
    slab = attach(slab_fd, slab_bytes)
    if platform == "cuda":
        backend = import_cuda(cache_dir).CudaBackend(device_id, cache_dir)
        reason = import_cuda().lock(slab_fd, slab) if serves else None
        if reason is not None:
            print(f"{device_id}: {reason}", file=sys.stderr, flush=True)
    else:
        from app.devices.opencl import OpenCLBackend  # noqa: PLC0415 - only this process may

        backend = OpenCLBackend(device_id, cache_dir)
    return WorkerContext(backend, slab)


def vendor(held: WorkerContext, link: WorkerLink) -> Vendor:
    """Name the vendor's library, or say why there is none."""
    del link
    return held.backend.vendor


def sensors(held: WorkerContext, link: WorkerLink) -> Reading | None:
    """Read the device's sensors; None if it has none."""
    del link
    return held.backend.conditions()


class SharedDeviceMemory(Protocol):
    """Memory of a device that other processes made."""

    def open(self, raw: bytes, nbytes: int) -> Buffer:
        """The first `nbytes` of the allocation of a handle; raises InvalidRegion."""
        ...

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy an array of as many bytes into the buffer, and wait."""
        ...

    def close(self, buffer: Buffer) -> None:
        """Give an opened allocation back."""
        ...


def shared_memory(held: WorkerContext) -> SharedDeviceMemory:
    """Access to other processes' memory of the worker's device; raises Unsupported if it is no CUDA device."""
    device = held.backend.device
    if device.platform != "cuda":
        raise Unsupported(f"processes cannot share the memory of {device.id}")
    sharing: SharedDeviceMemory = held.state(import_cuda().Sharing)
    return sharing


def gpu_health(uuids: tuple[str, ...], cache_dir: Path) -> GpuReader:
    """Set up a child that watches GPUs without holding one; raises NoDevice without NVIDIA's management library."""
    reader: GpuReader | None = import_cuda(cache_dir).open_health(uuids)
    if reader is None:
        raise NoDevice("NVIDIA's management library cannot be opened")
    return reader


def read_gpus(reader: GpuReader, link: WorkerLink, seconds: float) -> list[GpuReading]:
    """Wait for events for at most so long, and read every GPU."""
    del link
    return reader.read(seconds)


def compiler(cache_dir: Path) -> None:
    """Set up a child that compiles: the libraries are loaded at its start, not at its first compilation.

    One that cannot be loaded now is loaded by that compilation, which says what is wrong.
    """
    cuda = import_cuda(cache_dir)
    try:
        cuda.load_nvrtc()
    except Exception as error:  # noqa: BLE001 - whatever it is, the compilation meets it again
        _LOG.info("NVRTC is not loaded ahead: %s", error)


def compile_cubin(_: None, link: WorkerLink, build: Build, architecture: str, cache_dir: Path, deadline: float) -> None:
    """Put a build's cubin into the cache; raises CompileFailed."""
    link.phase("compile", deadline)
    import_cuda().compile_cubin(build, architecture, cache_dir)


@dataclass(frozen=True, slots=True)
class CompiledBuild:
    """A build's cubin and PTX, with registers and bytes of local memory of a thread; None if unknown."""

    cubin: bytes
    ptx: str
    registers: int | None
    spills: int | None


def compile_both(
    _: None, link: WorkerLink, build: Build, architecture: str, cache_dir: Path, deadline: float, line_info: bool
) -> CompiledBuild:
    """A build's cubin, the cached one if there is any, and its PTX; raises CompileFailed."""
    link.phase("compile", deadline)
    cubin = import_cuda().compile_cubin(build, architecture, cache_dir, line_info=line_info)
    ptx = import_cuda().compile_ptx(build, architecture, line_info=line_info)
    return CompiledBuild(cubin.path.read_bytes(), ptx, cubin.registers, cubin.spills)


def _expect_a_driver() -> None:
    """Raise NoDevice if no driver is installed, sooner than importing CuPy would tell."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoDevice(f"there is no NVIDIA driver: {error}") from error


def import_cuda(cache_dir: Path | None = None) -> Any:
    """Import the CUDA backend, for the first time with a `cache_dir`; raises NoDevice if CuPy is missing or broken."""
    if cache_dir is not None:
        _keep_cupys_cache(cache_dir)
    try:
        from app.devices import cuda  # noqa: PLC0415 - only this process may
    except ImportError as error:
        raise NoDevice(f"CuPy cannot be imported: {error}") from error
    return cuda


def _keep_cupys_cache(cache_dir: Path) -> None:
    """Have CuPy's cache lie in `cache_dir` where its own folder cannot be made.

    CuPy makes its folder when it is imported, and a sandbox allows it to write there, but not to make it.
    """
    try:
        Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter for a user who has no home
        os.environ["CUPY_CACHE_DIR"] = str(cache_dir / "cuda" / "cupy")
