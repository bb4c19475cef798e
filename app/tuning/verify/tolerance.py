"""Verification: two error measures against a float64 product, and their tolerances."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.errors import WrongResult
from app.tuning.outcome import Accuracy
from app.tuning.verify import emulation
from kernels.problem import Problem

POISON: Final = 0xFF  # a float whose every byte is this is a NaN, and one that no arithmetic makes
_UNIT: Final = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_LEAST: Final = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # the smallest denormals of the 16-bit dtypes
_TF32: Final = 2.0**-11  # what rounding an operand to TF32's 11 bits costs
_EXPONENT: Final = np.int64(0x7FF0000000000000)  # the bits of a float64's exponent
_STRAY: Final = 3.0
_CHUNK: Final = 2**17  # elements compared at once: 1 MiB of float64, so that the passes over them stay in cache
_DRAWN: Final = 2**20  # elements drawn by one generator, or whose squares are added up at once
_PIECES_A_THREAD: Final = 4  # fewer are not worth a thread's start
_SPOTS: Final = 32

T = TypeVar("T")
R = TypeVar("R")
Piece: TypeAlias = tuple[slice, slice]
Compared: TypeAlias = tuple[float, float, float]  # the sum of squares, the largest error, that beyond rounding


@dataclass(frozen=True, slots=True)
class Norms:
    """What the errors of a product are judged by.

    `whole` is the norm of the reference over all batches, and `usual` its mean over operands whose rows and columns
    have the same norms. For an emulated problem `sequential` is the relative L2 error of sequential float32 FMAs.
    """

    whole: float
    usual: float
    sequential: float | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected product: the float64 reference [batch, m, n], and the norms that scale its errors.

    `rows` are the norms of op(A)'s rows [batch, m], `columns` those of op(B)'s columns [batch, n].
    """

    reference: Array
    rows: Array
    columns: Array
    norms: Norms


@dataclass(frozen=True, slots=True)
class Errors:
    """What C is off by: the sum of the errors' squares, and the largest |error|_ij / (|a_i| |b_j|).

    `early` is the largest of these beyond the rounding into a 16-bit C, 0 for other dtypes. `nans` are the elements
    that are NaN, and `unwritten` those of them that still have the poison.
    """

    squares: float
    worst: float
    early: float = 0.0
    nans: int = 0
    unwritten: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A product's error, and why it is wrong (None: it is right)."""

    accuracy: Accuracy
    reason: str | None


def operands(problem: Problem, seed: int) -> tuple[Array, Array]:
    """A and B with elements from N(0,1), as stored: [batch, rows, columns], C-contiguous, of the problem's dtype.

    They are the seed's alone: each stretch has a generator of its own, however many cores draw them.
    """
    return _normal(problem, problem.a_shape, (seed, 0)), _normal(problem, problem.b_shape, (seed, 1))


def _normal(problem: Problem, shape: tuple[int, int], seed: tuple[int, int]) -> Array:
    wide = np.float64 if problem.dtype == "float64" else np.float32
    found = np.empty((problem.batch, *shape), numpy_dtype(problem.dtype))
    flat = found.reshape(-1)

    def draw(number: int) -> None:
        part = flat[number * _DRAWN : (number + 1) * _DRAWN]
        part[...] = np.random.default_rng((*seed, number)).standard_normal(part.size, dtype=wide)

    deque(_on_all_cores(draw, range(-(-flat.size // _DRAWN))), maxlen=0)
    return found


def applied(problem: Problem, a: Array, b: Array) -> tuple[Array, Array]:
    """Views of op(A) [batch, m, k] and op(B) [batch, k, n] of operands as stored."""
    a = a.reshape(problem.batch, *problem.a_shape)
    b = b.reshape(problem.batch, *problem.b_shape)
    return a.swapaxes(1, 2) if problem.trans_a else a, b.swapaxes(1, 2) if problem.trans_b else b


def pieces(batch: int, rows: int, cost: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Cut batches of rows, each row worth `cost`, into (batches, rows) of at most `limit` in all, or of one row."""
    if rows * cost <= limit:
        step = limit // (rows * cost)
        yield from ((slice(start, start + step), slice(None)) for start in range(0, batch, step))
        return
    step = max(1, limit // cost)
    for number in range(batch):
        yield from ((slice(number, number + 1), slice(start, start + step)) for start in range(0, rows, step))


def expect(problem: Problem, a: Array, b: Array, reference: Array) -> Expected:
    """Take the norms of operands (as stored) and reference once, so that many products can be compared with it."""
    left, right = applied(problem, a, b)
    rows, columns = _norms(left), _norms(right.swapaxes(1, 2))
    reference = reference.reshape(problem.batch, problem.m, problem.n)
    usual = math.sqrt(float((rows**2).sum(1) @ (columns**2).sum(1)) / problem.k)
    norms = Norms(math.sqrt(np.vdot(reference, reference)), usual, by_fmas(problem, left, right))
    return Expected(reference, rows, columns, norms)


def by_fmas(problem: Problem, left: Array, right: Array) -> float | None:
    """The relative L2 error of sequential float32 FMAs on op(A) and op(B), which bounds an emulated product's."""
    return emulation.sequential(left, right) if problem.precision == "emulated" else None


def _norms(lines: Array) -> Array:
    """The norms [batch, lines] of lines [batch, lines, k], in float64."""
    batch, count, k = lines.shape
    norms = np.empty((batch, count))

    def take(where: Piece) -> None:
        part = np.asarray(lines[where], np.float64)
        norms[where] = np.sqrt(np.einsum("bik,bik->bi", part, part))

    deque(_on_all_cores(take, list(pieces(batch, count, k, _DRAWN))), maxlen=0)
    return norms


def accuracy(problem: Problem, a: Array, b: Array, reference: Array, c: Array) -> Accuracy:
    """Both measures of C's error; NaN in C makes them NaN. Memory beyond the norms is bounded, whatever the sizes."""
    expected = expect(problem, a, b, reference)
    return _accuracy(expected.norms, errors(problem, expected, c))


def tolerance(problem: Problem) -> Accuracy:
    """The largest errors that a right kernel makes on N(0,1) operands, whatever its order of summation.

    With u the accumulator's unit roundoff, any order keeps |error|_ij <= gamma_k |a_i| |b_j|, gamma_k = ku/(1-ku)
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1, with Cauchy-Schwarz), and one more rounding
    into C. That alone would let a deep sum lose a term. On zero-mean data roundings cancel, and the error stays within
    a few u sqrt(k) |a_i| |b_j| (Higham and Mary, SIAM J. Sci. Comput. 41-5, 2019, and 42-5, 2020: the factor does not
    even grow with k; 16 million elements summed in turn came to 5 u at most). So the smaller is asked of gamma_k + u
    and 2 u (2 + sqrt(k)), and of relative L2, which is about u sqrt(k/6) for sequential FMA, u (2 + sqrt(k)).
    TF32 adds the rounding of its operands, 16-bit dtypes that of C: where k is large |c|_ij is a small part of
    |a_i| |b_j|, with 8 standard deviations allowed. For float64 both are doubled: its reference errs too. The fewer
    elements C has, the farther the norm of their errors strays from its average.
    """
    k = problem.k
    accumulator = _UNIT["float64" if problem.dtype == "float64" else "float32"]
    scaled, relative = _summed(k, accumulator), accumulator * (2 + math.sqrt(k))
    if problem.precision == "tf32":
        relative += 2 * _TF32
        scaled += 2 * _TF32 * min(1.0, 8 / math.sqrt(k))
    if problem.itemsize == 2:  # noqa: PLR2004  bytes
        relative += _UNIT[problem.dtype]
        scaled += _UNIT[problem.dtype] * min(1.0, 8 / math.sqrt(k))
    reference = 2 if problem.dtype == "float64" else 1
    return Accuracy(reference * _few(problem) * relative, reference * scaled)


def _few(problem: Problem) -> float:
    return 1 + _STRAY / math.sqrt(problem.batch * problem.m * problem.n)


def _summed(k: int, unit: float) -> float:
    """The largest |error|_ij / (|a_i| |b_j|) of sums of k products in arithmetic of a unit roundoff."""
    gamma = k * unit / (1 - k * unit) if 2 * k * unit < 1 else 1.0
    return min(gamma + unit, 2 * unit * (2 + math.sqrt(k)))


def judge(problem: Problem, a: Array, b: Array, reference: Array, c: Array) -> str | None:
    """Say why C is wrong, for operands from N(0,1) as stored and a C that was poisoned before; None: it is right."""
    return review(problem, expect(problem, a, b, reference), c).reason


def review(problem: Problem, expected: Expected, c: Array) -> Verdict:
    """Compare C, poisoned before the launch, with the expected product; the reference must be finite."""
    return verdict(problem, expected.norms, errors(problem, expected, c))


def verdict(problem: Problem, norms: Norms, found: Errors) -> Verdict:
    """Say whether a right kernel may make such errors.

    The bound of an emulated product is the error of sequential FMAs (see emulation). A 16-bit C is one rounding to
    nearest away from a possible float32 sum. If terms cancel in a C of few elements, its norm is small but its rounding
    errors are not: then the error is compared with the mean norm of such a C.
    """
    accuracy, allowed = _accuracy(norms, found), tolerance(problem)
    if problem.precision == "emulated" and norms.sequential is not None:
        allowed = replace(allowed, relative_l2=emulation.OF_SEQUENTIAL * _few(problem) * norms.sequential)
    if 0 < norms.whole < norms.usual:
        allowed = replace(allowed, relative_l2=allowed.relative_l2 * norms.usual / norms.whole)
    if math.isnan(accuracy.relative_l2):
        return Verdict(accuracy, _nan_reason(found))
    reason = _rounded_early(problem, found.early)
    if problem.dtype in _LEAST and reason is None:
        # Rounding to a denormal is all that is wrong, however much that is beside small operands.
        allowed = replace(allowed, max_scaled=math.inf)
    return Verdict(accuracy, _excess(accuracy, allowed) or reason)


def spot_check(element: Callable[[int, int, int], float], a: Array, b: Array, problem: Problem, seed: int) -> None:
    """Compare random elements of the reference with sums in extended precision on the host; raises WrongResult.

    `element` gives one of batch, row and column. With 64 bits of fraction such a sum errs by a thousandth of what the
    reference may.
    """
    left, right = applied(problem, a, b)
    generator = np.random.default_rng([seed, problem.k])
    bound = 2 * problem.k * _UNIT["float64"]
    for _ in range(_SPOTS):
        at, i, j = (int(generator.integers(size)) for size in (problem.batch, problem.m, problem.n))
        row, column = left[at, i].astype(np.longdouble), right[at, :, j].astype(np.longdouble)
        error = abs(float(element(at, i, j) - np.dot(row, column)))
        if not error <= bound * float(np.sqrt(np.dot(row, row)) * np.sqrt(np.dot(column, column))):
            raise WrongResult(f"the float64 reference of {problem} is off by {error:.2g} at [{at}, {i}, {j}]")


def errors(problem: Problem, expected: Expected, c: Array) -> Errors:
    """What C is off by. Memory beyond the expected product is bounded, whatever the sizes."""
    batch, m, n = expected.reference.shape
    c = c.reshape(batch, m, n)
    squares, worst, early = 0.0, 0.0, 0.0
    for of_piece in _on_all_cores(partial(_compare_piece, problem, expected, c), list(pieces(batch, m, n, _CHUNK))):
        squares += of_piece[0]
        worst, early = float(np.fmax(worst, of_piece[1])), float(np.fmax(early, of_piece[2]))
    if not math.isnan(squares):
        return Errors(squares, worst, early)
    return Errors(squares, worst, early, int(np.count_nonzero(np.isnan(c))), _unwritten(problem, c))


def _accuracy(norms: Norms, found: Errors) -> Accuracy:
    """Both measures; NaN where an element of C is."""
    norm = math.sqrt(found.squares)
    relative = norm / norms.whole if norms.whole else (math.inf if norm else norm)
    return Accuracy(relative, found.worst) if not math.isnan(norm) else Accuracy(math.nan, math.nan)


def _on_all_cores(work: Callable[[T], R], given: Sequence[T]) -> Iterator[R]:
    """The results of all pieces in their order; few pieces are done by the calling thread alone."""
    threads = min(len(os.sched_getaffinity(0)), len(given) // _PIECES_A_THREAD)
    if threads <= 1:
        yield from map(work, given)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, given)


def _compare_piece(problem: Problem, expected: Expected, c: Array, where: Piece) -> Compared:
    with np.errstate(over="ignore", invalid="ignore"):  # a wrong kernel's infinities are findings, not warnings
        error = np.abs(c[where] - expected.reference[where])
        scale = expected.rows[where][:, :, None] * expected.columns[where[0]][:, None, :]
        early = 0.0
        if problem.dtype in _LEAST:
            beyond = np.fmax(error - _rounding(problem.dtype, c[where], expected.reference[where]), 0)
            early = _largest(beyond, scale)
        worst = _largest(error, scale)
        # No product of a BLAS: its threads would wait for each other's.
        return float(np.square(error, out=error).sum()), worst, early


def _rounding(dtype: str, c: Array, reference: Array) -> Array:
    """Half a unit in the last place of a 16-bit dtype, at C or at the reference, whichever is larger."""
    larger = np.maximum(np.abs(c.astype(np.float64)), np.abs(reference))
    powers = (larger.view(np.int64) & _EXPONENT).view(np.float64)  # of two, at most these
    return np.asarray(np.maximum(powers * _UNIT[dtype], _LEAST[dtype] / 2))


def _largest(error: Array, scale: Array) -> float:
    """The largest of error / scale, where an error of nothing is nothing even against a scale of nothing."""
    if scale.all():
        return float((error / scale).max())
    return float(np.divide(error, scale, out=np.where(error > 0, np.inf, error), where=scale > 0).max())


def unwritten(problem: Problem, c: Array) -> str | None:
    """Say how many elements of a C that was poisoned before the launch still are; None: none."""
    return _left(_unwritten(problem, c))


def _unwritten(problem: Problem, c: Array) -> int:
    bits = np.ascontiguousarray(c).view(f"u{problem.itemsize}")
    return int(np.count_nonzero(bits == np.iinfo(bits.dtype).max))


def _left(count: int) -> str | None:
    return f"left {_elements(count)} unwritten" if count else None


def _nan_reason(found: Errors) -> str:
    """The reason why a C with NaN is wrong: elements that still have the poison were never written."""
    return _left(found.unwritten) or f"gave NaN for {_elements(found.nans)} of a finite product"


def _elements(count: int) -> str:
    return f"{count} element" + ("" if count == 1 else "s")


def _rounded_early(problem: Problem, early: float) -> str | None:
    """By how much a 16-bit C misses the rounding of any possible float32 sum, as a reason; None if it does not."""
    allowed = _summed(problem.k, _UNIT["float32"])
    told = f"rounded into {problem.dtype} more than once or not to nearest"
    return f"{told}: {early:.2g} |a_i| |b_j| beyond that exceeds {allowed:.2g}" if early > allowed else None


def _excess(found: Accuracy, allowed: Accuracy) -> str | None:
    if not found.relative_l2 <= allowed.relative_l2:
        return f"relative L2 error {found.relative_l2:.2g} exceeds {allowed.relative_l2:.2g}"
    if not found.max_scaled <= allowed.max_scaled:
        return f"largest error {found.max_scaled:.2g} |a_i| |b_j| exceeds {allowed.max_scaled:.2g}"
    return None
