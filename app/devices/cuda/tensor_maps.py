"""Encodes TMA tensor maps (CUDA Driver API, Tensor Map Object Management)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from app.errors import LaunchFailed
from kernels.launch import TensorMap

BYTES: Final = 128  # of a CUtensorMap
_ALIGNMENT: Final = 64  # of one where it is encoded
_KEPT: Final = 4096  # maps: the same launch is queued again and again
# CUtensorMapDataType, CUtensorMapSwizzle and the two others as cuda.h numbers them.
_ELEMENTS: Final = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11}
_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_NOT_INTERLEAVED: Final = 0
# CU_TENSOR_MAP_L2_PROMOTION_L2_128B: with 256 operands that stream took 4 to 6 % longer on an H200.
_FETCH_128_BYTES: Final = 2
_ZEROS_OUTSIDE: Final = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
_INVALID_VALUE: Final = 1

Encoder = Callable[..., int]


def arguments(tensor: TensorMap, base: int) -> tuple[Any, ...]:
    """The arguments of cuTensorMapEncodeTiled after the map; `base` is the operand's address."""
    rank = len(tensor.sizes)
    return (
        ctypes.c_int(_ELEMENTS[tensor.element]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(base + tensor.offset),
        (ctypes.c_uint64 * rank)(*tensor.sizes),
        (ctypes.c_uint64 * max(rank - 1, 1))(*tensor.strides),
        (ctypes.c_uint32 * rank)(*tensor.box),
        (ctypes.c_uint32 * rank)(*(1,) * rank),
        ctypes.c_int(_NOT_INTERLEAVED),
        ctypes.c_int(_SWIZZLES[tensor.swizzle]),
        ctypes.c_int(_FETCH_128_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )


@lru_cache(_KEPT)
def encoded(tensor: TensorMap, base: int) -> np.ndarray[Any, Any]:
    """The map's 128 bytes as CuPy passes them by value: an array of one element. Raises LaunchFailed if refused."""
    return encode(tensor, base, _encoder())


def encode(tensor: TensorMap, base: int, encoder: Encoder) -> np.ndarray[Any, Any]:
    """As `encoded`, by an encoder that is called as cuTensorMapEncodeTiled is."""
    room = (ctypes.c_uint8 * (BYTES + _ALIGNMENT))()
    skipped = -ctypes.addressof(room) % _ALIGNMENT
    status = encoder(ctypes.c_void_p(ctypes.addressof(room) + skipped), *arguments(tensor, base))
    if status:
        raise LaunchFailed(f"CUDA error {status}: no tensor map of {tensor}", fatal=status != _INVALID_VALUE)
    return np.frombuffer(bytes(room)[skipped : skipped + BYTES], dtype=f"V{BYTES}").copy()


@cache
def _encoder() -> Encoder:
    try:
        found: Encoder = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise LaunchFailed(f"the driver encodes no tensor maps: {error}", fatal=False) from error
    return found
