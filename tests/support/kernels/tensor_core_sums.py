"""Float16 tensor cores in NumPy: what sums of products lose there, and float32 products split into halves for them.

An instruction takes products in blocks, which are exact, with the accumulator: all are cut off at `extra` bits below
24 of the power of two that the largest one's exponents make, added exactly, and cut off to 24 bits. Blocks of 4 and no
extra bits are V100's, blocks of 8 and one are A100's, blocks of 16 and two are H100's (Fasi, Higham, Mikaitis and
Pranesh, PeerJ Comput. Sci. 7, 2021; Khattak and Mikaitis, arXiv 2512.07004, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
DEEP: Final = 16
_NOTHING: Final = -10_000
_LEAST_HALF: Final = -14
_LEAST: Final = -126


@dataclass(frozen=True)
class Core:
    """A generation of tensor cores: products added at once, and bits kept below the 24 of a float."""

    block: int
    extra: int


VOLTA, AMPERE, HOPPER = Core(4, 0), Core(8, 1), Core(16, 2)


def added(core: Core, sums: Array, a: Array, b: Array) -> Array:
    """sums [m, n] + a [m, k] b [k, n], of halves held as float64, as the core's instructions one after the other do."""
    exponents_a, exponents_b = _exponents(a, _LEAST_HALF), _exponents(b, _LEAST_HALF)
    for start in range(0, a.shape[1], core.block):
        part = slice(start, start + core.block)
        products = a[:, part, None] * b[None, part]
        made = exponents_a[:, part, None] + exponents_b[None, part]
        top = np.maximum(np.maximum(made.max(1), _exponents(sums, _LEAST)), _LEAST)
        last = np.ldexp(1.0, top - 23 - core.extra)
        total = _cut(sums, last) + _cut(products, last[:, None]).sum(1)
        sums = _cut(total, np.ldexp(1.0, np.maximum(_exponents(total, _LEAST), _LEAST) - 23))
    return sums


def halves(lines: Array) -> tuple[Array, Array, Array]:
    """High and low halves, as float64, of lines [count, k] of float32, and their exponents [count, 1]."""
    top = np.abs(lines).max(1, keepdims=True)
    exponents = np.where(top > 0, np.frexp(top)[1] - 15, 0)
    scaled = np.ldexp(lines.astype(np.float64), -exponents)
    high = scaled.astype(np.float16).astype(np.float64)
    return high, ((scaled - high) * 2048).astype(np.float16).astype(np.float64), exponents


def emulated(core: Core, a: Array, b: Array, promote: int) -> Array:
    """a [m, k] b [k, n] of float32, emulated as kernels.fp32_emulation says; float32, subnormal results included."""
    (high_a, low_a, rows), (high_b, low_b, columns) = halves(a), halves(b.T)
    high_b, low_b = high_b.T, low_b.T
    total, crossed = (np.zeros((a.shape[0], b.shape[1]), dtype) for dtype in (np.float32, np.float64))
    for start in range(0, a.shape[1], promote):
        part = slice(start, start + promote)
        total += added(core, np.zeros(total.shape), high_a[:, part], high_b[part]).astype(np.float32)
    for start in range(0, a.shape[1], DEEP):
        part = slice(start, start + DEEP)
        crossed = added(core, crossed, high_a[:, part], low_b[part])
        crossed = added(core, crossed, low_a[:, part], high_b[part])
    both = (total.astype(np.float64) + crossed / 2048).astype(np.float32)
    return np.asarray(np.ldexp(both.astype(np.float64), rows + columns.T), np.float32)


def declined(a: Array, b: Array) -> int:
    """The verdict of kernels/steps/split_fp16.cu on a [m, k] and b [k, n]."""
    lines = (a, np.ascontiguousarray(b.T))
    if not all(np.isfinite(each).all() for each in lines):
        return 1
    told = [_told(each) for each in lines]
    lowest, highest = (sum(pick(each[0]) for each in told) for pick in (min, max))
    lossy = any(each[1] for each in told)
    (some_a, most_a), (some_b, most_b) = ((each[2], each[3]) for each in told)
    outside = lowest < -90 or highest + 30 + int(a.shape[1]).bit_length() > 127
    return outside << 1 | (lossy and (some_a or most_b) and (most_a or some_b)) << 2


def bound(a: Array, b: Array) -> Array:
    """k 2^-23 |a| |b|, which no element's error may exceed."""
    return np.asarray(a.shape[1] * 2.0**-23 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)))


def exact(a: Array, b: Array) -> Array:
    """a b in long double: products of float32 are exact, and sums nearly."""
    return np.asarray(a.astype(np.longdouble) @ b.astype(np.longdouble))


def _told(lines: Array) -> tuple[list[int], bool, bool, bool]:
    """A matrix's exponents, whether an element is no normal half, and whether some or most of a part are small."""
    exponents = halves(lines)[2]
    with np.errstate(under="ignore"):
        scaled = np.abs(np.ldexp(lines.astype(np.float64), -exponents))
    k = lines.shape[1]
    edges = [*range(0, max(1, k // 256) * 256, 256), k]
    small = [(scaled[:, i:j] < 4).sum(1).max() / (j - i) for i, j in pairwise(edges)]
    lossy = bool(((scaled < 2.0**-14) & (lines != 0)).any())
    return exponents.ravel().tolist(), lossy, max(small) > 1 / 16, max(small) > 11 / 16


def _exponents(values: Array, least: int) -> Array:
    return np.where(values == 0, _NOTHING, np.maximum(np.frexp(values)[1] - 1, least))


def _cut(values: Array, last: Array) -> Array:
    return np.asarray(np.trunc(values / last) * last)


def sequential(a: Array, b: Array) -> Array:
    """a b by float32 FMAs, one k after the other; rounded by way of float64, which hardly ever tells."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for column, row in zip(a.T.astype(np.float64), b.astype(np.float64), strict=True):
        sums = (sums + column[:, None] * row).astype(np.float32)
    return sums
