"""What the tests run in children that hold a device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.devices.backend import Operands, WorkerContext
from app.devices.process import WorkerLink
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config

ENDLESS = {
    "opencl": """
        __kernel void matmul(__global float *a, __global float *b, __global float *c, long m, long n, long k) {
            volatile __global float *seen = c;
            while (seen[0] == 0.0f) { }
        }""",
    "cuda": """
        extern "C" __global__ void matmul(float *a, float *b, float *c, long long m, long long n, long long k) {
            volatile float *seen = c;
            while (seen[0] == 0.0f) { }
        }""",
}


def run_an_endless_kernel(held: WorkerContext, link: WorkerLink, deadline: float) -> None:
    """Compile outside the lease, then launch what never ends."""
    problem = Problem(1, 1, 1)
    build = Build("endless", ENDLESS[held.backend.device.platform], "matmul", ())
    launch = Launch("endless", Config(()), problem, build, 1, (1, 1), 0)
    program = held.backend.compile(build)
    zero = np.zeros(1, np.float32)
    operands = Operands(held.backend.upload(zero), held.backend.upload(zero), held.backend.upload(zero))
    link.phase("launch", 30.0)
    with link.lease(deadline):
        held.backend.run(program, launch, operands)


def open_opencl(cache_dir: Path) -> Any:
    from app.devices.opencl import OpenCLBackend  # noqa: PLC0415 - as above

    return OpenCLBackend("opencl:0", cache_dir)


def warm_an_endless_kernel(backend: Any, link: WorkerLink, compiling: float, launching: float) -> None:
    """Name the stages as trials do."""
    problem = Problem(1, 1, 1)
    build = Build("endless", ENDLESS[backend.device.platform], "matmul", ())
    launch = Launch("endless", Config(()), problem, build, 1, (1, 1), 0)
    link.phase("compile", compiling)
    backend.warm(backend.compile(build), launch, lambda: link.phase("launch", launching))


def multiply_once(held: WorkerContext, link: WorkerLink, launch: Launch) -> tuple[float, int | None]:
    """Compile, launch on ones, and check; gives the seconds that compiling took, and the registers."""
    problem = launch.problem
    before = time.monotonic()
    program = held.backend.compile(launch.build)
    compiled = time.monotonic() - before
    a, b = np.ones(problem.a_shape, problem.dtype), np.ones(problem.b_shape, problem.dtype)
    c = np.empty((problem.m, problem.n), problem.dtype)
    with link.lease(10.0):
        operands = Operands(held.backend.upload(a), held.backend.upload(b), held.backend.allocate(problem.c_bytes))
        held.backend.run(program, launch, operands)
        held.backend.download(operands.c, c)
    assert (c == problem.k).all()
    return compiled, program.registers


@dataclass
class Remembered:
    """A value between calls."""

    value: str | None = None


def remember(held: WorkerContext, _: WorkerLink, value: str) -> str | None:
    """Keep a value between calls; gives the one kept before."""
    kept = held.state(Remembered)
    before, kept.value = kept.value, value
    return before


def add_one_in_the_slab(held: WorkerContext, _: WorkerLink, offset: int, nbytes: int) -> None:
    part = np.frombuffer(held.slab, np.uint8, nbytes, offset)
    part += 1


def open_cuda(cache_dir: Path) -> Any:
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - where there is no GPU this module is imported too

    return CudaBackend("cuda:0", cache_dir)


def write_out_of_bounds(backend: Any, _: WorkerLink) -> None:
    text = 'extern "C" __global__ void matmul(float *a, float *b, float *c, long long m, long long n, long long k)'
    build = Build("wild", text + "{ *(float *)m = 1.0f; }", "matmul", ())
    launch = Launch("wild", Config(()), Problem(1, 1, 1), build, 1, (1, 1), 0)
    one = backend.allocate(4096)
    backend.run(backend.compile(build), launch, Operands(one, one, one))


def compile_text(held: WorkerContext, link: WorkerLink, text: str, deadline: float, memory: int) -> None:
    """Compile a text within a time and a memory."""
    link.phase("compile", deadline, memory)
    held.backend.compile(Build("text", text, "matmul", ()))


def compile_cuda_text(_: None, link: WorkerLink, text: str, cache_dir: Path, memory: int) -> None:
    """Compile a CUDA text within a memory, in a compiler's process."""
    from app.devices import cuda  # noqa: PLC0415 - only such a process may

    link.phase("compile", 100.0, memory)
    cuda.compile_cubin(Build("text", text, "matmul", ()), "sm_90", cache_dir)
