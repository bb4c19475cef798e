"""Bodies of products in every form, made with the tools that a caller would use."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np

from app.dtypes import Array

MAX_BODY = 2**23  # the live service's limit
QUOTA, MANY = 2**23, 12  # bytes that it lets a caller keep, and matrices
BOUNDARY = "0123456789abcdef"
CODES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int32": "I32"}


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(*, packed: bool = False, **arrays: Array) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(out, **arrays)  # type: ignore[arg-type]  # numpy's stub wants no keywords
    return out.getvalue()


def form(**parts: bytes) -> bytes:
    pieces = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.npy"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in parts.items()
    ]
    return b"".join(pieces) + f"--{BOUNDARY}--\r\n".encode()


def safetensors(header: dict[str, Any] | None = None, **arrays: Array) -> bytes:
    described, at = {}, 0
    for name, array in arrays.items():
        span = [at, at + array.nbytes]
        described[name] = {"dtype": CODES[array.dtype.name], "shape": array.shape, "data_offsets": span}
        at += array.nbytes
    text = json.dumps(header if header is not None else described).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())


def rows(a: Array, b: Array, **members: Any) -> bytes:
    return json.dumps({"a": a.tolist(), "b": b.tolist(), **members}).encode()
