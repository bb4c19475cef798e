"""The host's free memory and its NVIDIA driver."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import Final

_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_NVIDIA: Final = Path("/proc/driver/nvidia/version")


def available_bytes() -> int:
    """Bytes of memory that can be had without swapping, as the system estimates."""
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def locked_memory_limit() -> int | None:
    """Bytes that this process may lock in memory; None for no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


def governor() -> str:
    """The CPU frequency governor, such as performance or powersave; empty if unknown."""
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def cuda_driver() -> int | None:
    """The newest CUDA version that the NVIDIA driver supports, such as 12090 for 12.9; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        found = ctypes.c_int()
        return None if library.cuDriverGetVersion(ctypes.byref(found)) else found.value
    except (OSError, AttributeError):
        return None


def nvidia_driver() -> str:
    """The version of the NVIDIA driver's kernel module; empty if none is loaded."""
    try:
        found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", _NVIDIA.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return found.group() if found else ""
