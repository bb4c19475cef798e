"""What the faults' tests run in children that hold a device."""

from __future__ import annotations

import resource
from pathlib import Path

from app.devices.fleet import WorkerContext
from app.devices.process import WorkerLink

PAGE = resource.getpagesize()


def limit_memory(_: WorkerContext, __: WorkerLink, more: int | None) -> None:
    """Let the process map `more` bytes beside what it has, or as many as it will."""
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard if more is None else mapped + more, hard))


def hold_memory(held: WorkerContext, _: WorkerLink, rest: int | None) -> None:
    """Take the device's memory but for `rest` bytes, or give it back."""
    held.memory.pop("hog", None)
    if rest is not None:
        held.memory["hog"] = held.backend.allocate(held.backend.free_bytes() - rest)
