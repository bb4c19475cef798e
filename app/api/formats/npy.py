"""Reads and writes .npy files: NumPy reads the header, nothing is ever unpickled, and arrays are views of the bytes."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from app.api.formats.operand_spec import TensorSpec, described, float_name
from app.dtypes import Array, numpy_dtype
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "application/x-npy"
_MAGIC: Final = npy_format.MAGIC_PREFIX
_LENGTHS: Final = {1: "<H", 2: "<I", 3: "<I"}
# Version 3 is version 2 in UTF-8, which only names of fields need: arrays with fields are refused anyway.
_READERS: Final = {1: npy_format.read_array_header_1_0, 2: npy_format.read_array_header_2_0}
# NumPy's reader parses the text as a Python literal. At this length, its own default, no depth of nesting exhausts a
# thread's stack of 1 MiB: Python refuses to parse it.
_MAX_HEADER: Final = 10_000
PREFIX: Final = len(_MAGIC) + 2 + 4 + _MAX_HEADER  # bytes that surely hold the longest header
FRONT: Final = len(_MAGIC) + 2 + 4  # bytes that tell how long the header is
_PAIR: Final = np.dtype("V2")


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """A header: what the operand is, how its numbers lie, and at which byte they start."""

    described: TensorSpec
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


def read(name: str, data: memoryview, dtype: str | None = None) -> tuple[NpyHeader, Array]:
    """A whole .npy, of which a caller said its `dtype`.

    Raises Malformed if it is none or its numbers are not all there, InvalidMatrix for its type.
    """
    found = header(name, data[:PREFIX], dtype)
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


def header(name: str, prefix: memoryview, dtype: str | None = None) -> NpyHeader:
    """The header at the front of a .npy, of which a caller said its `dtype`.

    Raises Malformed, and InvalidMatrix if the type is none of the four. bfloat16 comes as NumPy writes ml_dtypes',
    `<V2` or `|V2`, if that is what the caller said; or under its own name.
    """
    raw = bytes(prefix)
    if len(raw) < header_end(name, raw[:FRONT]):
        raise Malformed(f"{name} is truncated within its header")
    file = io.BytesIO(raw)
    version, _ = npy_format.read_magic(file)
    try:
        shape, fortran, found = _READERS[min(version, 2)](file, max_header_size=_MAX_HEADER)
    except Exception as error:  # hostile text raises whatever Python's parser and NumPy's types raise
        raise Malformed(f"{name} has a header that cannot be read") from error
    if found == _PAIR:
        found = _bfloat16(name, "|V2" if b">V2" not in raw[: file.tell()] else ">V2", dtype)
    if any(size < 0 for size in shape):
        raise InvalidMatrix(f"{name} has a size that no array has", operand=name)
    return NpyHeader(described(name, float_name(found, name), tuple(map(int, shape))), found, fortran, file.tell())


def header_end(name: str, front: bytes) -> int:
    """The byte at which the numbers start, from the FRONT bytes of a .npy; raises Malformed."""
    if not front.startswith(_MAGIC):
        raise Malformed(f"{name} is no .npy: it does not start as one")
    if len(front) < FRONT:
        raise Malformed(f"{name} is truncated within its header")
    length_format = _LENGTHS.get(front[len(_MAGIC)])
    if length_format is None:
        raise Malformed(f"{name} is a .npy of unknown version {front[len(_MAGIC)]}")
    start = len(_MAGIC) + 2 + struct.calcsize(length_format)
    (length,) = struct.unpack(length_format, front[len(_MAGIC) + 2 : start])
    if length > _MAX_HEADER:
        message = f"{name} has a header of {length} bytes, the limit is {_MAX_HEADER}"
        raise Malformed(message, limit=_MAX_HEADER, size=length)
    return max(int(start + length), FRONT)


def _bfloat16(name: str, descr: str, said: str | None) -> np.dtype[Any]:
    """The type of bytes in pairs, as which NumPy writes bfloat16 and whatever else it has no name for.

    NumPy's reader drops their byte order: big-endian ones are refused.
    """
    if said == "bfloat16" and descr != ">V2":
        return numpy_dtype("bfloat16")
    message = f"{name} is {descr}, bytes in pairs: say dtype=bfloat16 if that is what they are, little-endian"
    raise InvalidMatrix(message, operand=name, dtype=descr)


def prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What a .npy of C-ordered native numbers starts with."""
    out = io.BytesIO()
    descr = npy_format.dtype_to_descr(numpy_dtype(dtype))
    npy_format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()
