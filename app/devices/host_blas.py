"""NumPy's BLAS: the vendor's library of a CPU, and the float64 reference product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

from app.devices.backend import Vendor
from app.devices.threads import on_first_core, spread, wait_until_idle, workers
from app.dtypes import Array
from kernels.problem import Problem

_HALF: Final = 2  # bytes of a 16-bit element
_SMALL: Final = np.ones((2, 256, 256), np.float32)  # over the size from which OpenBLAS takes all its threads
_NAMES: Final = {"scipy-openblas": "OpenBLAS", "openblas": "OpenBLAS", "mkl": "MKL", "mkl-sdl": "MKL"}


def vendor() -> Vendor:
    """Name the BLAS that this NumPy was built with, such as OpenBLAS 0.3.30."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment] # None in its other mode only
    blas = config.get("Build Dependencies", {}).get("blas", {})
    name, version = str(blas.get("name", "")), str(blas.get("version", ""))
    if not name or name == "none":
        return Vendor(f"NumPy {np.__version__}")
    return Vendor(f"{_NAMES.get(name.lower(), name)} {version}".strip())


def multiply(problem: Problem, a: Array, b: Array, c: Array) -> None:
    """C = op(A) op(B) into `c`; the arrays are batched, A and B as stored.

    BLAS has no products of 16-bit elements: they become float32, are multiplied as such, and rounded once.
    """
    left, right = _op(a, problem.trans_a), _op(b, problem.trans_b)
    if problem.itemsize == _HALF:
        c[...] = np.matmul(left.astype(np.float32), right.astype(np.float32))
    else:
        np.matmul(left, right, out=c)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Multiply inside while nothing else of this process computes, the library's threads awake and each on a core.

    They are at rest again when the block is left: those that wait for more work take cores from the next kernel.
    """
    wait_until_idle()
    _spread()
    with on_first_core():
        _wake()
        yield
    wait_until_idle()


@cache
def _spread() -> None:
    """Give the library's threads a core each, once in a process."""
    spread(workers(_wake))


def _wake() -> None:
    """Multiply something small on all the library's threads: asleep they would begin the next product late."""
    np.matmul(*_SMALL)


def reference(a: Array, b: Array) -> Array:
    """The float64 product of op(A) and op(B), batched if they are."""
    return np.asarray(np.matmul(a, b, dtype=np.float64))


def _op(array: Array, transposed: bool) -> Array:
    return array.swapaxes(-1, -2) if transposed else array
