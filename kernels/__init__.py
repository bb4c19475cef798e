"""The kernel library: sources, their spaces and plans. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kernels.batched import BATCHED
from kernels.direct_double import DIRECT_DOUBLE
from kernels.direct_tensor import DIRECT_TENSOR
from kernels.double_hopper import DOUBLE_HOPPER
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.gemv import GEMV
from kernels.hopper import HOPPER
from kernels.kernel import Kernel
from kernels.lessons import LESSONS
from kernels.naive import NAIVE
from kernels.outer import OUTER
from kernels.pipelined import PIPELINED
from kernels.rank_k import RANK_K
from kernels.register_tiled import REGISTER_TILED
from kernels.skinny import SKINNY
from kernels.tall import TALL
from kernels.tensor_core import TENSOR_CORE
from kernels.tiled import TILED
from kernels.wmma import WMMA

_LADDER: Final = (
    *(NAIVE, TILED, REGISTER_TILED, PIPELINED, SKINNY, BATCHED, TALL, DOUBLE_TENSOR),
    *(DOUBLE_HOPPER, WMMA, TENSOR_CORE, HOPPER, DIRECT_TENSOR, DIRECT_DOUBLE, RANK_K, GEMV, OUTER),
)
# What is tuned and serves, and this with the lessons, which are asked for by name alone.
CATALOGUE: Final[Mapping[str, Kernel]] = MappingProxyType({entry.name: entry for entry in _LADDER})
KERNELS: Final[Mapping[str, Kernel]] = MappingProxyType(
    {**CATALOGUE, **{lesson.kernel.name: lesson.kernel for lesson in LESSONS}}
)


def kernel(name: str) -> Kernel:
    """The kernel of a name; raises KeyError if there is none."""
    return KERNELS[name]
