"""Operands as the octet-stream form wants them, and the product's headers read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.client.answers import Problem
from kernels.problem import ITEMSIZE

Array = NDArray[Any]


def operand(values: ArrayLike) -> Array:
    """Make a matrix, or a batch of them, C-contiguous and of native byte order; copied only where it is not."""
    array = np.asarray(values)
    if array.ndim not in (2, 3):
        raise ValueError(f"an operand has two dimensions, or three for a batch, got {array.ndim}")
    if array.dtype.name not in ITEMSIZE:
        raise ValueError(f"an operand is one of {', '.join(ITEMSIZE)}, got {array.dtype}: convert it first")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def problem(a: Array, b: Array, trans_a: bool, trans_b: bool, precision: str) -> Problem:
    """Say what problem two stored operands make; raises ValueError where they do not fit each other."""
    if a.dtype != b.dtype:
        raise ValueError(f"operands share one dtype, got {a.dtype} and {b.dtype}")
    if a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"operands are two matrices or two equal batches, got shapes {a.shape} and {b.shape}")
    m, k = a.shape[-2:][::-1] if trans_a else a.shape[-2:]
    depth, n = b.shape[-2:][::-1] if trans_b else b.shape[-2:]
    if k != depth:
        raise ValueError(f"inner dimensions disagree: op(A) is {m} x {k}, op(B) is {depth} x {n}")
    batch = a.shape[0] if a.ndim == 3 else 1  # noqa: PLR2004 - three dimensions are a batch
    return Problem(m, n, k, batch, a.dtype.name, precision, trans_a, trans_b)


def flat(array: Array) -> memoryview:
    """Give a C-contiguous array's own bytes, not copied."""
    return array.reshape(-1).view(np.uint8).data


def config(header: str) -> Mapping[str, int]:
    """Read X-Config: an object, or BM=16,BN=16."""
    if header.startswith("{"):
        return dict(json.loads(header))
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in header.split(",") if pair)}


def timing(header: str) -> Mapping[str, float]:
    """Read Server-Timing's durations in milliseconds, by name."""
    entries = [entry.strip().split(";") for entry in header.split(",")]
    return {name: float(each[4:]) for name, *parameters in entries for each in parameters if each.startswith("dur=")}
