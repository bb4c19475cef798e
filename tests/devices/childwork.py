"""What the tests' children run: functions of a module that a child can import."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from app.devices.base import Operands
from app.devices.inside import Held
from app.devices.process import Link
from app.errors import LaunchFailed, NoDevice, NoRoom
from kernels.kernel import Build, Launch
from kernels.problem import Problem
from kernels.space import Config

ENDLESS = """
__kernel void matmul(__global float *a, __global float *b, __global float *c, long m, long n, long k) {
    volatile __global float *seen = c;
    while (seen[0] == 0.0f) { }
}
"""


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


def echo(state: Any, _: Link, value: Any) -> tuple[Any, Any]:
    return state, value


def pid(_: Any, __: Link) -> int:
    return os.getpid()


def imported(_: Any, __: Link) -> list[str]:
    return sorted(sys.modules)


def speak(_: Any, __: Link, text: str) -> None:
    print(text, flush=True)


def refuse_politely(_: Any, __: Link) -> None:
    raise NoRoom("no room for that", limit=1, size=2)


def fail_for_good(_: Any, __: Link) -> None:
    raise LaunchFailed("an illegal address", fatal=True)


def break_down(_: Any, __: Link) -> None:
    raise ZeroDivisionError("a bug of ours")


def answer_with_the_unspeakable(_: Any, __: Link) -> Any:
    return threading.Lock()


def exit_at_once(_: Any, __: Link) -> None:
    os._exit(3)


def sleep(_: Any, __: Link, seconds: float) -> None:
    time.sleep(seconds)


def two_stages(_: Any, link: Link, first: float, second: float) -> str:
    link.phase("compile", 5.0)
    time.sleep(first)
    link.phase("verify", 0.2)
    time.sleep(second)
    return "done"


def lease_then_linger(_: Any, link: Link, leased: float, lingering: float) -> None:
    """A phase of 0.5 s that leases the device in its middle."""
    link.phase("measure", 0.5)
    with link.lease(5.0):
        time.sleep(leased)
    time.sleep(lingering)


def outlive_the_lease(_: Any, link: Link) -> None:
    link.phase("measure", 30.0)
    with link.lease(0.2):
        time.sleep(30)


def lease_twice(_: Any, link: Link) -> None:
    with link.lease(1.0), link.lease(1.0):
        pass


def launch_and_offer(_: Any, link: Link, launches: int, seconds: float, renewed: float) -> float:
    """Make launches of some seconds, offer the device between them; gives the longest that one offer took."""
    longest = 0.0
    with link.lease(renewed):
        for _number in range(launches):
            time.sleep(seconds)
            before = time.monotonic()
            link.offer(renewed)
            longest = max(longest, time.monotonic() - before)
    return longest


def lease_once(_: Any, link: Link, seconds: float = 0.0) -> float:
    """Gives how long the device was waited for."""
    before = time.monotonic()
    with link.lease(5.0):
        waited = time.monotonic() - before
        time.sleep(seconds)
    return waited


def many_leases(_: Any, link: Link, count: int) -> None:
    for _number in range(count):
        with link.lease(1.0):
            pass


def run_an_endless_kernel(held: Held, link: Link, deadline: float) -> None:
    """Compile outside the lease, then launch what never ends."""
    problem = Problem(1, 1, 1)
    build = Build("endless", ENDLESS, "matmul", ())
    launch = Launch("endless", Config(()), problem, build, 1, (1, 1), 0)
    program = held.backend.compile(build)
    zero = np.zeros(1, np.float32)
    operands = Operands(held.backend.upload(zero), held.backend.upload(zero), held.backend.upload(zero))
    link.phase("launch", 30.0)
    with link.lease(deadline):
        held.backend.run(program, launch, operands)


def remember(held: Held, _: Link, value: str) -> str | None:
    """Keep a value between calls; gives the one kept before."""
    before = held.memory.get("value")
    held.memory["value"] = value
    return before


def add_one_in_the_slab(held: Held, _: Link, offset: int, nbytes: int) -> None:
    part = np.frombuffer(held.slab, np.uint8, nbytes, offset)
    part += 1


def open_cuda(cache_dir: Path) -> Any:
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - where there is no GPU this module is imported too

    return CudaBackend("cuda:0", cache_dir)


def write_out_of_bounds(backend: Any, _: Link) -> None:
    text = 'extern "C" __global__ void matmul(float *a, float *b, float *c, long long m, long long n, long long k)'
    build = Build("wild", text + "{ *(float *)m = 1.0f; }", "matmul", ())
    launch = Launch("wild", Config(()), Problem(1, 1, 1), build, 1, (1, 1), 0)
    one = backend.allocate(4096)
    backend.run(backend.compile(build), launch, Operands(one, one, one))
