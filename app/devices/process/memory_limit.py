"""RLIMIT_DATA for one piece of work in a worker."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

GIB: Final = 2**30
_MOST: Final = 4 * GIB  # more than ten times what compiling any kernel of ours takes
_LEAST: Final = 1 * GIB
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")  # a container's own, where it is given one


def compiler_memory() -> int:
    """The memory limit of a compiler: a few times its need, and at most half of the host's available memory."""
    has = [_MOST * 2]
    with suppress(OSError, StopIteration, ValueError), Path("/proc/meminfo").open(encoding="ascii") as lines:
        has.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        has.append(int(_CGROUP.read_text(encoding="ascii")))
    return max(_LEAST, min(has) // 2)


class MemoryLimit:
    """The limit on a process's private memory (RLIMIT_DATA), lowered for a phase and restored after it.

    Shared memory, such as the slab, and reserved addresses do not count. When an allocation is refused, LLVM ends its
    process, NVRTC its compilation, and Python raises MemoryError.
    """

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        self._peak: int | None = None  # a file that is kept open

    def prepare(self) -> None:
        """Open what is needed, for a process that is to enter a sandbox, which lets nobody write to /proc."""
        with suppress(OSError):
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)

    def lower(self, nbytes: int) -> int:
        """Allow `nbytes` more than are in use; returns the memory in use."""
        self.lift()
        self._before = before = resource.getrlimit(resource.RLIMIT_DATA)
        with suppress(OSError):
            if self._peak is not None:
                os.write(self._peak, b"5")  # the peak starts again from here
        resident, data = _taken()
        least = min([data + nbytes, *(each for each in before if each != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_DATA, (least, before[1]))
        return resident

    def lift(self) -> None:
        """Restore the limit."""
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
        self._before = None


def _taken() -> tuple[int, int]:
    """Bytes of memory in use, and of private memory as the limit counts it."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * _PAGE, int(fields[5]) * _PAGE
