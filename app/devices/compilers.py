"""Compilers in processes that hold no device: a few of them, started when needed, each killable."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from app.devices import inside
from app.devices.process import Child
from kernels.kernel import Build


class Compilers:
    """A pool of compiler processes, one core left to the others; each is started at its first use."""

    def __init__(self, cache_dir: Path) -> None:
        count = max(1, len(os.sched_getaffinity(0)) - 1)
        self._cache_dir = cache_dir
        self._places = threading.Semaphore(count)
        self._children = [Child(f"compiler {number}", inside.compiler, ()) for number in range(count)]
        self._idle = self._children.copy()

    def compile(self, build: Build, architecture: str, deadline: float) -> None:
        """Put a build's binary into the cache; raises CompileFailed, ChildTimedOut after `deadline` s, ChildDied."""
        with self._places:
            child = self._idle.pop()
            try:
                child.call(inside.compile_cubin, build, architecture, self._cache_dir, deadline, deadline=deadline)
            finally:
                self._idle.append(child)

    def close(self) -> None:
        """End every compiler."""
        for child in self._children:
            child.close()
