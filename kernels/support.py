"""Coverage: the classes of problems that a kernel computes on each architecture, and its instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.device import Device, Limits
from kernels.kernel import Kernel
from kernels.problem import Problem

# CUDA's, from the first with tensor cores; of those that are alike in all that kernels use, one.
ARCHITECTURES: Final = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_LIMITS: Final = Limits(threads=1024, shared_bytes=0, warp=32, sms=1, bandwidth=1.0, peak=1.0, peak64=1.0)


@dataclass(frozen=True, slots=True)
class Covered:
    """A dtype and precision on a platform: the architectures on which a kernel computes it, and its instructions.

    Empty if the platform has no architectures.
    """

    dtype: str
    precision: str
    platform: str
    architectures: tuple[str, ...]
    instructions: str


def made_up(platform: str, architecture: str) -> Device:
    """A device with a known architecture alone."""
    return Device("", platform, "", architecture, "", "", "", "", 0, _LIMITS)


def coverage(kernel: Kernel) -> list[Covered]:
    """All that a kernel covers, in the order of its dtypes, its precisions and its platforms."""
    found = []
    for dtype, precision in kernel.classes:
        problem = Problem(1, 1, 1, dtype=dtype, precision=precision)
        for platform in kernel.platforms:
            devices = [made_up(platform, name) for name in (ARCHITECTURES if platform == "cuda" else ("",))]
            names = [each.architecture for each in devices if kernel.class_refusal(problem, each) is None]
            if names:
                architectures = tuple(filter(None, names))
                found.append(Covered(dtype, precision, platform, architectures, kernel.instructions))
    return found
