"""Tolerances of emulated products: sequential FMAs' error on N(0,1), an element-wise bound on adversarial ones.

The class promises a relative L2 error of at most 1.1 times that of float32 FMAs, one k after the other, on the same
operands from N(0,1), and |error|_ij <= k 2^-23 (|A||B|)_ij on all that is not declined. On N(0,1) with k from 256 on
the second follows from the largest |error|_ij / (|a_i| |b_j|) that verify allows: (|A||B|)_ij is about 2/pi k there.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from app.dtypes import Array
from kernels.fp32_emulation import reason

OF_SEQUENTIAL: Final = 1.1
HOSTILE: Final = ("cancellation", "wide exponents", "denormals", "near overflow")
_SIDE: Final = 64  # rows and columns of which sequential sums are made: their error is known to a per cent or two
_UNIT: Final = 2.0**-23
_USUAL: Final = 0.28 * 2.0**-24  # of sqrt(k); over thousands of elements it is 0.29 to 0.30


def sequential(left: Array, right: Array) -> float:
    """The relative L2 error of sequential float32 FMAs, on up to 64 rows of op(A) and 64 columns of op(B) of a batch.

    Operands are [batch, m, k] and [batch, k, n]. A product is exact in float64; that the sum is rounded there too
    before it is rounded to float32 hardly ever tells. No less than a little under the average is given: a C of few
    elements may be right by luck.
    """
    rows, columns = (slice(None, None, -(-size // _SIDE)) for size in (left.shape[1], right.shape[2]))
    a, b = left[0, rows].T.astype(np.float64), right[0, :, columns].astype(np.float64)
    sums = np.zeros((a.shape[1], b.shape[1]), np.float32)
    for column, row in zip(a, b, strict=True):
        sums = (sums + column[:, None] * row).astype(np.float32)
    expected = a.T @ b
    norm = float(np.linalg.norm(expected))
    found = float(np.linalg.norm(sums - expected)) / norm if norm else 0.0
    return max(found, _USUAL * math.sqrt(left.shape[2]))


def inject(kind: str, a: Array, b: Array, seed: int) -> None:
    """Make ordinary op(A) [batch, m, k] and op(B) [batch, k, n] hostile, in place."""
    generator, k = np.random.default_rng(seed), a.shape[2]
    if kind == "cancellation":
        half = k // 2
        a[:, :, half : 2 * half] = a[:, :, :half]
        b[:, half : 2 * half] = -b[:, :half] * np.float32(1 + 2**-20)
        return
    nowhere = np.zeros(1, np.int64)
    shifts = {
        "wide exponents": (generator.integers(-30, 1, a.shape), generator.integers(-30, 1, b.shape)),
        "denormals": (nowhere - 132, nowhere + 105),
        "near overflow": (nowhere + 60, nowhere + 60 - k.bit_length()),
    }
    left, right = shifts[kind]
    a[...], b[...] = np.ldexp(a, left), np.ldexp(b, right)


def excess(a: Array, b: Array, reference: Array, c: Array) -> str | None:
    """Say which part of C is off by more than k 2^-23 |A||B|, NaN included; None: none. All is [batch, ...]."""
    with np.errstate(over="ignore", invalid="ignore"):  # findings, not warnings
        error = np.abs(c - reference.reshape(c.shape))
        allowed = a.shape[2] * _UNIT * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
        off = int(np.count_nonzero(~(error <= allowed)))
        most = float(np.divide(error, allowed, out=np.zeros_like(error), where=allowed > 0).max())
    worst = "" if math.isnan(most) else f", by up to {most:.2g} times that"
    return f"{off} of {c.size} elements are off by more than k 2^-23 |A||B|{worst}" if off else None


def refusal(verdict: int) -> str:
    """Why a kernel that declined ordinary operands is not to be served."""
    return f"declined operands in its range: {reason(verdict)}"
