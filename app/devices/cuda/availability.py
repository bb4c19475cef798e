"""Which GPUs can be used, and one sentence why another cannot."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from app.devices.cuda import nvml
from app.devices.cuda.properties import Software, dotted, identify
from app.errors import NoDevice
from kernels.device import Device

OLDEST: Final = (7, 0)  # compute capability: the kernels use Volta's independent thread scheduling
# The oldest driver of a CUDA major version on Linux (CUDA Toolkit Release Notes, "CUDA Driver").
_DRIVERS: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# cudaError_t (CUDA Runtime API, "Data types used by CUDA Runtime").
OUT_OF_MEMORY, INSUFFICIENT_DRIVER, UNAVAILABLE, NO_GPU = 2, 35, 46, 100
_FABRIC, _MISMATCH, _NO_COMPATIBILITY = 802, 803, 804
_PROHIBITED, EXCLUSIVE = 2, 3  # cudaComputeMode


def usable(
    runtime: Any, which: str, versions: Callable[[], Software], measure: Callable[[int], float]
) -> tuple[list[Device], list[str]]:
    """The usable devices, and a reason for each other; `which` is "cuda" or one id.

    `measure` gives a device's bandwidth if the driver does not. Raises NoDevice if CUDA shows none at all.
    """
    try:
        count = runtime.getDeviceCount()
        software = versions()
    except runtime.CUDARuntimeError as error:
        raise NoDevice(explanation(runtime, error)) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise NoDevice(
            f"NVRTC, CUDA's compiler, cannot be loaded (install nvidia-cuda-nvrtc-cu12): {_first(error)}"
        ) from error
    devices, reasons = list[Device](), list[str]()
    for number in [number for number in range(count) if which in {"cuda", f"cuda:{number}"}]:
        reason = _too_old(runtime, number)
        if reason is None:
            try:
                devices.append(identify(runtime, number, software, partial(measure, number)))
            except runtime.CUDARuntimeError as error:
                reason = f"cuda:{number}: {explanation(runtime, error, number)}"
        if reason is not None:
            reasons.append(reason)
    return devices, reasons


def explanation(runtime: Any, error: Exception, number: int | None = None) -> str:
    """The meaning of an error of CUDA's initialisation, and the remedy; CUDA's own message for an unknown error."""
    status = getattr(error, "status", None)
    told = {
        INSUFFICIENT_DRIVER: lambda: _old_driver(runtime),
        NO_GPU: _no_gpu,
        OUT_OF_MEMORY: lambda: _full(runtime, number),
        UNAVAILABLE: lambda: _occupied(runtime, number),
        _FABRIC: lambda: "the GPUs wait for the fabric manager: start nvidia-fabricmanager of the driver's version",
        _MISMATCH: _mismatch,
        _NO_COMPATIBILITY: _mismatch,
    }
    return told[status]() if status in told else f"CUDA does not start: {_first(error)}"


def unsupported(architecture: str, compiler: str, known: Sequence[int]) -> str | None:
    """Why a compiler makes nothing for an architecture such as sm_70, or None; none known: it does not say."""
    number = int(architecture.removeprefix("sm_"))
    if not known or number in known:
        return None
    if number < min(known):
        return f"{compiler} compiles for sm_{min(known)} and newer: {architecture} needs CUDA 12's (cupy-cuda12x)"
    return f"{compiler} compiles up to sm_{max(known)}: {architecture} needs a newer one"


def compiled_for(library: ctypes.CDLL) -> list[int]:
    """The architectures that an NVRTC compiles for, such as 90 (NVRTC, nvrtcGetSupportedArchs); empty if unsaid."""
    count = ctypes.c_int()
    try:
        if library.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
            return []
        found = (ctypes.c_int * count.value)()
        return [] if library.nvrtcGetSupportedArchs(found) else list(found)
    except AttributeError:
        return []


def _too_old(runtime: Any, number: int) -> str | None:
    try:
        properties = runtime.getDeviceProperties(number)
    except runtime.CUDARuntimeError as error:
        return f"cuda:{number}: {explanation(runtime, error, number)}"
    capability = int(properties["major"]), int(properties["minor"])
    if capability >= OLDEST:
        return None
    name = properties["name"].decode(errors="replace").strip("\0 ")
    return (
        f"cuda:{number} ({name}) is of compute capability {capability[0]}.{capability[1]}; "
        f"the kernels need {OLDEST[0]}.{OLDEST[1]} (Volta) or newer"
    )


def _old_driver(runtime: Any) -> str:
    needed = int(runtime.runtimeGetVersion())
    has, installed = int(runtime.driverGetVersion()), nvml.driver_version()
    what = f"NVIDIA driver {installed}" if installed else "NVIDIA driver"
    oldest = _DRIVERS.get(needed // 1000)
    return (
        f"the {what} supports CUDA up to {dotted(has)}, and CuPy here is of CUDA {dotted(needed)}: "
        f"install driver {oldest} or newer"
        if oldest
        else f"the {what} is older than CUDA {dotted(needed)} needs: install a newer driver"
    )


def _no_gpu() -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"the driver shows no GPU: CUDA_VISIBLE_DEVICES is {hidden!r}"
    if nvml.count():
        return (
            f"the driver has {nvml.count()} GPU(s), and CUDA may use none: where MIG is on, make a compute instance "
            "(nvidia-smi mig -cgi ... -C); in a container, ask for a GPU (--gpus all)"
        )
    return "the NVIDIA driver is installed and shows no GPU (nvidia-smi -L); in a container, ask for one (--gpus all)"


def _mismatch() -> str:
    return "the NVIDIA driver's kernel module and its libraries are of different versions: reboot, or reload the module"


def _full(runtime: Any, number: int | None) -> str:
    where = "the GPU" if number is None else f"cuda:{number}"
    used = nvml.memory(runtime.deviceGetPCIBusId(number)) if number is not None else None
    figures = f" ({used[0] >> 20} MiB of {used[1] >> 20} MiB are free)" if used else ""
    return f"{where} has no memory left for CUDA's own context{figures}: end what fills it (nvidia-smi names it)"


def _occupied(runtime: Any, number: int | None) -> str:
    where = "the GPU" if number is None else f"cuda:{number}"
    mode = _compute_mode(runtime, number)
    if mode == _PROHIBITED:
        return f"{where} is in compute mode Prohibited: nobody may use it (nvidia-smi -q -d COMPUTE)"
    if mode == EXCLUSIVE:
        return f"{where} is in compute mode Exclusive_Process, and another process has it (nvidia-smi names it)"
    return f"{where} is busy or unavailable: another process has it, or it must be reset (nvidia-smi tells)"


def _compute_mode(runtime: Any, number: int | None) -> int | None:
    try:
        return int(runtime.deviceGetAttribute(runtime.cudaDevAttrComputeMode, number or 0))
    except runtime.CUDARuntimeError:
        return None


def _first(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
