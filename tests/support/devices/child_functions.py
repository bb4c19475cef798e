"""What the tests' children run: functions of a module that a child can import, and quickly."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from app.devices.process import WorkerLink
from app.errors import LaunchFailed, NoDevice, NoRoom


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def hold(state: Any) -> Any:
    return state


def refuse() -> None:
    raise NoDevice("nothing is plugged in")


def hang_at_start() -> None:
    time.sleep(60)


def die_at_start() -> None:
    os._exit(7)


def echo(state: Any, _: WorkerLink, value: Any) -> tuple[Any, Any]:
    return state, value


def pid(_: Any, __: WorkerLink) -> int:
    return os.getpid()


def variable(_: Any, __: WorkerLink, name: str) -> str | None:
    return os.environ.get(name)


def imported(_: Any, __: WorkerLink) -> list[str]:
    return sorted(sys.modules)


def speak(_: Any, __: WorkerLink, text: str) -> None:
    print(text, flush=True)


def refuse_politely(_: Any, __: WorkerLink) -> None:
    raise NoRoom("no room for that", limit=1, size=2)


def fail_for_good(_: Any, __: WorkerLink) -> None:
    raise LaunchFailed("an illegal address", fatal=True)


def break_down(_: Any, __: WorkerLink) -> None:
    raise ZeroDivisionError("a bug of ours")


def answer_with_the_unspeakable(_: Any, __: WorkerLink) -> Any:
    return threading.Lock()


def exit_at_once(_: Any, __: WorkerLink) -> None:
    os._exit(3)


def sleep(_: Any, __: WorkerLink, seconds: float) -> None:
    time.sleep(seconds)


def until_waited_for(_: Any, link: WorkerLink, seconds: float) -> bool:
    """Work until another call waits, at most for so long; whether one does."""
    until = time.monotonic() + seconds
    while not link.is_waited_for and time.monotonic() < until:
        time.sleep(0.005)
    return link.is_waited_for


def two_stages(_: Any, link: WorkerLink, first: float, second: float) -> str:
    link.phase("compile", 5.0)
    time.sleep(first)
    link.phase("verify", 0.2)
    time.sleep(second)
    return "done"


def lease_then_linger(_: Any, link: WorkerLink, leased: float, lingering: float) -> None:
    """A phase of 0.5 s that leases the device in its middle."""
    link.phase("measure", 0.5)
    with link.lease(5.0):
        time.sleep(leased)
    time.sleep(lingering)


def outlive_the_lease(_: Any, link: WorkerLink) -> None:
    link.phase("measure", 30.0)
    with link.lease(0.2):
        time.sleep(30)


def lease_twice(_: Any, link: WorkerLink) -> None:
    with link.lease(1.0), link.lease(1.0):
        pass


def sum_of_more(_: Any, link: WorkerLink) -> int:
    """Ask for numbers, with the device in hand, until there are no more; their sum."""
    total = 0
    with link.lease(5.0):
        while found := link.more():
            total += sum(found)
    return total


def launch_and_offer(_: Any, link: WorkerLink, launches: int, seconds: float, renewed: float) -> float:
    """Make launches of some seconds, offer the device between them; gives the longest that one offer took."""
    longest = 0.0
    with link.lease(renewed):
        for _number in range(launches):
            time.sleep(seconds)
            before = time.monotonic()
            link.offer(renewed)
            longest = max(longest, time.monotonic() - before)
    return longest


def lease_once(_: Any, link: WorkerLink, seconds: float = 0.0) -> float:
    """Gives how long the device was waited for."""
    before = time.monotonic()
    with link.lease(5.0):
        waited = time.monotonic() - before
        time.sleep(seconds)
    return waited


def compile_then_lease(_: Any, link: WorkerLink, seconds: float) -> str:
    """Lease the device for what comes last, after a phase that does not need it."""
    link.phase("compile", 30.0)
    time.sleep(seconds)
    with link.lease(5.0, last=True):
        return "leased"


def many_leases(_: Any, link: WorkerLink, count: int) -> None:
    for _number in range(count):
        with link.lease(1.0):
            pass


def launch_until_told(_: Any, link: WorkerLink, each: float) -> None:
    """One launch after the other, without end."""
    with link.lease(5.0):
        while True:
            time.sleep(each)
            link.offer(5.0)


def take_memory(_: Any, link: WorkerLink, nbytes: int, allowed: int | None) -> int:
    """Take memory as a compiler does, piece by piece and all of it used, in a phase that may take so much."""
    link.phase("compile", 30.0, allowed)
    pieces = []
    try:
        for _number in range(nbytes // 2**24):
            pieces += [b"\1" * 2**24]
    except MemoryError:
        os.abort()  # as LLVM does
    return sum(map(len, pieces))


def take_memory_after(_: Any, link: WorkerLink, nbytes: int, allowed: int) -> int:
    """As much as was not allowed while compiling, when that is over: in a lease, then in another phase."""
    link.phase("compile", 30.0, allowed)
    with link.lease(10.0):
        taken = len(b"\1" * nbytes)
    link.phase("compile", 30.0, allowed)
    link.phase("verify", 10.0)
    return taken + len(b"\1" * nbytes)


def abort_compiling(_: Any, link: WorkerLink) -> None:
    link.phase("compile", 30.0)
    os.abort()


def data_limit(_: Any, __: WorkerLink) -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_DATA)


def interpreter_and_processor(_: Any, __: WorkerLink) -> tuple[str, Any]:
    """What this process starts others with, and the processor that it runs on."""
    from app.devices.opencl.pocl.cpuid import processor  # noqa: PLC0415 - other children need no device library

    return sys.executable, processor()


def stop(_: Any, __: WorkerLink) -> None:
    """Stop as by a signal from outside, and never answer."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def sleep_with_the_lock(_: Any, __: WorkerLink, seconds: int) -> str:
    """Sleep in a foreign call that keeps the interpreter's lock, as a driver that hangs may."""
    ctypes.PyDLL(None).sleep(seconds)
    return "woken"


def compute_with_the_lock(_: Any, __: WorkerLink, seconds: float) -> float:
    """Compute so long without ever giving up the interpreter's lock, all of it in C; gives the seconds it took."""
    started = time.perf_counter()
    any(map((started + seconds).__le__, iter(time.perf_counter, None)))
    return time.perf_counter() - started


def wait_with_the_lock(_: Any, __: WorkerLink, seconds: int) -> str:
    """Keep the interpreter's lock while a program that was started computes, as a linker may."""
    ctypes.PyDLL(None).system(f"timeout {seconds} sh -c 'while :; do :; done'".encode())
    return "ended"
