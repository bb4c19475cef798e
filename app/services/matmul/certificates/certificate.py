"""Certificates: whether C is op(A) op(B) as its class computes it, by Freivalds' check and by columns made again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.errors import CertificateFailed
from app.services.matmul.certificates.device_sketch import SketchOnDevice, pays
from app.services.matmul.certificates.freivalds import ROUNDS, Sketch, StreamedSketch, unfinished
from app.services.matmul.certificates.projection import norms_of_rows, project
from app.services.matmul.certificates.reading import in_thread
from kernels.device import Device
from kernels.freivalds import CHUNK
from kernels.problem import Problem

METHODS: Final = ("freivalds",)
# What an addition costs: sums of tensor cores are cut off, not rounded, where operands have 16 bits or are TF32.
_ROUNDED, _CUT, _DOUBLE = 2.0**-24, 2.0**-23, 2.0**-53
_TF32: Final = 2.0**-10  # what an operand loses whose last 13 bits are cut off
_INTO: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # rounding into C
_LEAST: Final = {"float16": 2.0**-25, "float64": 2.0**-1022}  # what C, or a term that is flushed to zero, loses
_NORMAL: Final = 2.0**-126
_FALSE_ALARM: Final = 64  # a right product fails once in 2**64 times at most
_OUTLIER: Final = 4.0  # times the median residual from which a column is made again
_AGAIN: Final = 8  # columns that are made again, at most


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

    `residual` is the |r C - (r op(A)) op(B)|_j that comes nearest to its `bound`: what a right product of the class
    does not exceed. `rounds` vectors r were drawn: an element that is off by more than the bound of its column is
    missed with the chance `missed` at most. `recomputed` columns stood out and were made again in float64: their
    largest |error|_ij against its bound is `error` of `error_bound`, None if there was none. `unchecked` elements are
    not spoken of: they belong to rows or columns with NaN, infinities, or what overflows.
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


class Certifier:
    """Certifies one product while its operands and C arrive; `close` ends it, and nobody reads them any more then.

    With r of +1 and -1, which C's errors e_ij do not depend on, |r C - r op(A) op(B)|_j is at most t times the norm of
    column j of e, but for a chance of 2 exp(-t^2 / 2) (Hoeffding 1963). Of two r that differ in the sign at i alone,
    one shows an e_ij that is above the bound: half of all vectors do. Where that pays, the device that makes C is asked
    for the sketch, `on_device`, and the host reads what ties it to the slab; all of it if that sketch is not finite.
    """

    def __init__(
        self, problem: Problem, a: Array, b: Array, c: Array, *, rounds: int = ROUNDS, devices: Sequence[Device] = ()
    ) -> None:
        """Of operands and C as they are stored, or will be, and the devices of which one makes C as a whole."""
        self._problem, self._nbytes = problem, {"a": a.nbytes, "b": b.nbytes, "c": c.nbytes}
        self._streamed = StreamedSketch(problem, a, b, c, norms=problem.dtype in _INTO, rounds=rounds)
        self.on_device = SketchOnDevice(self._streamed.vectors, a, b, c) if pays(problem, devices) else None
        self._begun: Future[_Comparison | None] | None = None

    def advance(self, name: str, nbytes: int | None = None) -> None:
        """Take note that the first `nbytes` of a, b or c are there, or all of it; blocks nobody."""
        (self.on_device or self._streamed).advance(name, self._nbytes[name] if nbytes is None else nbytes)

    def operands_are_there(self) -> None:
        """Take note that all of both is; blocks nobody."""
        self.advance("a")
        self.advance("b")

    def read(self, name: str) -> None:
        """Read all of a, b or c, which is there; raises Cancelled once it is closed."""
        (self.on_device or self._streamed).read(name)

    def early(self, precision: str) -> Certificate | None:
        """The certificate of a C that is still on the device, and will be compared with it as it comes.

        None where that has to be here first; raises CertificateFailed, Cancelled once closed.
        """
        if self.on_device is None:
            return None
        self.on_device.expect_same("ab")
        comparison = self._of_device(precision)
        return None if comparison is None else comparison.early()

    def begin(self, precision: str) -> None:
        """Begin to compare what the device has found of a product, before C is here; blocks nobody."""
        if self.on_device:
            self._begun = in_thread(self._of_device, precision)

    def certificate(self, precision: str) -> Certificate:
        """What is found of a product that was made in a precision; raises CertificateFailed, Cancelled once closed."""
        if self.on_device:
            self.on_device.expect_same()
        begun = self._begun if self._begun is not None and not self._begun.cancel() else None  # or it waits for others
        found = begun.result() if begun is not None else self._of_device(precision)
        return (found or self._comparison(precision, self._streamed.result())).certificate()

    def _of_device(self, precision: str) -> _Comparison | None:
        """The comparison of what the device has found, as far as that goes without C; None if it is the host's."""
        sketch = self.on_device.sketch() if self.on_device else None
        if sketch is None:
            return None
        comparison = self._comparison(precision, sketch)
        comparison.begin()
        return comparison

    def _comparison(self, precision: str, sketch: Sketch) -> _Comparison:
        return _Comparison(self._problem, ClassBound.of(self._problem, precision), self._streamed, sketch)

    def close(self) -> None:
        """Read nothing more."""
        if self.on_device:
            self.on_device.stop()
        self._streamed.stop()


class _Comparison:
    """One C against the sketch of its operands."""

    def __init__(self, problem: Problem, allowed: ClassBound, streamed: StreamedSketch, sketch: Sketch) -> None:
        self._problem, self._allowed, self._streamed, self._sketch = problem, allowed, streamed, sketch
        # What is not spoken of: rows [batch, m] and columns [batch, n].
        self._rows_out = np.zeros((problem.batch, problem.m), bool)
        self._left_out = ~np.isfinite(self._sketch.columns)
        self._is_finite = self._sketch.is_finite
        self._found: tuple[Array, Array] | None = None

    def certificate(self) -> Certificate:
        """What the comparison finds, if C is right."""
        with np.errstate(all="ignore"):
            if not self._is_finite:
                self._judge_unfinished(norms_of_rows(self._streamed.a))
                self._sketch = self._streamed.of_finite(~self._rows_out)
            residual, bound = self._found or self._residuals()
            found, limit, batch, column = _nearest(residual, bound)
            if not found <= limit:
                self._errors(batch, [column])  # which tells the element
                told = f"column {column} of r C is off by {found:.3g}, {limit:.3g} is allowed"
                raise _failed(told, found, limit, batch=batch, column=column)
            return self._certificate(found, limit, *self._again(self._outstanding(residual)))

    def begin(self) -> None:
        """Compare what a sketch that is finite says, for which C need not be here."""
        with np.errstate(all="ignore"):
            self._found = self._residuals()

    def early(self) -> Certificate | None:
        """As `certificate`, of a finite sketch whose C is not here; None where some of C's columns are to be seen."""
        with np.errstate(all="ignore"):
            residual, bound = self._found or self._residuals()
            found, limit, *_ = _nearest(residual, bound)
            return None if not found <= limit or self._outstanding(residual) else self._certificate(found, limit)

    def _certificate(
        self, found: float, limit: float, count: int = 0, error: float | None = None, error_bound: float | None = None
    ) -> Certificate:
        rounds, unchecked = len(self._sketch.vectors), self._unchecked()
        return Certificate("freivalds", rounds, 2.0**-rounds, found, limit, count, error, error_bound, unchecked)

    def _residuals(self) -> tuple[Array, Array]:
        """The largest residual of each column [batch, n], 0 where it is left out, and its bound."""
        self._left_out |= self._sketch.unknown
        out = self._left_out
        return np.where(out, 0.0, self._sketch.largest), np.where(out, 1.0, self._bounds())

    def _bounds(self) -> Array:
        """The bound of each column's residuals: the class's own, and what this check's float64 costs.

        The errors of column j have the norm gamma |A| |b_j| + rounding |c_j| + |weights| least at most, |A| that of all
        of op(A); rows count times their weights, powers of two, which cost no rounding. With own(m) the relative error
        of a sum of m terms, r C is off by own(m) sqrt(m) |c_j|, and what own(m) leaves in r op(A) reaches column j as
        own(m) sqrt(m) |A| |b_j|; |c_j| is (1 + gamma) (1 + rounding) |A| |b_j| at most. The last product adds
        own(k) |r op(A)| |b_j|.
        """
        problem, allowed, sketch = self._problem, self._allowed, self._sketch
        scale, root = sketch.whole[:, None] * sketch.columns, math.sqrt(problem.m)
        weights = np.sqrt(np.square(sketch.weights).sum(1))[:, None]
        chance = _FALSE_ALARM * math.log(2) + math.log(2 * problem.batch * problem.n * len(sketch.vectors))
        of_class = allowed.gamma * scale + allowed.rounding * sketch.results + weights * allowed.least
        own = _own(problem.m) * root * (1 + (1 + allowed.gamma) * (1 + allowed.rounding)) * scale
        last = (_own(problem.k) * sketch.middle)[:, None] * sketch.columns
        return np.asarray(last + math.sqrt(2 * chance) * of_class + own)

    def _outstanding(self, residual: Array) -> list[tuple[int, int]]:
        """The columns that stand out, each with the product's number before it."""
        columns = self._sketch.columns
        largest = residual / np.where(columns > 0, columns, 1.0)
        known = largest[~self._left_out]
        usual = float(np.median(known)) if known.size else 0.0
        magnitudes = np.where(self._left_out, 0.0, largest)
        order = np.argsort(-magnitudes, axis=None)[:_AGAIN]
        places = zip(*np.unravel_index(order, magnitudes.shape), strict=True)
        return [(int(at[0]), int(at[1])) for at in places if magnitudes[at] > _OUTLIER * usual]

    def _again(self, chosen: list[tuple[int, int]]) -> tuple[int, float | None, float | None]:
        """Make columns again: how many, the error that comes nearest to its bound, and that."""
        worst: tuple[float, float] | None = None
        for number in sorted({number for number, _ in chosen}):
            found = self._errors(number, [column for of, column in chosen if of == number])
            if worst is None or found[0] * worst[1] > worst[0] * found[1]:
                worst = found
        return len(chosen), *(worst or (None, None))

    def _errors(self, number: int, columns: list[int]) -> tuple[float, float]:
        """The error, among some columns of one product, nearest to its bound; raises CertificateFailed, Cancelled."""
        self._streamed.raise_if_stopped()
        sketch, allowed = self._sketch, self._allowed
        left, right = self._streamed.a[number : number + 1].swapaxes(1, 2), self._streamed.b[number][:, columns]
        again = project(left, right.T.astype(np.float64), finite=not self._is_finite)
        exact, rows = again.out[0], np.sqrt(again.squares[0])
        scale = sketch.columns[number, columns][:, None] * rows
        bound = (allowed.gamma + _own(self._problem.k)) * scale
        bound = bound + allowed.rounding * (np.abs(exact) + bound) + allowed.least
        error = np.abs(self._streamed.c[number][:, columns].T.astype(np.float64) - exact)
        error[:, self._rows_out[number]] = 0.0
        which, row = map(int, np.unravel_index(int(np.argmax(error / bound)), error.shape))
        found, limit = float(error[which, row]), float(bound[which, row])
        if not found <= limit:
            told = f"C is off by {found:.3g} at row {row}, column {columns[which]}: {limit:.3g} is allowed"
            raise _failed(told, found, limit, batch=number, row=row, column=columns[which])
        return found, limit

    def _judge_unfinished(self, rows: Array) -> None:
        """Compare what is not finite in C with what cannot be, and leave out what may have overflowed.

        An element is NaN or infinite exactly if something in its row of op(A) or its column of op(B) is, or it is too
        large. Raises CertificateFailed.
        """
        of_rows, of_columns = ~np.isfinite(rows), ~np.isfinite(self._sketch.columns)
        expected = of_rows.sum() * self._problem.n + (~of_rows[:, :, None] & of_columns[:, None, :]).sum()
        largest, seen = float(np.finfo(self._finfo()).max), 0
        over_rows, over_columns = np.zeros_like(of_rows), np.zeros_like(of_columns)
        for (which, part), mask in unfinished(self._streamed.c):
            self._streamed.raise_if_stopped()
            known = of_rows[which, part][:, :, None] | of_columns[which][:, None, :]
            seen += int((mask & known).sum())
            reach = rows[which, part][:, :, None] * self._sketch.columns[which][:, None, :]
            wrong = mask & ~known & ((1 + self._allowed.gamma) * reach < largest)
            if wrong.any():
                batch, row, column = map(int, np.argwhere(wrong)[0])
                at = {"batch": int(which.start or 0) + batch, "row": int(part.start or 0) + row, "column": column}
                raise _failed(f"C is not finite in row {at['row']}, where its operands are", math.inf, largest, **at)
            over_rows[which, part] |= (mask & ~known).any(2)
            over_columns[which] |= (mask & ~known).any(1)
        if seen != expected:
            told = f"{expected - seen} elements of C are finite where an operand is not"
            raise _failed(told, math.inf, largest)
        fewer = (over_rows.sum(1) * self._problem.n <= over_columns.sum(1) * self._problem.m)[:, None]
        self._rows_out = of_rows | (over_rows & fewer)
        self._left_out |= over_columns & ~fewer

    def _finfo(self) -> Any:
        dtype = numpy_dtype(self._problem.dtype)
        return np.float32 if dtype.name == "bfloat16" else dtype

    def _unchecked(self) -> int:
        rows, columns = self._rows_out.sum(1), self._left_out.sum(1)
        return int((columns * self._problem.m + (self._problem.n - columns) * rows).sum())


def _nearest(residual: Array, bound: Array) -> tuple[float, float, int, int]:
    """The residual that comes nearest to its bound, that, and the number of its product and its column."""
    ratio = np.where(residual > 0, residual / bound, 0.0)
    batch, column = map(int, np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    return float(residual[batch, column]), float(bound[batch, column]), batch, column


def _failed(told: str, found: float, limit: float, **at: int) -> CertificateFailed:
    """The error of a product that is not served."""
    return CertificateFailed(f"the product failed its certificate: {told}", **at, residual=found, limit=limit)


def _own(terms: int) -> float:
    """What a float64 sum of this check errs, relative to the norms, on the host or on a device.

    Both add up CHUNK terms one after the other, or in a better order, and then the chunks' sums one after the other.
    """
    return (min(terms, CHUNK) + terms / CHUNK + 1) * _DOUBLE
