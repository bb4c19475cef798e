"""NumPy's .npy: a header by hand, never a pickle, and numbers by views of the bytes that are there."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format

from app.api.formats.operand_spec import CHOICES, TensorSpec, described, float_name
from app.dtypes import Array, numpy_dtype
from app.errors import InvalidMatrix, Malformed

MEDIA: Final = "application/x-npy"
_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {1: "<H", 2: "<I", 3: "<I"}
_LONGEST: Final = 10_000  # bytes of a header; numpy itself writes 128 for a matrix
PREFIX: Final = len(_MAGIC) + 2 + 4 + _LONGEST  # bytes that surely hold the longest header
FRONT: Final = len(_MAGIC) + 2 + 4  # bytes that tell how long the header is
_DIGITS: Final = 19  # more than any size of an array that a body could hold
# The three members of a header as numpy's files have them, of Python 2 too: text, True or False, sizes, or a list of
# fields. Nothing is evaluated: a deep enough expression can end a process.
_MEMBER: Final = re.compile(
    r"""\s*(['"])(?P<name>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(['"])(?P<descr>[^'"\\]{1,40})\3|(?P<order>True|False)|\((?P<sizes>[-\d\sL,]*)\)|(?P<fields>\[))\s*(?:,|$|(?<=\[))""",
    re.ASCII,
)
_SIZE: Final = re.compile(r"\s*(-?\d+)L?\s*", re.ASCII)
_DESCR: Final = re.compile(r"[<>=|]?[?b-zA-Z]\d{0,4}(\[\w{1,10}\])?|bfloat16", re.ASCII)
# numpy knows nothing of bfloat16 and writes its arrays as bytes in pairs, of any meaning: a caller must say which.
_PAIRS: Final = {"<V2", "|V2"}
_UNREADABLE: Final = "has a header that cannot be read"


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

    Raises Malformed where it is none or its numbers are not all there, InvalidMatrix for its type.
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

    Raises Malformed, and InvalidMatrix where the type is none of the four. bfloat16 comes as numpy writes ml_dtypes',
    `<V2` or `|V2`, where that is what the caller said; or under its own name.
    """
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
    return _described(name, raw[start : start + length], start + length, dtype)


def header_end(name: str, front: bytes) -> int:
    """The byte at which the numbers start, from the FRONT bytes of a .npy; raises Malformed."""
    length_format = _LENGTHS.get(front[len(_MAGIC)]) if front.startswith(_MAGIC) and len(front) == FRONT else None
    if length_format is None:
        raise Malformed(f"{name} is no .npy: it does not start as one")
    start = len(_MAGIC) + 2 + struct.calcsize(length_format)
    (length,) = struct.unpack(length_format, front[len(_MAGIC) + 2 : start])
    if length > _LONGEST:
        raise Malformed(f"{name} has a header of {length} bytes, the limit is {_LONGEST}", limit=_LONGEST, size=length)
    return max(int(start + length), FRONT)


def begun(name: str, front: bytes, dtype: str | None = None) -> NpyHeader | None:
    """The header of a .npy that begins so, None where more is needed; raises as `header`."""
    if len(front) < FRONT or len(front) < header_end(name, front[:FRONT]):
        return None
    return header(name, memoryview(front), dtype)


def _described(name: str, text: bytes, start: int, said: str | None) -> NpyHeader:
    members = _members(name, text.decode("latin1").strip())
    dtype = _dtype(name, members["descr"], said)
    found = described(name, float_name(dtype, name), _shape(name, members["sizes"]))
    return NpyHeader(found, dtype, members["order"] == "True", start)


def _dtype(name: str, descr: str, said: str | None) -> np.dtype[Any]:
    if descr == "bfloat16" or (descr in _PAIRS and said == "bfloat16"):
        return numpy_dtype("bfloat16")
    if descr in _PAIRS:
        message = f"{name} is {descr}, bytes in pairs: say dtype=bfloat16 if that is what they are"
        raise InvalidMatrix(message, operand=name, dtype=descr)
    try:
        return np.dtype(descr)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise Malformed(f"{name} {_UNREADABLE}") from error


def _members(name: str, text: str) -> dict[str, str]:
    """The text of each member by its kind; raises Malformed where they are not the three, InvalidMatrix for fields."""
    kinds = {"descr": "descr", "fortran_order": "order", "shape": "sizes"}
    found: dict[str, str] = {}
    at, end = 1, len(text) - 1
    while (match := _MEMBER.match(text, at, end)) is not None:
        if match["name"] == "descr" and match["fields"]:
            raise InvalidMatrix(f"{name} is structured: send {CHOICES}", operand=name, dtype="structured")
        kind = kinds.pop(match["name"], None)
        if kind is None or match[kind] is None:
            break
        found[kind], at = match[kind], match.end()
    if kinds or text[:1] != "{" or text[end:] != "}" or text[at:end].strip() or not _DESCR.fullmatch(found["descr"]):
        raise Malformed(f"{name} {_UNREADABLE}")
    return found


def _shape(name: str, text: str) -> tuple[int, ...]:
    """Sizes as a tuple is written: one alone has a comma after it."""
    *sizes, last = text.split(",")
    sizes += [last] if last.strip() and sizes else []
    found = [_SIZE.fullmatch(size) for size in sizes]
    if (last.strip() and not sizes) or not all(found):
        raise Malformed(f"{name} {_UNREADABLE}")
    digits = [match[1] for match in found if match is not None]
    if any(size.startswith("-") or len(size) > _DIGITS for size in digits):
        raise InvalidMatrix(f"{name} has a size that no array has", operand=name)
    return tuple(map(int, digits))


def prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What a .npy of C-ordered native numbers starts with."""
    out = io.BytesIO()
    descr = npy_format.dtype_to_descr(numpy_dtype(dtype))
    npy_format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()
