"""What a server and its children cost while they work: processor time, and memory that is not shared."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """Seconds of processor time in all, and the most bytes that were taken beyond those at the start."""

    cpu: float = 0.0
    growth: int = 0


class Watched:
    """A process with its children."""

    def __init__(self, pid: int) -> None:
        self.cost = Cost()
        self._pids = [pid, *children(pid)]
        self._before = self._memory()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block in."""
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,))
        before = self._cpu()
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            self.cost.cpu += self._cpu() - before

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.01):
            self.cost.growth = max(self.cost.growth, self._memory() - self._before)

    def _cpu(self) -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._pids]
        return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS

    def _memory(self) -> int:
        return sum(anonymous(pid) for pid in self._pids)


def anonymous(pid: int) -> int:
    """Bytes of a process that are its own: the slab is shared memory, and not among them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
