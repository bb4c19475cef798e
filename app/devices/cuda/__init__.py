"""CUDA through CuPy: the only importer of cupy. Runs in children, never in the service."""

from __future__ import annotations

from app.devices.cuda.backend import CudaBackend, discover, occupancy_blocks, profiled
from app.devices.cuda.ipc import Sharing
from app.devices.cuda.nvml_health import open_health
from app.devices.cuda.nvrtc import Cubin, compile_cubin, compile_ptx, load_nvrtc
from app.devices.cuda.pinned_memory import lock

__all__ = [
    "Cubin",
    "CudaBackend",
    "Sharing",
    "compile_cubin",
    "compile_ptx",
    "discover",
    "load_nvrtc",
    "lock",
    "occupancy_blocks",
    "open_health",
    "profiled",
]
