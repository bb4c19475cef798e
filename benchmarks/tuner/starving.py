"""What the faults' benchmark runs in a device's children, which cannot import a script's own functions."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from app.devices.backend import Buffer, WorkerContext
from app.devices.process import WorkerLink


@dataclass
class Hog:
    """What keeps a device's memory from others."""

    buffer: Buffer | None = None


def limit_memory(_: WorkerContext, __: WorkerLink, more: int | None) -> None:
    """Let the process map `more` bytes beside what it has, or as many as it will."""
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard if more is None else mapped + more, hard))


def hold_memory(held: WorkerContext, _: WorkerLink, rest: int | None) -> None:
    """Take the device's memory but for `rest` bytes, or give it back."""
    held.state(Hog).buffer = None
    if rest is not None:
        held.state(Hog).buffer = held.backend.allocate(held.backend.free_bytes() - rest)
