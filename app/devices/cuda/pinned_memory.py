"""Page-locks the slab, so that copies need no staging buffer.

CUDA Programming Guide, Page-Locked Host Memory; cudaHostRegister.
"""

from __future__ import annotations

import os

import numpy as np
from cupy.cuda import runtime

_PORTABLE = 1  # cudaHostRegisterPortable: for every context of this process


def lock(fd: int, memory: memoryview) -> str | None:
    """Page-lock the mapping of a memory file; returns the reason if that fails.

    Copies of memory that is not locked are only slower. All pages of the file are committed. The memory must stay
    mapped while it is locked: after a mere munmap cudaMalloc fails with cudaErrorAlreadyMapped.
    """
    try:
        os.posix_fallocate(fd, 0, len(memory))  # locking touches every page: one that cannot be had would be fatal
        runtime.hostRegister(np.frombuffer(memory, np.uint8).ctypes.data, len(memory), _PORTABLE)
    except (OSError, runtime.CUDARuntimeError) as error:
        return f"{len(memory)} bytes of host memory cannot be locked, copies will be slower: {error}"
    return None
