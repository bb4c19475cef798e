"""Float64 products of kernels that tensor cores alone run: as interpreted, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import random
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200, transposed
from tests.support.kernels.pocl_runner import operands, reference

Array = np.ndarray[Any, np.dtype[Any]]
# The norm of the error that a product may have, by its operands and their product.
Allowed: TypeAlias = Callable[[Problem, Array, Array, Array], float]
CONFIGS: Final = 4  # of each shape


def opened(cache: Path, architectures: Collection[str]) -> Iterator[Any]:
    """The first GPU's backend, as a fixture yields it; skips without one of these architectures."""
    cuda = pytest.importorskip("app.devices.cuda")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no NVIDIA driver: {error}")
    backend = cuda.CudaBackend("cuda:0", cache)
    if backend.device.architecture not in architectures:
        pytest.skip(f"{backend.device.architecture} has no such tensor cores")
    yield backend
    backend.close()


def expect_exact_and_accurate(
    gpu: Any, kernel: Kernel, turned: tuple[bool, bool], shapes: Sequence[tuple[int, int, int]], allowed: Allowed
) -> None:
    """Drawn legal configs on a GPU: exact on integers, as near as is allowed on normals, the same twice."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - configs, not secrets
    for shape in shapes:
        problem = replace(transposed("float64", *turned, *shape), batch=draw.choice((1, 3)))
        for chosen in draw.sample(kernel.space.legal(problem, gpu.device), CONFIGS):
            launch = kernel.launch(chosen, problem, gpu.device)
            a, b = operands(problem, rng, integers=True)
            assert np.array_equal(product(gpu, launch, a, b), reference(problem, a, b)), (chosen, problem.key)
            a, b = operands(problem, rng)
            first, wide = product(gpu, launch, a, b), reference(problem, a, b)
            assert np.array_equal(first, product(gpu, launch, a, b)), "two launches, two answers"
            error = np.linalg.norm((first - wide).ravel())
            assert error <= allowed(problem, a, b, wide), (chosen, problem.key)


def product(gpu: Any, launch: Launch, a: Array, b: Array) -> Array:
    """C of one launch on a GPU."""
    from app.devices.backend import Operands  # noqa: PLC0415 - only where a GPU runs it

    problem = launch.problem
    buffers = Operands(gpu.upload(a), gpu.upload(b), gpu.allocate(problem.c_bytes))
    gpu.fill(buffers.c, 0xFF)
    gpu.run(gpu.compile(launch.build), launch, buffers)
    c = np.empty((problem.batch, problem.m, problem.n))
    gpu.download(buffers.c, c)
    return c


def expect_nan_in_its_row_alone(launch: Launch) -> None:
    """As interpreted: a NaN of A's last row but none of the others' or of padding, which infinity times zero were."""
    from tests.ptx_interpreter.launches import interpreted  # noqa: PLC0415 - CuPy is loaded only where it is compiled

    a, b = operands(launch.problem, np.random.default_rng(11))
    a[0, -1, -2] = np.nan
    c, _ = interpreted(launch, a, b, H200)
    assert np.isnan(c[0, -1]).all()
    assert np.isfinite(c[0, :-1]).all()
    c, _ = interpreted(launch, np.ones_like(a), np.full_like(b, np.inf), H200)
    assert (c == np.inf).all()
