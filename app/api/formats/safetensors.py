"""The safetensors format: a JSON header and tensors a and b."""

from __future__ import annotations

import struct
from math import prod
from typing import Any, Final

import orjson

from app.api.formats.operand_spec import OPERANDS, TensorSpec, called, described
from app.errors import InvalidMatrix, Malformed
from kernels.problem import ITEMSIZE

MEDIA: Final = "application/vnd.safetensors"
LENGTH: Final = 8  # bytes of the header's length
_LONGEST: Final = 2**16
_DTYPES: Final = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16"}
_CODES: Final = {name: code for code, name in _DTYPES.items()}


def header_bytes(front: bytes) -> int:
    """The header's length; raises Malformed if it is over 64 KiB."""
    (length,) = struct.unpack("<Q", front)
    if not 0 < length <= _LONGEST:
        message = f"the safetensors header has {length} bytes, the limit is {_LONGEST}"
        raise Malformed(message, limit=_LONGEST, size=length)
    return int(length)


def header(text: bytes, names: tuple[str, ...] = OPERANDS) -> dict[str, TensorSpec]:
    """The operands that a header tells of, in the order of their bytes.

    Raises Malformed if it is off, InvalidMatrix if it does not tell of floats of those names.
    """
    try:
        members = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the safetensors header is no JSON: {error}") from error
    if not isinstance(members, dict):
        raise Malformed("the safetensors header is no object")
    members.pop("__metadata__", None)
    meant = called(members, names, "the file")
    spans = {meant[told]: _tensor(meant[told], member) for told, member in members.items()}
    order = sorted(spans, key=lambda name: spans[name][1])
    end = 0
    for name in order:
        if spans[name][1] != end:
            raise Malformed(f"the bytes of {name} start at {spans[name][1]}, not at {end}: no hole, no overlap")
        end += spans[name][0].nbytes
    return {name: spans[name][0] for name in order}


def _tensor(name: str, member: Any) -> tuple[TensorSpec, int]:
    """One tensor and the offset of its first byte."""
    told: dict[str, Any] = member if isinstance(member, dict) else {}
    dtype: Any = told.get("dtype")
    shape: Any = told.get("shape")
    offsets: Any = told.get("data_offsets")
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != len(("start", "end")):
        raise Malformed(f"the safetensors header does not describe {name}")
    if dtype not in _DTYPES:
        raise InvalidMatrix(f"{name} is {dtype[:20]}: send {', '.join(_DTYPES)}", operand=name, dtype=dtype[:20])
    found = described(name, _DTYPES[dtype], tuple(shape))
    if offsets[1] - offsets[0] != found.nbytes:
        message = f"{name} takes {found.nbytes} bytes, its offsets leave {offsets[1] - offsets[0]}"
        raise Malformed(message, expected=found.nbytes, size=offsets[1] - offsets[0])
    return found, int(offsets[0])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What a file with the one tensor c starts with, padded so that its numbers are aligned."""
    nbytes = prod(shape) * ITEMSIZE[dtype]
    text = orjson.dumps({"c": {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [0, nbytes]}})
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
