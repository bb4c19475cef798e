"""An OpenCL CPU device's name, compiler and limits."""

from __future__ import annotations

import os
import platform
import re
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final

import numpy as np

from app.devices.opencl.pocl.cpu_name import rename
from app.devices.opencl.pocl.cpuid import INSTRUCTIONS, processor
from app.errors import NoDevice
from kernels.device import Device, Limits

_POCL: Final = "Portable Computing Language"
# PoCL's settings that decide what it makes of a text.
_SETTINGS: Final = ("POCL_WORK_GROUP_METHOD", "POCL_EXTRA_BUILD_FLAGS", "POCL_WILOOPS_MAX_UNROLL_COUNT")
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def cpus(cl: ModuleType) -> list[Any]:
    """PoCL's CPU devices; raises NoDevice with the reason if there are none."""
    try:
        # By its address: a PoCL that was found in two folders is one all the same.
        platforms = {one.int_ptr: one for one in cl.get_platforms() if one.name == _POCL}
        found = [device for one in platforms.values() for device in one.get_devices(cl.device_type.CPU)]
    except cl.Error as error:
        raise NoDevice(f"OpenCL shows no device: {error}") from error
    if not found:
        raise NoDevice("PoCL, the OpenCL of CPUs, is not installed")
    return found


def identify(device: Any, device_id: str) -> Device:
    """Read a device's identity and measure its memory's bandwidth (tens of milliseconds)."""
    release = re.search(r"PoCL (\S+)", device.platform.version)
    llvm = re.search(r"LLVM (\S+?)(?:,|$)", device.platform.version)
    driver = f"PoCL {release.group(1) if release else device.driver_version}"
    version = re.match(r"OpenCL \d+\.\d+", device.version)
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    host = processor()
    if host is not None and host.source != INSTRUCTIONS:
        print(
            f"{device_id}: the system lets no memory be executed: the processor is as {host.source} has it", flush=True
        )
    return Device(
        id=device_id,
        platform="opencl",
        name=(host.name if host is not None else "") or re.sub(r"^(pthread|cpu)-", "", device.name).strip(),
        architecture=rename(device) or _architecture(device.version),
        driver=driver,
        runtime=version.group(0) if version else "OpenCL",
        compiler=" ".join([driver, *([f"LLVM {llvm.group(1)}"] if llvm else []), *settings]),
        uuid=_machine(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        limits=_limits(device),
    )


def _limits(device: Any) -> Limits:
    width = max(1, int(device.native_vector_width_float))
    cores = int(device.max_compute_units)
    # One vector of fused multiply-adds a cycle: cautious, since the clock says nothing of units or of throttling.
    peak = cores * max(1000, int(device.max_clock_frequency)) * 1e6 * width * 2
    return Limits(
        threads=int(device.max_work_group_size),
        shared_bytes=int(device.local_mem_size),
        warp=width,
        sms=cores,
        bandwidth=_bandwidth(),
        peak=peak,
        peak64=peak / 2,
        allocation_bytes=int(device.max_mem_alloc_size),
        cache_bytes=max(int(device.global_mem_cache_size), _cache_bytes()),
    )


def _architecture(version: str) -> str:
    """The processor as LLVM calls it, the last part of PoCL's device string (…-linux-gnu-icelake-server)."""
    _, _, told = version.partition("-linux-")
    return told.partition("-")[2] or platform.machine()


def _machine() -> str:
    """A digest that tells this machine from others, without telling which it is."""
    try:
        return sha256(Path("/etc/machine-id").read_bytes()).hexdigest()[:32]
    except OSError:
        return ""


def _cache_bytes() -> int:
    """The largest cache of the first CPU, which PoCL may not know; 0 if unknown."""
    sizes = [path.read_text(encoding="ascii").strip() for path in _CACHES.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def _bandwidth() -> float:
    """Bytes a second, read and written, of copying 32 MiB: the best of three."""
    source, target = np.ones(2**25, np.uint8), np.ones(2**25, np.uint8)
    seconds = []
    for _ in range(3):
        started = perf_counter()
        np.copyto(target, source)
        seconds.append(perf_counter() - started)
    return 2 * source.nbytes / min(seconds)
