"""How a function is launched: its arguments in order, and its shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from app.devices.base import Program
from kernels.kernel import Launch

_UNASKED: Final = 48 * 1024  # bytes of shared memory that every launch may have


def queue(program: Program, launch: Launch, addresses: Sequence[int]) -> None:
    """Queue one launch on the addresses of A, B, C and scratch."""
    problem = launch.problem
    a, b, c, scratch = map(np.uint64, addresses)
    sizes = map(np.int64, (problem.m, problem.n, problem.k))
    more = (scratch, *map(np.int64, launch.numbers)) if launch.numbers else ()
    give_room(program, launch.pool_bytes)
    program.handle((launch.grid,), launch.block, (a, b, c, *sizes, *more), shared_mem=launch.pool_bytes)


def give_room(program: Program, pool_bytes: int) -> None:
    """Let the function be launched with so much shared memory: past 48 KiB CUDA wants to be asked."""
    if pool_bytes > _UNASKED:
        program.handle.max_dynamic_shared_size_bytes = pool_bytes
