"""GPUs that are not here, by their architecture: what a config's rules need to know of one.

The limits are those of CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; SMs, clocks and
bandwidth are those of the data centre's model of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.errors import Invalid
from kernels.device import Device, Limits

_KIB: Final = 1024


def _limits(sms: int, shared: int, threads_per_sm: int, blocks: int, speeds: tuple[float, float, float]) -> Limits:
    """Limits by SMs, KiB of shared memory of an SM, threads and blocks of an SM, and bandwidth, peak and peak64."""
    bandwidth, peak, peak64 = speeds
    return Limits(
        threads=1024,
        shared_bytes=(shared - 1) * _KIB,
        warp=32,
        sms=sms,
        bandwidth=bandwidth,
        peak=peak,
        peak64=peak64,
        registers_per_sm=65536,
        registers_per_thread=255,
        shared_bytes_per_sm=shared * _KIB,
        shared_bytes_reserved=_KIB,
        threads_per_sm=threads_per_sm,
        blocks_per_sm=blocks,
        cache_bytes=50 * 2**20,
    )


_GPUS: Final[Mapping[str, tuple[str, Limits]]] = MappingProxyType(
    {
        "sm_80": ("NVIDIA A100", _limits(108, 164, 2048, 32, (1.9e12, 19.5e12, 9.7e12))),
        "sm_86": ("NVIDIA A10", _limits(72, 100, 1536, 16, (0.6e12, 31.2e12, 0.49e12))),
        "sm_89": ("NVIDIA L40S", _limits(142, 100, 1536, 24, (0.86e12, 91.6e12, 1.4e12))),
        "sm_90": ("NVIDIA H200", _limits(132, 228, 2048, 32, (4.8e12, 66.9e12, 33.5e12))),
    }
)


def device_of(architecture: str) -> Device:
    """A GPU of an architecture; raises Invalid for one that is not known."""
    if architecture not in _GPUS:
        raise Invalid(f"an architecture is one of {', '.join(_GPUS)}, got {architecture}", member="arch")
    name, limits = _GPUS[architecture]
    return Device(f"cuda:{architecture}", "cuda", name, architecture, "", "", "", "", 2**36, limits)
