"""The health of GPUs by NVIDIA's management library: Xid events, errors of memory, remapped rows, temperatures.

Names, numbers and structures are those of nvml.h (NVML API Reference Guide). It needs no CUDA context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from app.devices.cuda import nvml
from app.devices.gpu_health import GpuReading

_XID: Final = 0x8  # nvmlEventTypeXidCriticalError
_LOST, _TIMEOUT = 15, 10  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_TIMEOUT
_CORRECTED, _UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_...
_VOLATILE: Final = 0  # NVML_VOLATILE_ECC: since the driver was loaded
_SLOWDOWN: Final = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
_AT_ONCE: Final = 64  # events that are taken in one look


class EventData(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("eventType", ctypes.c_ulonglong),
        ("eventData", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class _Gpu:
    uuid: str
    handle: ctypes.c_void_p


class NvmlHealth:
    """Reads the GPUs of some UUIDs through an open NVML; those that it does not know are lost."""

    def __init__(self, library: Any, uuids: Sequence[str]) -> None:
        self._library, self._uuids = library, tuple(uuids)
        self._set: ctypes.c_void_p | None = ctypes.c_void_p()
        if self._call("nvmlEventSetCreate", ctypes.byref(self._set)):
            self._set = None
        self._gpus: dict[str, _Gpu] = {}

    def read(self, seconds: float) -> list[GpuReading]:
        """Wait for events for at most so long, and read every GPU."""
        for uuid in self._uuids:
            if uuid not in self._gpus:
                self._open(uuid)
        xids = self._events(seconds)
        return [self._reading(uuid, tuple(xids.get(uuid, ()))) for uuid in self._uuids]

    def _open(self, uuid: str) -> None:
        handle = ctypes.c_void_p()
        if self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle)):
            return
        self._gpus[uuid] = _Gpu(uuid, handle)
        if self._set is not None:
            self._call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(_XID), self._set)

    def _events(self, seconds: float) -> dict[str, list[int]]:
        """The Xids that have come, by UUID; waits until there is one."""
        found: dict[str, list[int]] = {}
        until = monotonic() + seconds
        while self._set is not None and sum(map(len, found.values())) < _AT_ONCE:
            left = 0 if found else max(0, int(1000 * (until - monotonic())))
            data = EventData()
            if self._call("nvmlEventSetWait_v2", self._set, ctypes.byref(data), ctypes.c_uint(left)):
                break
            uuid = next((gpu.uuid for gpu in self._gpus.values() if gpu.handle.value == data.device), None)
            if uuid is not None and data.eventType & _XID:
                found.setdefault(uuid, []).append(int(data.eventData))
        return found

    def _reading(self, uuid: str, xids: tuple[int, ...]) -> GpuReading:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return GpuReading(uuid, xids)
        temperature = ctypes.c_uint()
        failed = self._call("nvmlDeviceGetTemperature", gpu.handle, ctypes.c_uint(0), ctypes.byref(temperature))
        rows = self._rows(gpu)
        milliwatts = self._number(gpu, "nvmlDeviceGetPowerUsage", ctypes.c_uint)
        reasons = int(self._number(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong) or 0)
        return GpuReading(
            uuid,
            xids,
            is_lost=failed == _LOST,
            corrected=self._errors(gpu, _CORRECTED),
            uncorrected=self._errors(gpu, _UNCORRECTED),
            remapped_rows=None if rows is None else rows[0] + rows[1],
            remap_is_pending=rows is not None and bool(rows[2]),
            remap_failed=rows is not None and bool(rows[3]),
            celsius=None if failed else float(temperature.value),
            slowdown_celsius=self._number(gpu, "nvmlDeviceGetTemperatureThreshold", ctypes.c_uint, _SLOWDOWN),
            watts=None if milliwatts is None else milliwatts / 1e3,
            throttled=nvml.throttle_reasons(reasons),
            busy=self._busy(gpu),
            sm_mhz=self._number(gpu, "nvmlDeviceGetClockInfo", ctypes.c_uint, nvml.SM),
            memory_mhz=self._number(gpu, "nvmlDeviceGetClockInfo", ctypes.c_uint, nvml.MEMORY),
            memory_used_bytes=self._memory_used(gpu),
        )

    def _busy(self, gpu: _Gpu) -> float | None:
        percent = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory
        return None if self._call("nvmlDeviceGetUtilizationRates", gpu.handle, percent) else percent[0] / 100

    def _memory_used(self, gpu: _Gpu) -> float | None:
        figures = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        return None if self._call("nvmlDeviceGetMemoryInfo", gpu.handle, figures) else float(figures[2])

    def _errors(self, gpu: _Gpu, kind: int) -> int | None:
        found = self._number(gpu, "nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, kind, _VOLATILE)
        return None if found is None else int(found)

    def _rows(self, gpu: _Gpu) -> tuple[int, int, int, int] | None:
        """Rows that were remapped of corrected and of uncorrected errors, whether one is pending, and one failed."""
        found = tuple(ctypes.c_uint() for _ in range(4))
        if self._call("nvmlDeviceGetRemappedRows", gpu.handle, *map(ctypes.byref, found)):
            return None
        corrected, uncorrected, pending, failed = (each.value for each in found)
        return corrected, uncorrected, pending, failed

    def _number(
        self, gpu: _Gpu, function: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong], *which: int
    ) -> float | None:
        found = kind()
        failed = self._call(function, gpu.handle, *map(ctypes.c_uint, which), ctypes.byref(found))
        return None if failed else float(found.value)

    def _call(self, function: str, *arguments: Any) -> int:
        """What NVML answers: 0 where it succeeded; -1 where this NVML does not have the function."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return -1


def open_health(uuids: Sequence[str]) -> NvmlHealth | None:
    """The health of GPUs until this process ends; None without NVML."""
    library = nvml.open_library()
    return None if library is None else NvmlHealth(library, uuids)
