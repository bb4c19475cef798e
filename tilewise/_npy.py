"""NumPy's .npy over the wire: a header before bytes that are sent from, and received into, where they belong."""

from __future__ import annotations

import io
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from tilewise._connection import Body
from tilewise._dtypes import numpy_dtype
from tilewise._http1 import ResponseHead
from tilewise._operands import Array, StoredOperand, flat, lying
from tilewise._pool import ResponseReader
from tilewise._sansio import Flow
from tilewise.errors import UnreadableAnswer

MEDIA: Final = "application/x-npy"
_LONGEST: Final = 10_000
_PAIRS: Final = np.dtype("V2")


def written(array: Array) -> list[memoryview]:
    """An array as a .npy in pieces; one matrix that lies transposed is in Fortran order."""
    stored = lying(array) if array.ndim == len(("rows", "columns")) else StoredOperand(array, transposed=False)
    out = io.BytesIO()
    described = {"descr": npy_format.dtype_to_descr(array.dtype), "fortran_order": stored.transposed}
    npy_format.write_array_header_1_0(out, {**described, "shape": array.shape})
    return [memoryview(out.getvalue()), *stored.pieces()]


def read(room: Array | None) -> ResponseReader[Array]:
    """A reader that reads a .npy, into `room` where given; raises UnreadableAnswer if it is none that fits.

    NumPy's files have no word for bfloat16: the answer's headers have.
    """

    def reader(head: ResponseHead, body: Body) -> Flow[Array]:
        dtype, shape, fortran = yield from _header(head, body)
        c = np.empty(shape, dtype) if room is None else room
        if (c.dtype, c.size) != (dtype, prod(shape)) or (fortran and len(shape) > 1):
            raise UnreadableAnswer(f"the answer is a {dtype} of {shape}", head.status, "unreadable")
        if (yield from body.fill(flat(c))) != c.nbytes:
            raise UnreadableAnswer("the answer is shorter than its header says", head.status, "unreadable")
        return c

    return reader


def _header(head: ResponseHead, body: Body) -> Flow[tuple[np.dtype[Any], tuple[int, ...], bool]]:
    start = bytearray(10)
    yield from body.fill(memoryview(start))
    length = int.from_bytes(start[8:], "little")
    if not start.startswith(b"\x93NUMPY\x01") or length > _LONGEST:
        raise UnreadableAnswer("the answer is no .npy", head.status, "unreadable")
    text = bytearray(length)
    yield from body.fill(memoryview(text))
    try:
        shape, fortran, dtype = npy_format.read_array_header_1_0(io.BytesIO(bytes(start[8:] + text)))
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswer(f"the answer is no .npy: {error}", head.status, "unreadable") from error
    told = head.headers.get("x-dtype", "")
    return numpy_dtype(told) if (dtype, told) == (_PAIRS, "bfloat16") else dtype, shape, fortran
