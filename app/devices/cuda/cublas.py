"""cuBLAS in double and strict single precision on row-major operands, with neither a temporary nor a compilation."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from app.errors import LaunchFailed
from kernels.problem import Problem

# What would make cuBLAS answer a float32 product in another precision class.
_LOOSENING: Final = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")
_LARGEST: Final = 2**31 - 1


def stay_strict() -> None:
    """Take back what the environment allows cuBLAS; to be called before the library is loaded."""
    for name in _LOOSENING:
        os.environ.pop(name, None)


class Cublas:
    """A handle on the current device; `library` is CuPy's binding. Products are queued on the current stream."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = library.create()
        library.setMathMode(self._handle, library.CUBLAS_DEFAULT_MATH)  # float32 in float32, never in TF32
        library.setPointerMode(self._handle, library.CUBLAS_POINTER_MODE_HOST)
        self._products = {"float32": library.sgemmStridedBatched, "float64": library.dgemmStridedBatched}
        self._factors = {name: (np.ones(1, name), np.zeros(1, name)) for name in self._products}

    @property
    def name(self) -> str:
        """The library with its version, such as cuBLAS 12.9.1."""
        version = int(self._library.getVersion(self._handle))
        return f"cuBLAS {version // 10_000}.{version // 100 % 100}.{version % 100}"

    def multiply(self, problem: Problem, a: int, b: int, c: int) -> None:
        """Queue C = op(A) op(B) for addresses of row-major operands; raises LaunchFailed for sizes over 32 bits.

        cuBLAS reads columns first: it sees every operand transposed, and computes C^T = op(B)^T op(A)^T.
        """
        m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
        if max(m, n, k, batch) > _LARGEST:
            raise LaunchFailed(f"cuBLAS takes sizes of 32 bits, not {problem.key}", fatal=False)
        one, zero = (factor.ctypes.data for factor in self._factors[problem.dtype])
        first = (b, problem.b_shape[1], k * n)  # address, elements of a stored row, elements to the next of the batch
        second = (a, problem.a_shape[1], m * k)
        multiply = self._products[problem.dtype]
        ops = self._op(problem.trans_b), self._op(problem.trans_a)
        multiply(self._handle, *ops, n, m, k, one, *first, *second, zero, c, n, m * n, batch)

    def _op(self, transposed: bool) -> int:
        return int(self._library.CUBLAS_OP_T if transposed else self._library.CUBLAS_OP_N)
