"""NVIDIA's management library by ctypes: the driver's version, a GPU's UUID and sensors, or nothing without it.

Names and numbers are those of nvml.h (NVML API Reference Guide).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.devices.backend import Reading

_LENGTH: Final = 96  # NVML's own buffers are 80 and 96 characters
SM, MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_GPU: Final = 0  # NVML_TEMPERATURE_GPU
# nvmlClocksEventReason...: why clocks are lower than they could be. Idleness, the first bit, is no such reason.
_REASONS: Final = {
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
    0x100: "display clocks",
}


def driver_version() -> str:
    """The driver's version such as 580.65.06; empty if NVML does not say."""
    with _opened() as library:
        return _text(library, "nvmlSystemGetDriverVersion") if library else ""


def uuid(bus: str) -> str:
    """The UUID of the GPU at a PCI address such as 0000:3B:00.0; empty if NVML does not say."""
    with _opened() as library:
        handle = _handle(library, bus) if library else None
        return _text(library, "nvmlDeviceGetUUID", handle) if library and handle else ""


def count() -> int:
    """How many GPUs the driver has, those that CUDA may not use too; 0 if NVML does not say."""
    found = ctypes.c_uint()
    with _opened() as library:
        failed = library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(found))
    return 0 if failed else found.value


def memory(bus: str) -> tuple[int, int] | None:
    """Bytes free and in all on the GPU at a PCI address; None if NVML does not say."""
    figures = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    with _opened() as library:
        handle = _handle(library, bus) if library else None
        failed = library is None or handle is None or library.nvmlDeviceGetMemoryInfo(handle, figures)
    return None if failed else (figures[1], figures[0])


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Why clocks are lower than they could be, in words."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


class Sensors:
    """The sensors of the GPU at a PCI address; NVML stays open until the process ends, so that reading is cheap."""

    def __init__(self, bus: str) -> None:
        self._library = open_library()
        self._device = _handle(self._library, bus) if self._library else None

    def read(self) -> Reading | None:
        """Read the sensors; None if NVML or the GPU is not available."""
        if self._library is None or self._device is None:
            return None
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        milliwatts = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return Reading(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, SM),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, MEMORY),
            watts=None if milliwatts is None else milliwatts / 1e3,
            celsius=self._number("nvmlDeviceGetTemperature", ctypes.c_uint, _GPU),
            throttled=throttle_reasons(int(reasons or 0)),
        )

    def _number(self, function: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong], *which: int) -> float | None:
        """The value of one sensor; None if this GPU or NVML does not have it (a MIG slice, for example)."""
        found = kind()
        try:
            failed = getattr(self._library, function)(self._device, *map(ctypes.c_uint, which), ctypes.byref(found))
        except AttributeError:
            return None
        return None if failed else float(found.value)


def _handle(library: ctypes.CDLL, bus: str) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    failed = library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle))
    return None if failed else handle


def _text(library: ctypes.CDLL, function: str, *arguments: object) -> str:
    buffer = ctypes.create_string_buffer(_LENGTH)
    failed = getattr(library, function)(*arguments, buffer, ctypes.c_uint(_LENGTH))
    return "" if failed else buffer.value.decode(errors="replace")


def open_library() -> ctypes.CDLL | None:
    """NVML, initialised; None without it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


@contextmanager
def _opened() -> Iterator[ctypes.CDLL | None]:
    library = open_library()
    try:
        yield library
    finally:
        if library is not None:
            library.nvmlShutdown()
