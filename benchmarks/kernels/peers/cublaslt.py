"""cuBLASLt's side: every algorithm that its heuristics propose for a problem, each launched as CuPy's functions are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from app.devices.backend import Backend, Buffer
from app.errors import LaunchFailed
from kernels.problem import Problem

ASKED = 16  # algorithms at most
WORKSPACE = 2**25  # bytes, as cublasGemm has on this hardware
# cublas_api.h, library_types.h: the arithmetic of a class, and the types of operands and of factors.
COMPUTE = {"float32": 68, "float64": 70, "float16": 68, "bfloat16": 68, "tf32": 77}
KIND = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
FACTOR = {"float64": "float64"}
# cublasLt.h: cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t,
# cublasLtMatmulAlgoConfigAttributes_t.
TRANS_A, TRANS_B = 3, 4
BATCH_COUNT, BATCH_STRIDE = 5, 6
MOST_WORKSPACE, REDUCTIONS = 1, 3
EXACT_REDUCTIONS = 0b011  # cublasLtReductionScheme_t: in place or in the type of sums, never in that of C
DESCRIBED = {"algorithm": 0, "tile": 1, "SPLIT_K": 2, "STAGES": 6}
NOT_SUPPORTED = 15
_P: TypeAlias = ctypes.c_void_p
_U64, _I64, _INT = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, opaque, and what it takes."""

    _fields_ = (
        ("algorithm", _U64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", _INT),
        ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    )


_TYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": (_P, _INT, _P, ctypes.c_size_t),
    "cublasLtMatrixLayoutCreate": (_P, _INT, _U64, _U64, _I64),
    "cublasLtMatrixLayoutSetAttribute": (_P, _INT, _P, ctypes.c_size_t),
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, _INT, _P, ctypes.c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*[_P] * 7, _INT, _P, _P),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, _INT, _P, ctypes.c_size_t, _P),
    "cublasLtMatmul": (*[_P] * 14, ctypes.c_size_t, _P),
}


@dataclass(frozen=True)
class Product:
    """A problem as cuBLASLt sees it: everything transposed, since it reads columns first.

    `layouts` are of B, A and C, in this order.
    """

    library: Any
    handle: _P
    description: _P
    layouts: tuple[_P, _P, _P]
    one: Any
    zero: Any
    workspace: Buffer


@dataclass(frozen=True)
class LtFunction:
    """One algorithm for one problem, called with A, B, C, m, n, k; queued on CuPy's current stream."""

    product: Product
    found: Found

    def __call__(self, _grid: Any, _block: Any, given: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Queue one product; raises LaunchFailed, not fatal, where cuBLASLt refuses it."""
        import cupy  # noqa: PLC0415  in a device's child only

        del shared_mem
        own = self.product
        a, b, c = map(int, given[:3])
        of_b, of_a, of_c = own.layouts
        one, zero = own.one.ctypes.data, own.zero.ctypes.data
        space = int(own.workspace.handle.ptr) + own.workspace.offset
        stream = int(cupy.cuda.get_current_stream().ptr)
        operands = one, b, of_b, a, of_a, zero, c, of_c, c, of_c
        algorithm = ctypes.byref(self.found)  # the algorithm is what the result begins with
        matmul = own.library.cublasLtMatmul
        _check(matmul(own.handle, own.description, *operands, algorithm, space, WORKSPACE, stream))

    @property
    def described(self) -> tuple[tuple[str, int], ...]:
        """What the library tells of the algorithm, by its own numbers."""
        values = []
        for name, attribute in DESCRIBED.items():
            value, written = ctypes.c_int32(), ctypes.c_size_t()
            ask = self.product.library.cublasLtMatmulAlgoConfigGetAttribute
            if ask(ctypes.byref(self.found), attribute, ctypes.byref(value), 4, ctypes.byref(written)) == 0:
                values.append((name, value.value))
        return tuple(values)


def candidates(backend: Backend, problem: Problem, asked: int = ASKED) -> list[LtFunction]:
    """What the heuristics propose, best guess first, so many at most.

    Raises OSError or AttributeError where there is no cuBLASLt.
    """
    product = _product(*_library(backend.vendor.name), problem, backend.allocate(WORKSPACE))
    preference = _made(product.library.cublasLtMatmulPreferenceCreate)
    _set(product.library.cublasLtMatmulPreferenceSetAttribute, preference, MOST_WORKSPACE, _U64(WORKSPACE))
    reductions = ctypes.c_uint32(EXACT_REDUCTIONS)
    _set(product.library.cublasLtMatmulPreferenceSetAttribute, preference, REDUCTIONS, reductions)
    results, count = (Found * asked)(), _INT()
    layouts = (*product.layouts, product.layouts[2])
    ask = product.library.cublasLtMatmulAlgoGetHeuristic
    question = product.handle, product.description, *layouts, preference
    status = ask(*question, asked, ctypes.byref(results), ctypes.byref(count))
    if status == NOT_SUPPORTED:
        return []
    _check(status)
    return [LtFunction(product, found) for found in _valid(results, count.value)]


def _valid(results: Any, count: int) -> Iterator[Found]:
    for found in results[:count]:
        if found.state == 0:
            yield Found.from_buffer_copy(found)


@cache
def _library(vendor: str | None) -> tuple[Any, _P]:
    """The library that came with cuBLAS, whose name is such as cuBLAS 13.1.0 and which is loaded already; a handle."""
    major = (vendor or "").removeprefix("cuBLAS ").partition(".")[0]
    library = ctypes.CDLL(f"libcublasLt.so.{major}")
    for name, types in _TYPES.items():
        getattr(library, name).argtypes = types
    return library, _made(library.cublasLtCreate)


def _product(library: Any, handle: _P, problem: Problem, workspace: Buffer) -> Product:
    kind = KIND[problem.dtype]
    factor = FACTOR.get(problem.dtype, "float32")
    arithmetic = COMPUTE["tf32" if problem.precision == "tf32" else problem.dtype]
    description = _made(library.cublasLtMatmulDescCreate, arithmetic, KIND[factor])
    for attribute, transposed in ((TRANS_A, problem.trans_b), (TRANS_B, problem.trans_a)):
        _set(library.cublasLtMatmulDescSetAttribute, description, attribute, ctypes.c_int32(int(transposed)))

    def layout(rows: int, columns: int) -> _P:
        made = _made(library.cublasLtMatrixLayoutCreate, kind, columns, rows, columns)
        if problem.batch > 1:
            _set(library.cublasLtMatrixLayoutSetAttribute, made, BATCH_COUNT, ctypes.c_int32(problem.batch))
            _set(library.cublasLtMatrixLayoutSetAttribute, made, BATCH_STRIDE, _I64(rows * columns))
        return made

    layouts = layout(*problem.b_shape), layout(*problem.a_shape), layout(problem.m, problem.n)
    factors = np.ones(1, factor), np.zeros(1, factor)
    return Product(library, handle, description, layouts, *factors, workspace)


def _made(create: Any, *arguments: int) -> _P:
    """A new object of the library's; few are made, and none is destroyed before its process ends."""
    made = _P()
    _check(create(ctypes.byref(made), *arguments))
    return made


def _set(set_attribute: Any, of: _P, attribute: int, value: Any) -> None:
    _check(set_attribute(of, attribute, ctypes.byref(value), ctypes.sizeof(value)))


def _check(status: int) -> None:
    if status:
        raise LaunchFailed(f"cuBLASLt: status {status}", fatal=False)
