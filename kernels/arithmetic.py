"""Instructions: the paths by which products reach an arithmetic unit, and how fast a device's units are by each."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.problem import Problem

FMA: Final = "fma"  # fused multiply-adds of single threads
WMMA: Final = "wmma"  # a warp's tiles of 16 x 16 x 16 (PTX ISA, "wmma")
MMA: Final = "mma.sync"  # a warp's products of tiles in registers (PTX ISA, "mma")
WGMMA: Final = "wgmma"  # products of tiles in shared memory by four warps at once (PTX ISA, "wgmma")
DMMA: Final = "dmma"  # a warp's products of float64 tiles in registers (PTX ISA, "mma" with f64)
PATHS: Final = (FMA, WMMA, MMA, WGMMA, DMMA)
# Of the tensor cores' peak: what a warp's own instructions reach where a group of four warps has one of its own.
OF_WARPS: Final = {"sm_90": 0.65}
# Products on tensor cores that one product in float32's accuracy takes.
PARTS: Final = 3


def fma_peak(problem: Problem, device: Device) -> float:
    """Flop/s of fused multiply-adds: 16-bit elements are converted to float32 first."""
    return device.limits.peak64 if problem.dtype == "float64" else device.limits.peak


def tensor_peak(problem: Problem, device: Device) -> float:
    """Flop/s of a problem's class on tensor cores, with three float16 products for an emulated one; 0 without them."""
    limits = device.limits
    if problem.precision == "emulated":
        return limits.tensor_float16 / PARTS if problem.dtype == "float32" else 0.0
    if problem.dtype == "float32":
        return limits.tensor_tf32 if problem.precision == "tf32" else 0.0
    by_dtype = {
        "float16": limits.tensor_float16,
        "bfloat16": limits.tensor_bfloat16,
        "float64": limits.tensor_float64,
    }
    return by_dtype[problem.dtype]


def peak(problem: Problem, device: Device) -> float:
    """Flop/s of the fastest units that may compute a problem's class."""
    return max(tensor_peak(problem, device), fma_peak(problem, device))


def peak_by(path: str, problem: Problem, device: Device) -> float:
    """Flop/s by an instruction path; FMAs' if the device has no units for it."""
    if path == FMA:
        return fma_peak(problem, device)
    fraction = OF_WARPS.get(device.architecture, 1.0) if path in (WMMA, MMA) else 1.0
    return fraction * tensor_peak(problem, device) or fma_peak(problem, device)
