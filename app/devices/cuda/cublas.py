"""cuBLAS on row-major operands in every class that it has, with neither a temporary nor a compilation."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib

from app.errors import LaunchFailed
from kernels.problem import Problem

# What would make cuBLAS answer a product in another precision class than it is asked for.
_LOOSENING: Final = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")
_LARGEST: Final = 2**31 - 1
_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_Kinds: TypeAlias = tuple[type[ctypes.c_int | ctypes.c_longlong | ctypes.c_void_p], ...]
# cublas<t>gemmStridedBatched: handle, two operations, m, n, k, alpha, A, B, beta, C with their strides, batch count.
_OPERAND: Final[_Kinds] = (_POINTER, _INT, _LONG)
_ARGUMENTS: Final[_Kinds] = (_POINTER, *5 * [_INT], _POINTER, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT)
# cublasGemmStridedBatchedEx: the same with a type after each operand, the type of arithmetic, and the algorithm.
_TYPED: Final[_Kinds] = (_POINTER, _INT, _INT, _LONG)
_EXTENDED: Final[_Kinds] = (_POINTER, *5 * [_INT], _POINTER, *_TYPED, *_TYPED, _POINTER, *_TYPED, *3 * [_INT])
# cudaDataType_t of a class's operands, and the cublasComputeType_t that its products are made by; a class without is
# one that the functions of old have. The factors are float32, and so are the sums (cuBLAS, "cublasGemmEx").
_CLASSES: Final = {
    ("float16", "strict"): (2, 68),  # CUDA_R_16F, CUBLAS_COMPUTE_32F
    ("bfloat16", "strict"): (14, 68),  # CUDA_R_16BF
    ("float32", "tf32"): (0, 77),  # CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32
}
_DEFAULT_ALGORITHM: Final = -1  # CUBLAS_GEMM_DEFAULT
# Sums that are split over blocks are put together in float32 as well, not in the operands' type (cublasMath_t).
_DISALLOW_REDUCED_PRECISION_REDUCTION: Final = 16
_DEFAULT_MATH, _POINTER_MODE_HOST = 0, 0  # cublasMath_t, cublasPointerMode_t
_OP_N, _OP_T = 0, 1  # cublasOperation_t
# cublasStatus_t
_STATUS: Final = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}


def stay_strict() -> None:
    """Remove environment variables that relax cuBLAS's precision. Call it before the library is loaded."""
    for name in _LOOSENING:
        os.environ.pop(name, None)


class Cublas:
    """A cuBLAS handle on the current device. Products are queued on the legacy default stream.

    Any installed major version does, from a wheel, conda or the system, also another than that of CuPy's CUDA: its
    functions are called by ctypes. Raises RuntimeError, OSError, AttributeError or LaunchFailed
    if the library is missing or incomplete.
    """

    workspace_bytes: Final = 2**25  # what cuBLAS takes itself on Hopper; it takes less elsewhere

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        library.cublasSetMathMode.argtypes = library.cublasSetPointerMode_v2.argtypes = (_POINTER, _INT)
        library.cublasSetStream_v2.argtypes = (_POINTER, _POINTER)
        library.cublasSetWorkspace_v2.argtypes = (_POINTER, _POINTER, ctypes.c_size_t)
        self._products = {
            "float32": library.cublasSgemmStridedBatched,
            "float64": library.cublasDgemmStridedBatched,
        }
        for product in self._products.values():
            product.argtypes = _ARGUMENTS
        self._extended = library.cublasGemmStridedBatchedEx
        self._extended.argtypes = _EXTENDED
        self._factors = {name: (np.ones(1, name), np.zeros(1, name)) for name in self._products}
        self._handle, version = _POINTER(), _INT()
        _check(library.cublasCreate_v2(ctypes.byref(self._handle)))
        # float32 in float32, never in TF32 unless that is asked for
        _check(library.cublasSetMathMode(self._handle, _DEFAULT_MATH | _DISALLOW_REDUCED_PRECISION_REDUCTION))
        _check(library.cublasSetPointerMode_v2(self._handle, _POINTER_MODE_HOST))
        _check(library.cublasGetVersion_v2(self._handle, ctypes.byref(version)))
        self._version = version.value

    @property
    def name(self) -> str:
        """The library with its version, such as cuBLAS 12.9.1."""
        return f"cuBLAS {self._version // 10_000}.{self._version // 100 % 100}.{self._version % 100}"

    @contextmanager
    def on(self, stream: int, workspace: int) -> Iterator[None]:
        """Queue on another stream inside the block, with a workspace of ours of `workspace_bytes`.

        cuBLAS would put allocations of its own workspace into a graph ("CUDA Graphs Support", cuBLAS documentation).
        """
        _check(self._library.cublasSetStream_v2(self._handle, stream))
        try:
            _check(self._library.cublasSetWorkspace_v2(self._handle, workspace, self.workspace_bytes))
            yield
        finally:
            _check(self._library.cublasSetStream_v2(self._handle, 0))

    def multiply(self, problem: Problem, a: int, b: int, c: int) -> None:
        """Queue C = op(A) op(B) for addresses of row-major operands.

        cuBLAS is column-major: it sees every operand transposed, and computes C^T = op(B)^T op(A)^T.
        Raises LaunchFailed, not fatal, for sizes over 32 bits and for other refusals of cuBLAS.
        """
        m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
        if max(m, n, k, batch) > _LARGEST:
            raise LaunchFailed(f"cuBLAS takes sizes of 32 bits, not {problem}", fatal=False)
        one, zero = (factor.ctypes.data for factor in self._factors.get(problem.dtype, self._factors["float32"]))
        # Elements of a stored row, elements to the next of the batch.
        first, second, third = (problem.b_shape[1], k * n), (problem.a_shape[1], m * k), (n, m * n)
        sizes = self._handle, _operation(problem.trans_b), _operation(problem.trans_a), n, m, k
        if (kind := _CLASSES.get((problem.dtype, problem.precision))) is None:
            multiply = self._products[problem.dtype]
            _check(multiply(*sizes, one, b, *first, a, *second, zero, c, *third, batch))
            return
        dtype, arithmetic = kind
        operands = one, b, dtype, *first, a, dtype, *second, zero, c, dtype, *third
        _check(self._extended(*sizes, *operands, batch, arithmetic, _DEFAULT_ALGORITHM))


def _operation(transposed: bool) -> int:
    return _OP_T if transposed else _OP_N


def _check(status: int) -> None:
    """Raise a cuBLAS error, not fatal: CUDA reports a corrupted context at the next synchronisation."""
    if status:
        raise LaunchFailed(f"cuBLAS: {_STATUS.get(status, f'status {status}')}", fatal=False)
