"""Launches a function with its arguments, attributes and shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from cupy.cuda import runtime

from app.devices.backend import Program, Workspace
from app.devices.cuda.tensor_maps import encoded
from kernels.launch import OPERANDS, Launch

_UNASKED: Final = 48 * 1024  # bytes of shared memory that every launch may have


def queue(program: Program, launch: Launch, addresses: Sequence[int]) -> None:
    """Queue one launch on the addresses of A, B, C and the workspace."""
    problem = launch.problem
    a, b, c, workspace = map(np.uint64, addresses)
    sizes = map(np.int64, (problem.m, problem.n, problem.k))
    more = (workspace, *map(np.int64, launch.scalars)) if launch.scalars else ()
    maps = (encoded(each, addresses[OPERANDS.index(each.operand)]) for each in launch.maps)
    allow_dynamic_smem(program, launch.dynamic_smem_bytes)
    program.handle((launch.grid,), launch.block, (a, b, c, *sizes, *more, *maps), shared_mem=launch.dynamic_smem_bytes)


def verdict(launch: Launch, workspace: Workspace) -> int:
    """The decline flags of a finished launch; 0 if its product is valid."""
    lent = None if launch.verdict_at is None else workspace.lend(launch.workspace_bytes)
    if lent is None or launch.verdict_at is None:
        return 0
    word = np.zeros(1, np.uint32)
    at = int(lent.handle.ptr) + lent.offset + launch.verdict_at
    runtime.memcpy(word.ctypes.data, at, word.nbytes, runtime.memcpyDeviceToHost)
    return int(word[0])


def allow_dynamic_smem(program: Program, dynamic_smem_bytes: int) -> None:
    """Set the function's maximum of dynamic shared memory, which CUDA requires above 48 KiB."""
    if dynamic_smem_bytes > _UNASKED:
        program.handle.max_dynamic_shared_size_bytes = dynamic_smem_bytes
