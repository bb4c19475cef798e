"""Runs kernels on the processor through PyOpenCL, with no part of the service between but the processor's name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from app.devices.opencl.processor import introduce
from kernels.kernel import COUNTERS, Build, Launch
from kernels.problem import Problem

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def queue() -> Any:
    cl = pytest.importorskip("pyopencl")
    try:
        devices = cl.get_platforms()[0].get_devices()
    except (cl.Error, IndexError) as error:
        pytest.skip(f"there is no OpenCL device: {error}")
    introduce(devices[0])
    return cl.CommandQueue(cl.Context(devices[:1]))


def compiled(build: Build) -> Any:
    """The kernel, or pyopencl.RuntimeError with the compiler's words."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    options = [f"-D{name}={value}" for name, value in build.macros]
    return cl.Kernel(cl.Program(queue().context, build.text).build(options=options), build.entry)


def multiplied(kernel: Any, launch: Launch, a: Array, b: Array) -> Array:
    """C of one launch, guarded: what lies around it must stay as it was."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    problem, flags, guard = launch.problem, cl.mem_flags, 64
    out = np.full(problem.c_bytes // problem.itemsize + 2 * guard, np.nan, problem.dtype)
    buffers = [cl.Buffer(queue().context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=x) for x in (a, b, out)]
    window = buffers[2].get_sub_region(guard * problem.itemsize, problem.c_bytes)
    scratch = _scratch(launch)
    arguments = [buffers[0], buffers[1], window, *map(np.int64, (problem.m, problem.n, problem.k))]
    if launch.numbers:
        arguments += [scratch, *map(np.int64, launch.numbers)]
    for step in launch.before:
        before = compiled(step.build)
        before.set_args(*arguments)
        cl.enqueue_nd_range_kernel(queue(), before, (step.grid * step.block[0], step.block[1]), step.block)
    kernel.set_args(*arguments)
    width, height = launch.block
    cl.enqueue_nd_range_kernel(queue(), kernel, (launch.grid * width, height), launch.block)
    cl.enqueue_copy(queue(), out, buffers[2])
    if scratch is not None:
        counters = np.ones(COUNTERS, np.int32)
        cl.enqueue_copy(queue(), counters, scratch)
        assert not counters.any(), "a counter was not put back to zero"
    assert np.isnan(out[:guard]).all(), "C was written before its start"
    assert np.isnan(out[-guard:]).all(), "C was written past its end"
    return out[guard:-guard].reshape(problem.batch, problem.m, problem.n)


def _scratch(launch: Launch) -> Any:
    """Counters of zero, and NaN where a kernel is to read only what it wrote; None where it wants nothing."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    if not launch.scratch_bytes:
        return None
    content = np.full(launch.scratch_bytes, 0xFF, np.uint8)
    content[: 4 * COUNTERS] = 0
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(queue().context, flags, hostbuf=content)


def operands(problem: Problem, rng: np.random.Generator, *, integers: bool = False) -> tuple[Array, Array]:
    shapes = [(problem.batch, *shape) for shape in (problem.a_shape, problem.b_shape)]
    a, b = (rng.integers(-8, 9, shape) if integers else rng.standard_normal(shape) for shape in shapes)
    return a.astype(problem.dtype), b.astype(problem.dtype)


def reference(problem: Problem, a: Array, b: Array) -> Array:
    """In float64, or wider where the operands are that themselves."""
    wide = np.longdouble if problem.dtype == "float64" else np.float64
    left = a.swapaxes(1, 2) if problem.trans_a else a
    right = b.swapaxes(1, 2) if problem.trans_b else b
    return np.asarray(left.astype(wide) @ right.astype(wide))
