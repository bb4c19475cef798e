"""ServiceFile: an operand that is a .npy file in the service's folder of operands, and products of such."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from tilewise import _npy
from tilewise._connection import Body
from tilewise._http1 import HttpRequest, ResponseHead, target
from tilewise._operands import Array, Operand, arrayed
from tilewise._sansio import Flow, Work
from tilewise.arguments import ProductArguments
from tilewise.models import Matrix

_MATRIX: Final = (2, 3)  # dimensions: a matrix, or a batch of them


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A .npy file in the folder of operands that the service has, by its path below it: it need not be sent.

    NumPy's files do not say that their numbers are bfloat16: `dtype` does.
    """

    name: str
    dtype: str | None = None
    transposed: bool = False

    @property
    def T(self) -> ServiceFile:  # noqa: N802 - NumPy's name for it
        """Its transpose, or that of each of a batch, as an operand."""
        return replace(self, transposed=not self.transposed)


ProductOperand = Operand | ServiceFile


def ask_for_files(
    a: ProductOperand, b: ProductOperand, arguments: ProductArguments, headers: dict[str, str], **more: object | None
) -> Flow[HttpRequest]:
    """The request for a product of which an operand is a file: the service alone knows its sizes.

    The other may be a file too, one that the service keeps, or an array of two dimensions, or three. Raises TypeError,
    ValueError for other ones.
    """
    how = {name: getattr(arguments, name) for name in ("precision", "device", "kernel", "verify", "placement")}
    query: dict[str, object | None] = {**how, **more}
    body: list[memoryview] = []
    for name, value, turned in (("a", a, arguments.trans_a), ("b", b, arguments.trans_b)):
        if isinstance(value, ServiceFile):
            query |= {f"{name}_file": value.name, f"trans_{name}": turned != value.transposed}
            query |= {"dtype": value.dtype} if value.dtype else {}
        elif isinstance(value, Matrix):
            query |= {name: value.name, f"trans_{name}": turned != value.transposed}
        else:
            array = _matrix(value)
            query |= {f"trans_{name}": turned, "dtype": array.dtype.name}
            body = yield Work(partial(_written, array))
            headers = {**headers, "Content-Type": _npy.MEDIA}
    return HttpRequest("POST", target("/matmul", query), body, headers, again="c" not in more)


def read_product(head: ResponseHead, body: Body) -> Flow[tuple[Any, Array]]:
    """The headers of an answer, and C, whose shape and dtype it tells."""
    return head.headers, (yield from _npy.read(None)(head, body))


def put_into(out: Array | tuple[Array] | None, c: Array) -> Array:
    """C in the array that it is to go to; raises TypeError, ValueError where that cannot take it."""
    given = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if given is None:
        return c
    if not isinstance(given, np.ndarray):
        raise TypeError(f"out is an array, got {type(given).__name__}")
    if given.shape != c.shape:
        raise ValueError(f"out has the shape {given.shape}, the product {c.shape}")
    np.copyto(given, c, casting="same_kind")
    return given


def _written(array: Array) -> list[memoryview]:
    return _npy.written(np.ascontiguousarray(array))


def _matrix(value: Operand) -> Array:
    array = arrayed(value)
    if array.ndim not in _MATRIX or not array.size:
        raise ValueError(f"beside a file an operand is a matrix or a batch of them, not empty, got {array.shape}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
