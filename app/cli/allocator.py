"""How the C library's allocator keeps memory that the service has freed: little, whatever was asked for at once."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# Parameters of glibc's mallopt(3), each with the variable by which an operator sets it, and the service's value.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_CHOSEN: Final = (
    # An arena for each thread, up to eight a core, keeps what its thread freed from the others: hundreds of threads
    # that take turns spread few objects over much memory. The interpreter's lock leaves few of them at once in malloc.
    (_ARENA_MAX, "MALLOC_ARENA_MAX", 2),
    # A text of 30 MB that was freed would have glibc raise both limits, and keep as much from then on.
    (_MMAP_THRESHOLD, "MALLOC_MMAP_THRESHOLD_", 2**20),
    (_TRIM_THRESHOLD, "MALLOC_TRIM_THRESHOLD_", 2**22),
)


def keep_little() -> None:
    """Have freed memory go back to the system; before threads start. What the environment sets stands.

    Without glibc nothing is done.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return
    for parameter, variable, value in _CHOSEN:
        if variable not in os.environ and "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", ""):
            set_parameter(parameter, value)
