"""Matrices in .npy files, and a product checked against NumPy."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.cli.options import SERVICE
from app.dtypes import numpy_dtype
from kernels.problem import ITEMSIZE
from tilewise import Problem, ServiceFile

Array = NDArray[Any]
_PAIRS: Final = np.dtype("V2")


def load(path: Path, dtype: str | None = None) -> Array:
    """One .npy file's array, of either order and byte order; raises ValueError if it is no such file.

    A dash is standard input. NumPy's files do not say that their numbers are bfloat16: `dtype` does, and has to agree
    with what they do say.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else None
        array = np.load(path if content is None else io.BytesIO(content), allow_pickle=False)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ValueError(f"{name} is no .npy file of numbers") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{name} is an archive; one .npy file was expected")  # noqa: TRY004 - a wrong file
    if array.dtype == _PAIRS and dtype == "bfloat16":
        return array.view(numpy_dtype(dtype))
    if array.dtype == _PAIRS and dtype is None:
        raise ValueError(f"{name} has bytes in pairs: say --dtype bfloat16 if that is what they are")
    if dtype is not None and array.dtype.name != dtype:
        raise ValueError(f"{name} is of {array.dtype}, not {dtype}")
    return array


def named(path: Path, dtype: str | None = None) -> Array | ServiceFile:
    """The operand of one .npy file, as `load` reads it, or of a file that the service has; raises ValueError."""
    name = str(path)
    if name.startswith(SERVICE):
        return ServiceFile(name.removeprefix(SERVICE), dtype)
    return operand(load(path, dtype))


def save(path: Path, array: Array) -> None:
    """Write one .npy file beside its place and put it there whole, or to standard output; raises OSError."""
    if str(path) == "-":
        whole = io.BytesIO()
        np.save(whole, array, allow_pickle=False)
        sys.stdout.buffer.write(whole.getbuffer())
        sys.stdout.buffer.flush()
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def relative_l2(a: Array, b: Array, c: Array, trans_a: bool = False, trans_b: bool = False) -> float:
    """|C - reference| / |reference| in float64, the reference being NumPy's product of the same operands."""
    left = np.asarray(a, dtype=np.float64)
    right = np.asarray(b, dtype=np.float64)
    reference = (left.swapaxes(-1, -2) if trans_a else left) @ (right.swapaxes(-1, -2) if trans_b else right)
    scale = float(np.linalg.norm(reference))
    error = float(np.linalg.norm(np.asarray(c, dtype=np.float64) - reference))
    return error / scale if scale else error


def operand(values: ArrayLike) -> Array:
    """Make a matrix, or a batch of them, C-contiguous and of native byte order; copied only where it is not."""
    array = np.asarray(values)
    if array.ndim not in (2, 3):
        raise ValueError(f"an operand has two dimensions, or three for a batch, got {array.ndim}")
    if array.dtype.name not in ITEMSIZE:
        raise ValueError(f"an operand is one of {', '.join(ITEMSIZE)}, got {array.dtype}: convert it first")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def problem(a: Array, b: Array, trans_a: bool, trans_b: bool, precision: str) -> Problem:
    """Say what problem two stored operands make; raises ValueError if they do not fit each other."""
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
