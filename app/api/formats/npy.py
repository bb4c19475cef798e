"""NumPy's .npy: a header by hand, never a pickle, and numbers by views of the bytes that are there."""

from __future__ import annotations

import ast
import io
import struct
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from app.api.formats.operands import Described, float_name
from app.devices.base import Array
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "application/x-npy"
_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {1: "<H", 2: "<I", 3: "<I"}
_LONGEST: Final = 10_000  # bytes of a header; numpy itself writes 128 for a matrix
PREFIX: Final = len(_MAGIC) + 2 + 4 + _LONGEST  # bytes that surely hold the longest header
_DIGITS: Final = 19  # more than any size of an array that a body could hold


@dataclass(frozen=True, slots=True)
class Npy:
    """A header: what the operand is, how its numbers lie, and at which byte they start."""

    described: Described
    dtype: np.dtype[Any]
    fortran: bool
    start: int

    @property
    def plain(self) -> bool:
        """Whether the numbers lie as the slab wants them: row after row, in this machine's byte order."""
        return not self.fortran and self.dtype.isnative

    def array(self, numbers: memoryview) -> Array:
        """The operand as a view of its bytes."""
        flat = np.frombuffer(numbers, dtype=self.dtype, count=prod(self.described.shape))
        shape = self.described.shape
        return flat.reshape(shape[::-1]).T if self.fortran else flat.reshape(shape)


def read(name: str, data: memoryview) -> tuple[Npy, Array]:
    """A whole .npy; raises Malformed where it is none or its numbers are not all there, InvalidMatrix for its type."""
    found = header(name, data[:PREFIX])
    there, needed = len(data) - found.start, found.described.nbytes
    check_size(name, needed, there)
    return found, found.array(data[found.start :])


def check_size(name: str, needed: int, there: int) -> None:
    """Refuse an operand whose numbers are not exactly there; raises Malformed."""
    if there != needed:
        word = "truncated" if there < needed else "too long"
        raise Malformed(
            f"{name} is {word}: its header tells of {needed} bytes, {there} follow", expected=needed, size=there
        )


def header(name: str, prefix: memoryview) -> Npy:
    """The header at the front of a .npy; raises Malformed, and InvalidMatrix where the type is no float."""
    raw = bytes(prefix)
    if not raw.startswith(_MAGIC) or len(raw) < len(_MAGIC) + 2:
        raise Malformed(f"{name} is no .npy: it does not start as one")
    length_format = _LENGTHS.get(raw[len(_MAGIC)])
    if length_format is None:
        raise Malformed(f"{name} is a .npy of unknown version {raw[len(_MAGIC)]}")
    at = len(_MAGIC) + 2
    start = at + struct.calcsize(length_format)
    if len(raw) < start:
        raise Malformed(f"{name} is truncated within its header")
    (length,) = struct.unpack(length_format, raw[at:start])
    if length > _LONGEST:
        raise Malformed(f"{name} has a header of {length} bytes, the limit is {_LONGEST}", limit=_LONGEST, size=length)
    if len(raw) < start + length:
        raise Malformed(f"{name} is truncated within its header")
    return _described(name, raw[start : start + length], start + length)


def _described(name: str, text: bytes, start: int) -> Npy:
    try:
        members = ast.literal_eval(text.decode("latin1").strip())
        dtype = npy_format.descr_to_dtype(members["descr"])
        shape, fortran = members["shape"], members["fortran_order"]
    except (
        ValueError,
        TypeError,
        KeyError,
        SyntaxError,
        MemoryError,
        RecursionError,
        AttributeError,
        Warning,
    ) as error:
        raise Malformed(f"{name} has a header that cannot be read") from error
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape) or type(fortran) is not bool:
        raise Malformed(f"{name} has a header that cannot be read")
    if any(size < 0 or size >= 10**_DIGITS for size in shape):
        raise InvalidMatrix(f"{name} has a size that no array has", operand=name)
    return Npy(Described(name, float_name(dtype, name), shape), dtype, fortran, start)


def prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What a .npy of C-ordered native numbers starts with."""
    out = io.BytesIO()
    descr = npy_format.dtype_to_descr(np.dtype(dtype))
    npy_format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()
