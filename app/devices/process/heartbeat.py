"""Heartbeats: a thread of the worker process writes them, the parent looks for them and tells a hang from work.

A thread that computes with the interpreter's lock starves the heartbeat for as long as it does, as a compiler may for
minutes. So a process without one is looked at more closely: it hangs if it is stopped, or if none of its threads and
descendants took any processor time for a second. What computes without an end is left to the deadline of its phase.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from app.devices.threads import HEARTBEAT

INTERVAL: Final = 0.25  # seconds between two beats, and between two looks
_MISSED: Final = 8  # looks in turn without a beat: counted, so that a host that was suspended condemns nothing
_QUIET: Final = 4  # looks in turn before which the process did nothing
_EARLY: Final = 2  # looks after which a stopped process is told of
_STOPPED: Final = {"T", "t"}
_COMM_END: Final = ")"  # a process's name may have blanks, and ends at the last of these


class Beats(Protocol):
    """Where heartbeats are written: their number, and the thread that writes them."""

    @property
    def beats(self) -> int:
        """How many there have been."""
        ...

    @property
    def beating_thread(self) -> int:
        """The system's number of the thread that writes them; 0 before the first."""
        ...

    def beat(self) -> None:
        """Write one, as this thread."""
        ...


def start(page: Beats) -> None:
    """Write heartbeats from a thread of this process until it ends."""

    def run() -> None:
        while True:
            page.beat()
            time.sleep(INTERVAL)

    threading.Thread(target=run, name=HEARTBEAT, daemon=True).start()


class Hang(NamedTuple):
    """Why a process is killed that did not fail: for a cause that `is_outside` of what it runs, or as that hangs."""

    is_outside: bool
    reason: str


class HeartbeatMonitor:
    """Looks at a process every INTERVAL; `is_awake` says that its setup is over, during which it may sleep."""

    def __init__(self, pid: int, page: Beats) -> None:
        self._pid, self._page = pid, page
        self._beats, self._missed = page.beats, 0
        self._ticks: int | None = None  # its processor time at the last look
        self._quiet = 0
        self.is_awake = self.is_stopped = False

    def look(self) -> Hang | None:
        """Look once: how the process hangs, or None."""
        beats = self._page.beats
        if beats != self._beats:
            self._beats, self._missed, self.is_stopped = beats, 0, False
            self._ticks, self._quiet = None, 0
            return None
        self._missed += 1
        self.is_stopped = self._missed >= _EARLY and _state(self._pid) in _STOPPED
        self._count_quiet()
        if self._missed < _MISSED:
            return None
        if self.is_stopped:
            return Hang(is_outside=True, reason=f"it was stopped for {self._missed * INTERVAL:g} s")
        if self.is_awake and self._quiet >= _QUIET:
            return Hang(is_outside=False, reason=f"it did nothing for {self._quiet * INTERVAL:g} s")
        return None

    def _count_quiet(self) -> None:
        """Count the looks in turn before which the process did nothing at all."""
        if self._missed < _MISSED - _QUIET:
            return
        ticks, is_running = _activity(self._pid, self._page.beating_thread)
        self._quiet = 0 if is_running or ticks != self._ticks else self._quiet + 1
        self._ticks = ticks


def _activity(pid: int, beating: int) -> tuple[int, bool]:
    """Processor time of a process's threads, but the heartbeat's, and of its descendants; whether one runs now."""
    ticks, is_running = 0, False
    for thread in _threads(pid):
        fields = _fields(pid, thread)
        is_running |= fields[:1] == ["R"]
        if thread != beating:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that were waited for
        for child in _children(pid, thread):
            more, runs = _activity(child, 0)
            ticks, is_running = ticks + more, is_running or runs
    return ticks, is_running


def _state(pid: int) -> str:
    """The state letter of a process's first thread; empty if it has ended."""
    return "".join(_fields(pid, pid)[:1])


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - names alone
    return []


def _fields(pid: int, thread: int) -> list[str]:
    """What /proc says of a thread, from its state on; empty if it has ended."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{thread}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(_COMM_END)[2].split()
    return []


def _children(pid: int, thread: int) -> Iterator[int]:
    """The processes that a thread started; none where the kernel does not tell."""
    with suppress(OSError):
        yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split())
