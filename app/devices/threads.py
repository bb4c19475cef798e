"""The other threads of this process: pools of PoCL and of a BLAS share its cores, and are to compute in turn."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id
from typing import Final

# Workers of a BLAS go on spinning for a while after a product, on cores that the next kernel needs: OpenBLAS's for 2^26
# cycles of the processor's clock, a few hundredths of a second, which this makes 2^20; MKL's for 200 ms, here 1.
PARKED: Final = {"OPENBLAS_THREAD_TIMEOUT": "20", "KMP_BLOCKTIME": "1"}
HEARTBEAT: Final = "heartbeat"  # the name of a worker's thread that computes for a few microseconds at a time
_LIMIT: Final = 0.25  # seconds: whoever still runs then is not about to stop
_GLANCES: Final = (1e-4, 1e-2)  # seconds between looks: the first, and at most
_RUNNING: Final = (b"R", b"D")  # on a core or waiting for one, or for a page


def wait_until_idle(limit: float = _LIMIT) -> bool:
    """Wait until no other thread of this process runs, at most `seconds`; False if one still does."""
    until, glance = time.monotonic() + limit, _GLANCES[0]
    while any(_state(thread) in _RUNNING for thread in _others()):
        if time.monotonic() > until:
            return False
        time.sleep(glance)
        glance = min(2 * glance, _GLANCES[1])
    return True


def workers(call: Callable[[], object]) -> list[int]:
    """The other threads of this process that computed while a call ran, but for the one that writes heartbeats."""
    before = {thread: _nanoseconds(thread) for thread in _others()}
    call()
    beating = {thread.native_id for thread in threading.enumerate() if thread.name == HEARTBEAT}
    return [one for one in _others() if one not in beating and _nanoseconds(one) > before.get(one, 0)]


def spread(threads: Sequence[int]) -> None:
    """Give every thread a core of its own, as far as there are enough, and none the first that this process may use.

    Two that wait for each other on one core would take turns of milliseconds.
    """
    cores = sorted(os.sched_getaffinity(0))
    for number, thread in enumerate(threads, 1):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {cores[number % len(cores)]})


@contextmanager
def on_first_core() -> Iterator[None]:
    """Keep the calling thread on the first core that it may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _others() -> list[int]:
    own = get_native_id()
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir() if int(entry.name) != own]


def _state(thread: int) -> bytes:
    """The state letter of a thread; empty if it has ended."""
    return _read(thread, "stat").rpartition(b")")[2].strip()[:1]


def _nanoseconds(thread: int) -> int:
    """The CPU time of a thread; 0 if it has ended."""
    return int((_read(thread, "schedstat").split() or [b"0"])[0])


def _read(thread: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/self/task/{thread}/{name}").read_bytes()
    return b""
