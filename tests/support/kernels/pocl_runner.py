"""Runs kernels on the processor through PyOpenCL, with no part of the service between but the processor's name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from app.devices.opencl.pocl.cpu_name import rename
from app.dtypes import numpy_dtype
from kernels.launch import COUNTERS, Build, Launch, Step
from kernels.problem import Problem

Array = np.ndarray[Any, np.dtype[Any]]
GUARD = 64  # elements: a region of a buffer starts at a multiple of 128 bytes


@cache
def queue() -> Any:
    cl = pytest.importorskip("pyopencl")
    try:
        devices = cl.get_platforms()[0].get_devices()
    except (cl.Error, IndexError) as error:
        pytest.skip(f"there is no OpenCL device: {error}")
    rename(devices[0])
    return cl.CommandQueue(cl.Context(devices[:1]))


def compiled(build: Build) -> Any:
    """The kernel, or pyopencl.RuntimeError with the compiler's words."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    # No warnings, as the device's own backend asks for none: a vector may be wider than the processor's.
    options = ["-w", *(f"-D{name}={value}" for name, value in build.macros)]
    return cl.Kernel(cl.Program(queue().context, build.text).build(options=options), build.entry)


def multiplied(kernel: Any, launch: Launch, a: Array, b: Array) -> Array:
    """C of one launch. A, B and C lie among NaN: none of it may come into C, and what is around C must stay."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    problem, flags = launch.problem, cl.mem_flags
    blank = np.full(problem.c_bytes // problem.itemsize, np.nan, numpy_dtype(problem.dtype))
    arrays = [np.pad(each.ravel(), GUARD, constant_values=np.nan) for each in (a, b, blank)]
    buffers = [cl.Buffer(queue().context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=each) for each in arrays]
    start = GUARD * problem.itemsize
    windows = [each.get_sub_region(start, each.size - 2 * start) for each in buffers]
    workspace = _workspace(launch)
    arguments = [*windows, *map(np.int64, (problem.m, problem.n, problem.k))]
    if launch.scalars:
        arguments += [workspace, *map(np.int64, launch.scalars)]
    steps: list[tuple[Any, Launch | Step]] = [(compiled(step.build), step) for step in (*launch.before, *launch.after)]
    steps.insert(len(launch.before), (kernel, launch))
    for program, each in steps:
        program.set_args(*arguments)
        cl.enqueue_nd_range_kernel(queue(), program, (each.grid * each.block[0], each.block[1]), each.block)
    out = arrays[2]
    cl.enqueue_copy(queue(), out, buffers[2])
    if workspace is not None:
        counters = np.ones(COUNTERS, np.int32)
        cl.enqueue_copy(queue(), counters, workspace)
        assert not counters.any(), "a counter was not put back to zero"
    assert np.isnan(out[:GUARD]).all(), "C was written before its start"
    assert np.isnan(out[-GUARD:]).all(), "C was written past its end"
    return out[GUARD:-GUARD].reshape(problem.batch, problem.m, problem.n)


def _workspace(launch: Launch) -> Any:
    """Counters of zero, and NaN where a kernel is to read only what it wrote; None where it wants nothing."""
    import pyopencl as cl  # noqa: PLC0415 - only where a test runs it

    if not launch.workspace_bytes:
        return None
    content = np.full(launch.workspace_bytes, 0xFF, np.uint8)
    content[: 4 * COUNTERS] = 0
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(queue().context, flags, hostbuf=content)


def operands(problem: Problem, rng: np.random.Generator, *, integers: bool = False) -> tuple[Array, Array]:
    shapes = [(problem.batch, *shape) for shape in (problem.a_shape, problem.b_shape)]
    a, b = (rng.integers(-8, 9, shape) if integers else rng.standard_normal(shape) for shape in shapes)
    return a.astype(numpy_dtype(problem.dtype)), b.astype(numpy_dtype(problem.dtype))


def reference(problem: Problem, a: Array, b: Array, *, integers: bool = False) -> Array:
    """In float64, or wider where the operands are that themselves and no small integers: BLAS has no wider products."""
    wide = np.longdouble if problem.dtype == "float64" and not integers else np.float64
    left = a.swapaxes(1, 2) if problem.trans_a else a
    right = b.swapaxes(1, 2) if problem.trans_b else b
    return np.asarray(left.astype(wide) @ right.astype(wide))
