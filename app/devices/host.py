"""The host's free memory, its processors' load and clocks, and its NVIDIA driver."""

from __future__ import annotations

import ctypes
import re
import resource
import threading
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Final

_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_STAT: Final = Path("/proc/stat")
_CPUINFO: Final = Path("/proc/cpuinfo")
_IDLE: Final = (3, 4)  # of the times in /proc/stat's first line: idle, and idle for want of the disk
_APART: Final = 0.5  # seconds between two looks at least: the system counts in hundredths
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


def core_mhz() -> float | None:
    """The mean clock of the processors as the system tells it now; None where it does not."""
    try:
        found = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return fmean(map(float, found)) if found else None


class ProcessorLoad:
    """The share of their time that the processors of this host work, whoever uses them; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at, self._before = monotonic(), _processor_times()
        self._share: float | None = None

    def share(self) -> float | None:
        """Since the look before, or as of the last one where that was just now; None if the system does not tell."""
        with self._lock:
            if self._before is not None and monotonic() - self._at >= _APART:
                self._look(self._before)
            return self._share

    def _look(self, before: tuple[int, int]) -> None:
        self._at, self._before = monotonic(), _processor_times()
        if self._before is not None and self._before[1] > before[1]:
            worked, passed = (now - then for now, then in zip(self._before, before, strict=True))
            self._share = min(1.0, max(0.0, worked / passed))


def _processor_times() -> tuple[int, int] | None:
    """What the processors worked, and in all, since the system began; None where it does not tell."""
    try:
        head = _STAT.read_text(encoding="ascii").partition("\n")[0].split()
        times = [int(each) for each in head[1:9]]  # a guest's are counted in a user's already
    except (OSError, ValueError):
        return None
    if head[:1] != ["cpu"] or len(times) <= max(_IDLE):
        return None
    return sum(times) - sum(times[place] for place in _IDLE), sum(times)


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
