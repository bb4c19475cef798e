"""The devices of this host: discovered, leased, and each held by its workers. Imports no device library."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.devices import worker_entry
from app.devices.backend import Vendor, WorkerContext
from app.devices.binary_cache import CACHES, make_private
from app.devices.compiler_pool import BuildCompilers, Compilers
from app.devices.gpu_health import GpuReader
from app.devices.gpu_reader import GpuHealthProcess
from app.devices.last_devices import remember
from app.devices.lease import Lease, Priority
from app.devices.process import DeviceWorker, Worker
from app.devices.sandbox import Part, Sandbox, Support, of_discovery, of_platform, support
from app.devices.slab import Slab
from app.errors import DeviceError, NoDevice, StartRefused, UnknownDevice
from kernels.device import Device
from kernels.launch import Build

__all__ = ["Fleet", "Unit", "WorkerContext", "open_fleet"]

_LOG = logging.getLogger(__name__)
_DISCOVERY = 120.0  # seconds that drivers have to name their devices; a cold one on many GPUs takes tens


@dataclass(frozen=True)
class Unit:
    """One device with its lease and its two workers, which are one if the device allows only one process."""

    device: Device
    vendor: Vendor
    lease: Lease
    products: DeviceWorker
    trials: DeviceWorker
    compilers: BuildCompilers

    @property
    def width(self) -> int:
        """Builds that can be compiled at once; 1 if the device's own process compiles."""
        return self.compilers.width if self.is_compiled_ahead else 1

    @property
    def takes_products(self) -> bool:
        """Whether products are neither refused, as of a device that is cordoned, nor is its process lost."""
        return self.products.takes_calls

    def ahead(self, build: Build) -> Future[None]:
        """Start to have a build's binary in the cache on disk, and return at once.

        It is compiled in a process that holds no device and may be killed: the future raises CompileFailed,
        ChildTimedOut, ChildDied or CancelledError. PoCL compiles in the device's own process: there this does nothing.
        """
        if self.is_compiled_ahead:
            return self.compilers.start(build, self.device.architecture)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def prepare(self, build: Build, deadline: float | None = None) -> None:
        """Compile a build into the cache on disk, as `ahead`, and wait; raises as its future."""
        if self.is_compiled_ahead:
            self.compilers.compile(build, self.device.architecture, deadline)

    def abandon(self, builds: Iterable[Build]) -> None:
        """Cancel builds requested ahead that have not started."""
        if self.is_compiled_ahead:
            self.compilers.cancel(builds, self.device.architecture)

    @property
    def is_compiled_ahead(self) -> bool:
        """Whether a build's binary is made by another process than the device's own."""
        return self.device.platform == "cuda"


@dataclass(frozen=True)
class Fleet:
    """Every device that could be opened, the memory that all children share, and why others were not opened.

    `gpus` reads the health of those that have a UUID by which NVIDIA's driver knows them; None: there is none.
    `restricted` are the parts of their sandbox that hold, of sandbox.PARTS.
    """

    units: tuple[Unit, ...]
    slab: Slab
    reasons: tuple[str, ...] = ()
    gpus: GpuReader | None = None
    restricted: tuple[Part, ...] = ()
    compilers: Compilers | None = None

    def compile_both(self, build: Build, architecture: str, *, line_info: bool = False) -> worker_entry.CompiledBuild:
        """A build's cubin and PTX for a CUDA architecture, whether or not such a device is here.

        `line_info`: both with the source's lines, which changes no instruction. Raises CompileFailed,
        ChildTimedOut, ChildDied, Closing, and NoDevice where there is no compiler.
        """
        if self.compilers is None:
            raise NoDevice("there is no compiler of CUDA's kernels here")
        return self.compilers.both(build, architecture, line_info=line_info)

    def unit(self, device_id: str | None = None) -> Unit:
        """The unit of a device, or the first; raises NoDevice if there is none, UnknownDevice for an unknown id."""
        if device_id is None and not self.units:
            raise NoDevice("; ".join(self.reasons) or "no device was asked for")
        for unit in self.units:
            if device_id in {None, unit.device.id}:
                return unit
        known = ", ".join(unit.device.id for unit in self.units) or "none"
        raise UnknownDevice(f"there is no device {device_id}; there are: {known}", known=known)


@contextmanager
def open_fleet(devices: str, cache_dir: Path, slab_bytes: int, *, sandboxed: bool = True) -> Iterator[Fleet]:
    """Open the devices asked for: auto, none, or platforms and ids such as "cuda" or "cuda:0,opencl:0".

    auto takes every CUDA device, or the CPU if there is none. For a device that cannot be opened the fleet has a
    reason; that is no error. Their processes enter a sandbox, if the system has the means. Raises StartRefused if
    `devices` is invalid, or the cache cannot be trusted.
    """
    asked = _asked(devices)
    _prepare(cache_dir)
    supported = _support(sandboxed=sandboxed)
    with ExitStack() as stack:
        slab = Slab(slab_bytes)
        stack.callback(slab.close)
        compilers = Compilers(cache_dir, of_platform(supported, "cuda", cache_dir))
        stack.callback(compilers.close)
        found, reasons = _discover(asked, cache_dir, supported)
        units = []
        for unit in _opened(found, cache_dir, slab, compilers, stack, supported):
            if isinstance(unit, Unit):
                units.append(unit)
            else:
                reasons.append(unit)
        for reason in reasons:
            _LOG.log(logging.INFO if units else logging.WARNING, "%s", reason)
        if any(unit.is_compiled_ahead for unit in units):
            compilers.warm()
        remember(cache_dir, devices, [unit.device for unit in units])
        gpus = _gpus(units, stack, cache_dir, of_platform(supported, "cuda", cache_dir))
        yield Fleet(tuple(units), slab, tuple(reasons), gpus, supported.parts, compilers)


def _prepare(cache_dir: Path) -> None:
    """Make the folders of compiled kernels; raises StartRefused if others may write to them."""
    try:
        for name in CACHES:
            make_private(cache_dir / name)
    except OSError as error:
        raise StartRefused(str(error) if error.errno is None else f"{cache_dir} cannot be used: {error}") from error


def _support(*, sandboxed: bool) -> Support:
    """What is restricted of the processes; told once where that is less than all."""
    if not sandboxed:
        _LOG.info("devices' processes are not confined: TILEWISE_SANDBOX is off")
        return Support()
    found = support()
    if found.missing:
        _LOG.info("this system has no means to restrict %s of devices' processes", ", ".join(found.missing))
    return found


def _gpus(units: Iterable[Unit], stack: ExitStack, cache_dir: Path, sandbox: Sandbox) -> GpuReader | None:
    uuids = [unit.device.uuid for unit in units if unit.device.platform == "cuda" and unit.device.uuid]
    if not uuids:
        return None
    reader = GpuHealthProcess(uuids, cache_dir, sandbox)
    stack.callback(reader.close)
    return reader


def _asked(devices: str) -> list[str]:
    """The parts of the setting; raises StartRefused for one that names no platform."""
    parts = [part.strip() for part in devices.split(",") if part.strip()]
    for part in parts:
        platform, _, number = part.partition(":")
        plain = part in {"auto", "none"} and len(parts) == 1
        if not plain and (platform not in worker_entry.PLATFORMS or (":" in part and not number.isdecimal())):
            raise StartRefused(f"devices are auto, none, or a list such as cuda:0,opencl; {part!r} is none of these")
    return [] if parts == ["none"] else parts


def _discover(asked: list[str], cache_dir: Path, supported: Support) -> tuple[list[Device], list[str]]:
    """Ask the drivers, each in a child that may hang or crash, and runs no kernel."""
    found: dict[str, Device] = {}
    reasons: list[str] = []
    children: dict[str, Worker] = {}
    try:
        for which in ["cuda", "opencl"] if asked == ["auto"] else asked:
            if asked == ["auto"] and found:
                break
            platform = which.partition(":")[0]
            if platform not in children:
                sandbox = of_discovery(supported, platform, cache_dir)
                children[platform] = Worker(f"{platform} discovery", worker_entry.nothing, (), sandbox=sandbox)
            try:
                call = worker_entry.discover, which, cache_dir
                devices, unusable = children[platform].call(*call, deadline=_DISCOVERY)
            except DeviceError as error:
                reasons.append(f"{which}: {error.message}")
            else:
                found |= {device.id: device for device in devices}
                reasons += unusable
                if not devices and not unusable:
                    reasons.append(f"{which}: there is no such device")
    finally:
        for child in children.values():
            child.close()
    return list(found.values()), reasons


def _opened(
    found: list[Device], cache_dir: Path, slab: Slab, compilers: Compilers, stack: ExitStack, supported: Support
) -> Iterator[Unit | str]:
    """Start every device's children at once; gives a unit, or why there is none, for each."""
    with ThreadPoolExecutor(max_workers=max(1, len(found)), thread_name_prefix="opening") as pool:
        parts = [_children(device, cache_dir, slab, stack, supported) for device in found]
        started = [pool.submit(_start, products, trials) for _, products, trials in parts]
        for device, (lease, products, trials), vendor in zip(found, parts, started, strict=True):
            try:
                yield Unit(device, vendor.result(), lease, products, trials, compilers.of(device.id))
            except DeviceError as error:
                yield f"{device.id}: {error.message}"


def _children(
    device: Device, cache_dir: Path, slab: Slab, stack: ExitStack, supported: Support
) -> tuple[Lease, Worker, Worker]:
    lease, sandbox = Lease(), of_platform(supported, device.platform, cache_dir)
    stack.callback(lease.close)

    def child(role: str) -> Worker:
        arguments = (device.platform, device.id, cache_dir, slab.fd, slab.nbytes, role == "products")
        one = Worker(
            f"{device.id} {role}",
            worker_entry.hold,
            arguments,
            descriptors=(slab.fd,),
            lease=lease,
            on_lost=slab.hold_back,
            sandbox=sandbox,
        )
        stack.callback(one.close)
        return one

    products = child("products")
    return lease, products, products if device.exclusive else child("trials")


def _start(products: Worker, trials: Worker) -> Vendor:
    """Start both workers concurrently; raises the first one's failure."""
    other = threading.Thread(target=_try_to_start, args=(trials,), daemon=True)
    other.start()
    vendor: Any = products.call(worker_entry.vendor, priority=Priority.PRODUCT)
    other.join()
    trials.start()
    return Vendor(vendor.name, vendor.reason)


def _try_to_start(child: Worker) -> None:
    try:
        child.start()
    except DeviceError:
        _LOG.info("%s is started again", child.name)
