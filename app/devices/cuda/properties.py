"""A CUDA device's name, software versions and limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.devices.cuda import nvml
from app.devices.cuda.nvrtc_options import signed
from kernels.device import Device, Limits

# CUDA C++ Programming Guide, "Arithmetic instructions": float32 units of an SM, and float64's share of them. What is
# not listed has 128 units and 1/64.
_UNITS: Final = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_DOUBLES: Final = {**dict.fromkeys([(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)], 1 / 2), (7, 2): 1 / 32, (7, 5): 1 / 32}
# FMAs a clock of an SM's tensor cores on dense 16-bit operands with sums in float32 (NVIDIA's architecture papers:
# Volta, Turing, A100, GA102, Ada, H100, Blackwell). What is not listed and has them has 512.
_TENSORS: Final = {(8, 0): 1024, (8, 7): 1024, (9, 0): 2048, (10, 0): 4096, (10, 3): 4096}
_TENSOR: Final = 512
_FIRST_TENSORS, _FIRST_BFLOAT16 = (7, 0), (8, 0)
# Cards for games have half of that, and some of Turing's nothing.
_FOR_GAMES, _WITHOUT = "GeForce", "GTX 16"
# FMAs a clock of an SM's tensor cores in float64, where they are no slower than the plain units.
_TENSOR_DOUBLES: Final = {(8, 0): 64, (9, 0): 128, (10, 0): 64}
# Clock that tensor cores are given beside that of plain units (NVIDIA H100 Tensor Core GPU Architecture: 1830 MHz and
# 1980 MHz); float64's have the latter.
_TENSOR_CLOCK: Final = {(9, 0): 1830 / 1980}
_EXCLUSIVE_PROCESS: Final = 3


@dataclass(frozen=True, slots=True)
class Software:
    """The versions a device is driven with, in the words that Device has."""

    driver: str
    runtime: str
    compiler: str


def software(runtime: Any, nvrtc: tuple[int, int]) -> Software:
    """Read the versions; `runtime` is cupy.cuda.runtime."""
    driver = nvml.driver_version() or _proc_version() or f"CUDA {dotted(runtime.driverGetVersion())}"
    return Software(
        driver=f"NVIDIA {driver}",
        runtime=f"CUDA {dotted(runtime.runtimeGetVersion())}",
        compiler=f"NVRTC {nvrtc[0]}.{nvrtc[1]}",
    )


def dotted(version: int) -> str:
    """CUDA's number of a version, such as 12090, as 12.9."""
    return f"{version // 1000}.{version % 1000 // 10}"


def identify(runtime: Any, number: int, versions: Software, measure: Callable[[], float]) -> Device:
    """Read the properties of a device; `measure` gives its bandwidth if the driver does not."""

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, "cudaDevAttr" + name), number))

    properties = runtime.getDeviceProperties(number)
    name = properties["name"].decode(errors="replace").strip("\0 ")
    capability = int(properties["major"]), int(properties["minor"])
    architecture = f"sm_{capability[0]}{capability[1]}"
    slice_ = re.search(r"MIG (\S+)", name)
    bus: str = runtime.deviceGetPCIBusId(number)
    return Device(
        id=f"cuda:{number}",
        platform="cuda",
        name=name,
        architecture=architecture,
        driver=versions.driver,
        runtime=versions.runtime,
        compiler=signed(versions.compiler, architecture),
        uuid=nvml.uuid(bus) or bus,
        memory_bytes=int(properties["totalGlobalMem"]),
        limits=_limits(attribute, name, capability, measure),
        mig=slice_.group(1) if slice_ else "",
        exclusive=attribute("ComputeMode") == _EXCLUSIVE_PROCESS,
    )


def tensor_peaks(name: str, capability: tuple[int, int], clocks: float) -> dict[str, Any]:
    """Peaks of tensor cores, as fields of Limits, from the clocks a second of all SMs; without those that it lacks.

    GeForce 16 has the architecture of GeForce 20, but no tensor cores.
    """
    if capability < _FIRST_TENSORS or _WITHOUT in name:
        return {}
    half = _TENSORS.get(capability, _TENSOR) * 2.0 * clocks * _TENSOR_CLOCK.get(capability, 1.0)
    half /= 2 if _FOR_GAMES in name else 1
    newer = {"tensor_bfloat16": half, "tensor_tf32": half / 2} if capability >= _FIRST_BFLOAT16 else {}
    doubles = _TENSOR_DOUBLES.get(capability, 0) * 2.0 * clocks
    return {"tensor_float16": half, **newer, "tensor_float64": doubles}


def _limits(
    attribute: Callable[[str], int], name: str, capability: tuple[int, int], measure: Callable[[], float]
) -> Limits:
    sms = attribute("MultiProcessorCount")
    clocks = sms * attribute("ClockRate") * 1e3
    peak = clocks * _UNITS.get(capability, 128) * 2.0
    # Kilohertz, bits, and two transfers a clock.
    bandwidth = attribute("MemoryClockRate") * 1e3 * attribute("GlobalMemoryBusWidth") / 8 * 2
    return Limits(
        threads=attribute("MaxThreadsPerBlock"),
        shared_bytes=attribute("MaxSharedMemoryPerBlockOptin"),
        warp=attribute("WarpSize"),
        sms=sms,
        bandwidth=bandwidth or measure(),
        peak=peak,
        peak64=peak * _DOUBLES.get(capability, 1 / 64),
        registers_per_sm=attribute("MaxRegistersPerMultiprocessor"),
        registers_per_thread=255,  # every architecture since 3.5
        shared_bytes_per_sm=attribute("MaxSharedMemoryPerMultiprocessor"),
        shared_bytes_reserved=attribute("ReservedSharedMemoryPerBlock"),
        threads_per_sm=attribute("MaxThreadsPerMultiProcessor"),
        blocks_per_sm=attribute("MaxBlocksPerMultiprocessor"),
        cache_bytes=attribute("L2CacheSize"),
        **tensor_peaks(name, capability, clocks),
    )


def _proc_version() -> str:
    """The version that the kernel's module shows where NVML is not mounted."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text)
    return found.group(0) if found else ""
