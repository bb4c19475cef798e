"""Certificates: whether C is op(A) op(B) as its class computes it, by Freivalds' check and by rows made again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.errors import CertificateFailed
from app.services.matmul.freivalds import CHUNK, ROUNDS, Sketch, SketchThread, Stream, unfinished
from app.tuning.verify.tolerance import applied
from kernels.problem import Problem

METHODS: Final = ("freivalds",)
# What an addition costs: sums of tensor cores are cut off, not rounded, where operands have 16 bits or are TF32.
_ROUNDED, _CUT, _DOUBLE = 2.0**-24, 2.0**-23, 2.0**-53
_TF32: Final = 2.0**-10  # what an operand loses whose last 13 bits are cut off
_INTO: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # rounding into C
_LEAST: Final = {"float16": 2.0**-25, "float64": 2.0**-1022}  # what C, or a term that is flushed to zero, loses
_NORMAL: Final = 2.0**-126
_FALSE_ALARM: Final = 64  # a right product fails once in 2**64 times at most
_OUTLIER: Final = 4.0  # times the median residual from which a row is made again
_AGAIN: Final = 8  # rows that are made again, at most


@dataclass(frozen=True, slots=True)
class ClassBound:
    """What a class of kernels may err: |error|_ij <= gamma |a_i| |b_j| + rounding |c|_ij + least."""

    gamma: float
    rounding: float
    least: float

    @classmethod
    def of(cls, problem: Problem, precision: str) -> ClassBound:
        """The bound in the precision that a product was made in, for any order of summation.

        (1 + u)^k - 1 <= exp(ku) - 1 bounds a sum of k products of unit roundoff u (Higham, Accuracy and Stability of
        Numerical Algorithms, section 3.1), and |a_i| |b_j| bounds (|A| |B|)_ij. Emulated products promise k 2^-23, and
        TF32 rounds both operands.
        """
        k, into = problem.k, _INTO.get(problem.dtype, 0.0)
        least = _LEAST.get(problem.dtype, 0.0) if problem.dtype == "float64" else _NORMAL
        least = k * least + (_LEAST["float16"] if problem.dtype == "float16" else 0.0)
        if problem.dtype == "float64":
            return cls(math.expm1(k * _DOUBLE), 0.0, least)
        if precision == "emulated":
            return cls(k * _CUT, 0.0, least)
        if precision == "tf32":
            return cls(math.expm1(2 * _TF32 + k * _CUT), 0.0, least)
        return cls(math.expm1(k * (_CUT if into else _ROUNDED)), into, least)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was found of a product that passed.

    `residual` is the |C x - op(A) (op(B) x)|_i that comes nearest to its `bound`: what a right product of the class
    does not exceed. `rounds` vectors x were drawn: an element that is off by more than the bound of its row is missed
    with the chance `missed` at most. `recomputed` rows stood out and were made again in float64: their largest
    |error|_ij against its bound is `error` of `error_bound`, None if there was none. `unchecked` elements are not
    spoken of: they belong to rows or columns with NaN, infinities, or what overflows.
    """

    method: str
    rounds: int
    missed: float
    residual: float
    bound: float
    recomputed: int = 0
    error: float | None = None
    error_bound: float | None = None
    unchecked: int = 0

    def facts(self) -> dict[str, Any]:
        """Its members as JSON has them."""
        return asdict(self)

    def header(self) -> str:
        """Its members in one line: freivalds; rounds=16; missed=1.5e-05; and so on."""
        members = {name: value for name, value in asdict(self).items() if name != "method" and value is not None}
        told = (
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in members.items()
        )
        return "; ".join([self.method, *told])


Check = Callable[[str, Array], Certificate]


@contextmanager
def checking(problem: Problem, a: Array, b: Array, *, beside: bool = True) -> Iterator[Check]:
    """Begin to read the operands as stored, and lend what certifies C of the precision that it was made in.

    Unless that goes on `beside` the product, they are read once C is there.

    That raises CertificateFailed. The operands are not read any more once the block is left.
    """
    left, right = applied(problem, a, b)
    made = SketchThread(left, right, beside=beside)
    try:
        yield lambda precision, c: certify(problem, precision, made.result(), c, made.stop)
    finally:
        made.close()


def certify(problem: Problem, precision: str, sketch: Sketch, c: Array, stop: threading.Event) -> Certificate:
    """Compare C with a sketch of its operands; raises CertificateFailed, or Cancelled once `stop` is set.

    With x of +1 and -1, drawn after C's errors e_ij were made, |C x - op(A) op(B) x|_i is at most t times the norm of
    row i of e, but for a chance of 2 exp(-t^2 / 2) (Hoeffding 1963). Of two x that differ in the sign at j alone, one
    shows an e_ij that is above the bound: half of all vectors do.
    """
    return _Comparison(problem, ClassBound.of(problem, precision), sketch, c, stop).certificate()


class _Comparison:
    """One C against the sketch of its operands."""

    def __init__(self, problem: Problem, allowed: ClassBound, sketch: Sketch, c: Array, stop: threading.Event) -> None:
        self._problem, self._allowed, self._sketch, self._stop = problem, allowed, sketch, stop
        self._c = c.reshape(problem.batch, problem.m, problem.n)
        self._finite_columns = np.isfinite(sketch.columns).all(0)
        self._left_out = ~np.isfinite(sketch.rows)  # rows [batch, m] that are not spoken of

    def certificate(self) -> Certificate:
        """What the comparison finds, if C is right."""
        with np.errstate(all="ignore"):
            residual, bound = self._residuals()
            ratio = np.where(residual > 0, residual / bound, 0.0)
            worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
            found, limit = float(residual[worst]), float(bound[worst])
            if not found <= limit:
                raise self._failed(
                    worst, f"row {worst[1]} of C x is off by {found:.3g}, {limit:.3g} is allowed", found, limit
                )
            count, error, error_bound = self._again(residual)
        unchecked = self._unchecked()
        return Certificate("freivalds", ROUNDS, 2.0**-ROUNDS, found, limit, count, error, error_bound, unchecked)

    def _residuals(self) -> tuple[Array, Array]:
        """The residual of each row and vector [batch, m, rounds], 0 in rows that are left out, and its bound."""
        products, norms = self._products()
        self._left_out |= ~(np.isfinite(products).all(2) & np.isfinite(self._sketch.product).all(2))
        residual = np.abs(products - self._sketch.product)
        bound = self._bounds(norms)
        residual[self._left_out], bound[self._left_out] = 0.0, 1.0
        return residual, bound

    def _products(self) -> tuple[Array, Array]:
        """C times the vectors, and the norms of C's rows where C was rounded; judges what is not finite."""
        vectors, none = self._sketch.vectors, np.zeros(self._left_out.shape)

        def times(stream: Stream) -> tuple[Array, Array]:
            return stream.times_with_norms(vectors)[:2] if self._allowed.rounding else (stream.times(vectors), none)

        found = times(Stream(self._c, self._stop))
        if self._sketch.has_only_finite and np.isfinite(found[0]).all():
            return found
        self._judge_unfinished()
        return times(Stream(self._c, self._stop, finite=True))

    def _bounds(self, norms: Array) -> Array:
        """The bound of each residual: the class's own, and what this check's float64 costs."""
        problem, allowed, sketch = self._problem, self._allowed, self._sketch
        whole = np.sqrt(np.square(np.where(self._finite_columns, sketch.columns, 0.0)).sum(1))
        scale, root = sketch.rows * whole[:, None], math.sqrt(problem.n)
        chance = _FALSE_ALARM * math.log(2) + math.log(2 * problem.batch * problem.m * ROUNDS)
        of_class = allowed.gamma * scale + allowed.rounding * norms + root * allowed.least
        own = _own(problem.n) * root * (2 + allowed.gamma) * scale
        through = _own(problem.k) * sketch.rows[:, :, None] * sketch.middle[:, None, :]
        return np.asarray((math.sqrt(2 * chance) * of_class + own)[:, :, None] + through)

    def _again(self, residual: Array) -> tuple[int, float | None, float | None]:
        """Make the rows again that stand out: how many, the error that comes nearest to its bound, and that."""
        largest = residual.max(2) / np.where(self._sketch.rows > 0, self._sketch.rows, 1.0)
        known = largest[~self._left_out]
        usual = float(np.median(known)) if known.size else 0.0
        magnitudes = np.where(self._left_out, 0.0, largest)
        order = np.argsort(-magnitudes, axis=None)[:_AGAIN]
        chosen = [
            at
            for at in zip(*np.unravel_index(order, magnitudes.shape), strict=True)
            if magnitudes[at] > _OUTLIER * usual
        ]
        worst: tuple[float, float] | None = None
        for number in sorted({int(at[0]) for at in chosen}):
            rows = [int(at[1]) for at in chosen if at[0] == number]
            found = self._errors(number, rows)
            if worst is None or found[0] * worst[1] > worst[0] * found[1]:
                worst = found
        return len(chosen), *(worst or (None, None))

    def _errors(self, number: int, rows: list[int]) -> tuple[float, float]:
        """The error, among some rows of one product, that comes nearest to its bound; raises CertificateFailed."""
        sketch, allowed = self._sketch, self._allowed
        left = sketch.a[number, rows].astype(np.float64)
        right = Stream(sketch.b[number : number + 1], self._stop, finite=not sketch.has_only_finite)
        exact = right.rows_times(left)
        scale = sketch.rows[number, rows][:, None] * np.where(self._finite_columns, sketch.columns[number], 0.0)
        bound = (allowed.gamma + _own(self._problem.k)) * scale
        bound = bound + allowed.rounding * (np.abs(exact) + bound) + allowed.least
        error = np.abs(self._c[number, rows].astype(np.float64) - exact)
        error[:, ~self._finite_columns] = 0.0
        row, column = np.unravel_index(int(np.argmax(error / bound)), error.shape)
        found, limit = float(error[row, column]), float(bound[row, column])
        if not found <= limit:
            told = f"C is off by {found:.3g} at row {rows[row]}, column {column}: {limit:.3g} is allowed"
            raise self._failed((number, rows[row]), told, found, limit)
        return found, limit

    def _judge_unfinished(self) -> None:
        """Compare what is not finite in C with what cannot be, and leave out rows that may have overflowed.

        An element is NaN or infinite exactly if something in its row of op(A) or its column of op(B) is, or it is too
        large. Raises CertificateFailed.
        """
        of_rows, of_columns = ~np.isfinite(self._sketch.rows), ~np.isfinite(self._sketch.columns)
        expected = of_rows.sum() * self._problem.n + (~of_rows[:, :, None] & of_columns[:, None, :]).sum()
        largest, seen = float(np.finfo(self._finfo()).max), 0
        for (which, rows), columns, mask in unfinished(Stream(self._c, self._stop)):
            known = of_rows[which, rows][:, :, None] | of_columns[which, columns][:, None, :]
            seen += int((mask & known).sum())
            reach = self._sketch.rows[which, rows][:, :, None] * self._sketch.columns[which, columns][:, None, :]
            wrong = mask & ~known & ((1 + self._allowed.gamma) * reach < largest)
            if wrong.any():
                at = (int(which.start or 0), int(rows.start or 0) + int(np.argwhere(wrong)[0][1]))
                raise self._failed(at, f"C is not finite in row {at[1]}, where its operands are", math.inf, largest)
            self._left_out[which, rows] |= (mask & ~known).any(2)
        if seen != expected:
            told = f"{expected - seen} elements of C are finite where an operand is not"
            raise self._failed((0, 0), told, math.inf, largest)

    def _finfo(self) -> Any:
        dtype = numpy_dtype(self._problem.dtype)
        return np.float32 if dtype.name == "bfloat16" else dtype

    def _unchecked(self) -> int:
        rows, n = int(self._left_out.sum()), self._problem.n
        gone = n - int(self._finite_columns.sum())
        return rows * n + (self._left_out.size - rows) * gone

    def _failed(self, at: tuple[Any, ...], told: str, found: float, limit: float) -> CertificateFailed:
        """The error of a product that is not served."""
        facts = {"batch": int(at[0]), "row": int(at[1]), "residual": found, "limit": limit}
        return CertificateFailed(f"the product failed its certificate: {told}", **facts)


def _own(terms: int) -> float:
    """What a float64 sum of this check errs, relative to the norms."""
    return (min(terms, CHUNK) + terms / CHUNK + 1) * _DOUBLE
