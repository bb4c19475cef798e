"""How the C library's allocator keeps memory that a process has freed: little, whatever was asked for at once."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

# Parameters of glibc's mallopt(3), each with the variable by which an operator sets it, and the service's value.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_CHOSEN: Final = (
    # An arena for each thread, up to eight a core, keeps what its thread freed from the others: hundreds of threads
    # that take turns spread few objects over much memory. The interpreter's lock leaves few of them at once in malloc.
    (_ARENA_MAX, "MALLOC_ARENA_MAX", 2),
    # A text of 30 MB that was freed would have glibc raise both limits, and keep as much from then on. Arrays of a MiB,
    # as certificates have, are below both: mapped anew each, all their pages would fault each time.
    (_MMAP_THRESHOLD, "MALLOC_MMAP_THRESHOLD_", 2**22),
    (_TRIM_THRESHOLD, "MALLOC_TRIM_THRESHOLD_", 2**24),
)
_EVERY: Final = 20.0  # seconds: as long the service may keep what a burst has freed


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


def keep_giving_back(closing: threading.Event) -> None:
    """Give what was freed back to the system, every so often, from a thread of its own that ends with the process.

    By itself glibc gives back the end of a heap alone: one small object after the memory of a burst keeps all of it.
    """
    threading.Thread(target=_work, args=(closing,), name="allocator", daemon=True).start()


def give_back() -> None:
    """Give the free pages of all heaps back: some milliseconds, during which other threads run."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _work(closing: threading.Event) -> None:
    while not closing.wait(_EVERY):
        give_back()
