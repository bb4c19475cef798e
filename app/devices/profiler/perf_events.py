"""The processor's counters of another process of ours, by perf_event_open: user space alone.

Source: perf_event_open(2). The counters are opened from outside, since the filter of a worker's system calls has none.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import Final

_CALLS: Final = {"x86_64": 298, "aarch64": 241}
_SIZE: Final = 112
_TIMES: Final = 1 | 2  # read_format: for how long it was enabled, and ran
_FLAGS: Final = 1 | 2 | 1 << 5 | 1 << 6  # disabled, inherited, without kernel and hypervisor
_CLOSED_AT_EXEC: Final = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_HARDWARE, _SOFTWARE, _CACHE = 0, 1, 3
_L1_LOADS: Final = 0
_MISSED: Final = 1 << 16
_EVENTS: Final = {
    "instructions": (_HARDWARE, 1),
    "cycles": (_HARDWARE, 0),
    "last_level_accesses": (_HARDWARE, 2),
    "last_level_misses": (_HARDWARE, 3),
    "l1_accesses": (_CACHE, _L1_LOADS),
    "l1_misses": (_CACHE, _L1_LOADS | _MISSED),
    "task_nanoseconds": (_SOFTWARE, 1),
}
_LINE: Final = 64  # bytes of a cache line
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass
class EventCounts:
    """What was counted, by name, of a number of launches in so many seconds; `reason` is why events are missing."""

    counts: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def figures(self, launches: int, seconds: float) -> dict[str, float]:
        """The figures of one launch."""
        counts, told = self.counts, dict[str, float]()
        if "instructions" in counts:
            told["instructions"] = counts["instructions"] / launches
        if counts.get("cycles") and "instructions" in counts:
            told["instructions_per_cycle"] = counts["instructions"] / counts["cycles"]
        for name, level in (("l1_hit_percent", "l1"), ("last_level_hit_percent", "last_level")):
            if counts.get(f"{level}_accesses") and f"{level}_misses" in counts:
                told[name] = 100 * max(0.0, 1 - counts[f"{level}_misses"] / counts[f"{level}_accesses"])
        if "last_level_misses" in counts:
            told["dram_bytes"] = _LINE * counts["last_level_misses"] / launches
        if "task_nanoseconds" in counts and seconds > 0:
            told["busy_cores"] = counts["task_nanoseconds"] / 1e9 / seconds
        return told


@contextmanager
def counting(pid: int) -> Iterator[EventCounts]:
    """Count a process's events inside the block, those of threads that it starts too."""
    found, opened = EventCounts(), dict[str, list[int]]()
    try:
        for name, (kind, event) in _EVENTS.items():
            opened[name], reason = _opened(pid, kind, event)
            if reason is not None and found.reason is None:
                found.reason = f"the kernel counts no {name.replace('_', ' ')} here (perf_event_open: {reason})"
        _all(opened, _ENABLE)
        yield found
        _all(opened, _DISABLE)
        found.counts |= {name: sum(map(_read, files)) for name, files in opened.items() if files}
    finally:
        for file in (file for files in opened.values() for file in files):
            os.close(file)


def _opened(pid: int, kind: int, event: int) -> tuple[list[int], str | None]:
    """A counter for each thread of a process, or the reason why there is none."""
    call = _CALLS.get(platform.machine())
    if call is None:
        return [], f"unknown on {platform.machine()}"
    attributes = bytearray(_SIZE)
    struct.pack_into("=IIQ", attributes, 0, kind, _SIZE, event)
    struct.pack_into("=QQ", attributes, 32, _TIMES, _FLAGS)
    given, files = (ctypes.c_char * _SIZE).from_buffer(attributes), list[int]()
    for thread in _threads(pid):
        file = _LIBC.syscall(call, given, thread, -1, -1, _CLOSED_AT_EXEC)
        if file >= 0:
            files.append(file)
    return files, None if files else os.strerror(ctypes.get_errno())


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _all(opened: Mapping[str, list[int]], request: int) -> None:
    for file in (file for files in opened.values() for file in files):
        ioctl(file, request, 0)


def _read(file: int) -> float:
    """A count, as it would be had the counter run all the time that it was enabled."""
    count, enabled, ran = struct.unpack("=3Q", os.read(file, 24))
    return float(count * enabled / ran) if ran else 0.0
