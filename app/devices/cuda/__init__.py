"""CUDA through CuPy: the only importer of cupy. Runs in children, never in the service."""

from __future__ import annotations

from app.devices.cuda.backend import CudaBackend, discover, occupancy_blocks
from app.devices.cuda.cubin import Cubin, compile_cubin

__all__ = ["Cubin", "CudaBackend", "compile_cubin", "discover", "occupancy_blocks"]
