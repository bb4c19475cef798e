"""What a service tells of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Covered:
    """A dtype and precision on a platform: the architectures on which a kernel computes it by the same instructions."""

    dtype: str
    precision: str
    platform: str
    architectures: tuple[str, ...] = ()
    instructions: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that the service can tune: its parameters with their values, and what it covers."""

    name: str
    summary: str = ""
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    shapes: str = ""
    covers: tuple[Covered, ...] = ()
