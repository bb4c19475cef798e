"""Operands and product options as every format describes them, and the problem that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Final, Literal

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.errors import Invalid, InvalidMatrix
from kernels.problem import ITEMSIZE, Problem

_FLOATS: Final = frozenset(numpy_dtype(name) for name in ITEMSIZE)
_MATRIX, _BATCH = 2, 3
_MOST_DIMENSIONS: Final = 64  # of any array of numpy's
_MOST_BYTES: Final = 2**62  # no memory has as many: what is told of more is not reckoned with

CHOICES: Final = "float32, float64, float16 or bfloat16"
OPERANDS: Final = ("a", "b")
ONE: Final = ("matrix",)  # the operand of a body that is one matrix, whatever it is called there


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """What a caller said of a product beside its operands; None is unsaid.

    `a`, `b` and `c` are names of resident matrices: operands that the body does not have, and what C becomes. So are
    `a_file` and `b_file` names of files.
    """

    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    dtype: str | None = None
    precision: str | None = None
    trans_a: bool | None = None
    trans_b: bool | None = None
    device: str | None = None
    kernel: str | None = None
    convert: bool | None = None
    a: str | None = None
    b: str | None = None
    c: str | None = None
    evictable: bool | None = None
    verify: str | None = None
    placement: Literal["auto", "one", "all"] | None = None
    a_file: str | None = None
    b_file: str | None = None

    @property
    def how(self) -> tuple[str | None, str | None, str | None]:
        """The device, the kernel, and how C is verified."""
        return self.device, self.kernel, self.verify

    @property
    def sent(self) -> tuple[str, ...]:
        """The operands that the body has."""
        return tuple(name for name in OPERANDS if getattr(self, name) is None and name not in self.files)

    @property
    def files(self) -> dict[str, str]:
        """The operands that are files, with their names."""
        return {name: file for name, file in (("a", self.a_file), ("b", self.b_file)) if file is not None}

    def with_body(self, body: ProductOptions) -> ProductOptions:
        """Both what the query and what the body say; raises Invalid if they disagree."""
        for name, inside in body.said().items():
            outside = getattr(self, name)
            if outside is not None and outside != inside:
                raise Invalid(f"{name} is {_word(outside)} in the query and {_word(inside)} in the body", member=name)
        return ProductOptions(**(self.said() | body.said()))

    def said(self) -> dict[str, Any]:
        """The members that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One operand as its format describes it, before its numbers are looked at."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


TensorSpecs = Mapping[str, TensorSpec]
Places = Mapping[str, Array]
Fill = Callable[[Places], None]


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A body that was understood: its operands by name, and `fill`, which copies them to where they are wanted.

    `beside` is how many bytes `fill` borrows on the way.
    """

    found: TensorSpecs
    wanted: ProductOptions
    fill: Fill
    beside: int = 0


def described(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """An operand that a header tells of; raises InvalidMatrix for sizes that no array has."""
    found = TensorSpec(name, dtype, shape)
    if len(shape) > _MOST_DIMENSIONS or max(shape, default=0) > _MOST_BYTES or found.nbytes > _MOST_BYTES:
        raise InvalidMatrix(f"{name} has a size that no array has", operand=name)
    return found


def float_name(dtype: np.dtype[Any], operand: str) -> str:
    """The name of one of the four dtypes in any byte order; raises InvalidMatrix for every other type."""
    try:
        native = dtype.newbyteorder("=")
    except TypeError:  # NumPy's newer dtypes, such as that of strings of any length, have no byte order
        native = dtype
    if native not in _FLOATS:
        kind = "structured" if dtype.fields is not None else native.name
        raise InvalidMatrix(f"{operand} is {kind}: send {CHOICES}", operand=operand, dtype=kind)
    return native.name


def called(there: Iterable[str], names: tuple[str, ...], what: str) -> dict[str, str]:
    """The operand that each name in a body means, where the body should have `names`; raises InvalidMatrix."""
    told = sorted(there)
    if names == ONE and len(told) == 1:
        return {told[0]: ONE[0]}
    if told != sorted(names):
        shown = ", ".join(name[:60] for name in told[:4]) or "nothing"
        wanted = "one matrix" if names == ONE else " and ".join(names)
        raise InvalidMatrix(f"{what} holds {wanted}, this one holds {shown}", names=[name[:60] for name in told[:4]])
    return {name: name for name in told}


def problem_of(a: TensorSpec, b: TensorSpec, wanted: ProductOptions) -> Problem:
    """The problem of two operands; raises InvalidMatrix where they do not fit, Invalid if `wanted` disagrees."""
    batch = _batch(a, b)
    if a.dtype != b.dtype:
        raise InvalidMatrix(f"a is {a.dtype} and b is {b.dtype}: send one type", a=a.dtype, b=b.dtype)
    trans_a, trans_b = bool(wanted.trans_a), bool(wanted.trans_b)
    m, k = a.shape[-2:][::-1] if trans_a else a.shape[-2:]
    depth, n = b.shape[-2:][::-1] if trans_b else b.shape[-2:]
    if k != depth:
        message = f"inner dimensions disagree: op(A) is {m} x {k}, op(B) is {depth} x {n}"
        raise InvalidMatrix(message, a=list(a.shape), b=list(b.shape))
    found = Problem(m, n, k, batch, a.dtype, wanted.precision or "strict", trans_a, trans_b)
    for name, value in wanted.said().items():
        if name in Problem.__dataclass_fields__ and getattr(found, name) != value:
            raise Invalid(f"{name} is {_word(getattr(found, name))}, the request says {_word(value)}", member=name)
    return found


def told_problem(told: ProductOptions) -> Problem:
    """The problem of matrices that do not describe themselves; raises Invalid if their sizes are not told."""
    if told.m is None or told.n is None or told.k is None:
        missing = [name for name in ("m", "n", "k") if getattr(told, name) is None]
        message = f"application/octet-stream needs {', '.join(missing[:-1])}{' and ' * (len(missing) > 1)}"
        raise Invalid(f"{message}{missing[-1]} in the query", missing=missing)
    kind = (told.dtype or "float32", told.precision or "strict", bool(told.trans_a), bool(told.trans_b))
    return Problem(told.m, told.n, told.k, told.batch or 1, *kind)


def bytes_of(array: Array) -> memoryview:
    """A C-contiguous array's own bytes, writable."""
    return array.reshape(-1).view(np.uint8).data


def is_stacked(a: TensorSpec) -> bool:
    """Whether an operand is a batch, be it of one."""
    return len(a.shape) == _BATCH


def is_matrix(operand: TensorSpec) -> bool:
    """Whether it is a matrix or a batch of them, and none is empty."""
    return len(operand.shape) in (_MATRIX, _BATCH) and min(operand.shape) >= 1


def check_shape(operand: TensorSpec) -> None:
    """Refuse what is neither a matrix nor a batch of them; raises InvalidMatrix."""
    if len(operand.shape) not in (_MATRIX, _BATCH):
        message = f"{operand.name} has {len(operand.shape)} dimensions: a matrix has two, a batch of them three"
        raise InvalidMatrix(message, operand=operand.name, shape=list(operand.shape))
    if min(operand.shape) < 1:
        message = f"{operand.name} is {_by(operand.shape)}: every size is at least 1"
        raise InvalidMatrix(message, operand=operand.name, shape=list(operand.shape))


def _batch(a: TensorSpec, b: TensorSpec) -> int:
    for operand in (a, b):
        check_shape(operand)
    if a.shape[:-2] != b.shape[:-2]:
        message = f"a is {_by(a.shape)} and b is {_by(b.shape)}: both are matrices, or batches of as many"
        raise InvalidMatrix(message, a=list(a.shape), b=list(b.shape))
    return a.shape[0] if is_stacked(a) else 1


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
