"""What can be compiled: source text and the space around it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kernels.kernel import Kernel
from kernels.naive import NAIVE
from kernels.register_tiled import REGISTER_TILED
from kernels.tiled import TILED

CATALOGUE: Final[Mapping[str, Kernel]] = MappingProxyType(
    {entry.name: entry for entry in (NAIVE, TILED, REGISTER_TILED)}
)


def kernel(name: str) -> Kernel:
    """Give a rung of the ladder by its name; raises KeyError where there is none."""
    return CATALOGUE[name]
