"""NVIDIA's management library by ctypes: the driver's version and a GPU's UUID, or nothing where it is not there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LENGTH: Final = 96  # NVML's own buffers are 80 and 96 characters


def driver_version() -> str:
    """The driver's version such as 580.65.06; empty where NVML does not say."""
    with _opened() as library:
        return _text(library, "nvmlSystemGetDriverVersion") if library else ""


def uuid(bus: str) -> str:
    """The UUID of the GPU at a PCI address such as 0000:3B:00.0; empty where NVML does not say."""
    with _opened() as library:
        handle = ctypes.c_void_p()
        if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)):
            return ""
        return _text(library, "nvmlDeviceGetUUID", handle)


def _text(library: ctypes.CDLL, function: str, *arguments: object) -> str:
    buffer = ctypes.create_string_buffer(_LENGTH)
    failed = getattr(library, function)(*arguments, buffer, ctypes.c_uint(_LENGTH))
    return "" if failed else buffer.value.decode(errors="replace")


@contextmanager
def _opened() -> Iterator[ctypes.CDLL | None]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        failed = library.nvmlInit_v2()
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield None if failed else library
    finally:
        library.nvmlShutdown()
