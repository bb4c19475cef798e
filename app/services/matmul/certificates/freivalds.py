"""Freivalds' check: random vectors r, and r C compared with (r op(A)) op(B), in float64; here the host's part.

R. Freivalds, Probabilistic machines can use less running time, IFIP 1977. With vectors on the left each matrix is read
in the order in which it arrives: A, B, then C. What is not finite is left out, and looked at on its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.dtypes import Array
from app.errors import Cancelled
from app.services.matmul.certificates.projection import Projection, project
from app.tuning.verify.row_weights import RowWeights
from app.tuning.verify.tolerance import Piece, applied, pieces
from kernels.freivalds import VECTORS
from kernels.problem import Problem

ROUNDS: Final = VECTORS  # an error that is above the bound is missed once in 2**16 times at most
_LOOK: Final = 2**18  # elements looked at at once


@dataclass(frozen=True)
class Sketch:
    """What a check knows of op(A) [batch, m, k], op(B) [batch, k, n] and C [batch, m, n], each read once.

    `vectors` [r, m] are +1 and -1, `largest` [batch, n] magnitudes of vectors C less vectors op(A) op(B), the largest
    of each column; `middle` [batch] is the largest norm of a vector times op(A), `whole` is op(A)'s own [batch],
    `columns` those of op(B)'s columns [batch, n], `results` those of C's, 0 where nobody asked. In all of these the
    rows of op(A) and C count times their `weights` [batch, m], 0 where a row is not spoken of. A norm of `columns` that
    is not finite says that something in that column is not; `unknown` [batch, n] are those whose magnitude says
    nothing, since one of the two is not finite. `is_finite` says whether both operands are, and C.
    """

    vectors: Array
    largest: Array
    middle: Array
    whole: Array
    columns: Array
    results: Array
    weights: Array
    unknown: Array
    is_finite: bool


class StreamedSketch:
    """The sketch of one product, made as its operands and C arrive: `advance` says how far each has.

    Vectors are drawn afresh, from the system's source of randomness: no product can be made to fit them.
    """

    def __init__(self, problem: Problem, a: Array, b: Array, c: Array, *, norms: bool, rounds: int = ROUNDS) -> None:
        self.a, self.b = applied(problem, a, b)
        self.c, self._norms = c.reshape(problem.batch, problem.m, problem.n), norms
        signs = np.random.default_rng().integers(0, 2, (rounds, problem.m), dtype=np.int8)
        self.vectors = 2 * signs - np.int8(1)
        self._weights = RowWeights(problem.batch, problem.m)
        left = Projection(self.a, self.vectors, weights=self._weights)
        right = Projection(self.b, left.out, after=left)
        # C is read once op(A) was, by which its rows are weighed.
        made = Projection(self.c, self.vectors, norms=norms, weights=self._weights, after=left, learns=False)
        self._parts = {"a": left, "b": right, "c": made}
        self.stopped = threading.Event()

    def advance(self, name: str, nbytes: int) -> None:
        """Take note that the first `nbytes` of a, b or c are there; blocks nobody."""
        self._parts[name].advance(nbytes)

    def read(self, name: str) -> None:
        """Read all of a, b or c, which is there, and what is read before it; raises Cancelled once it is stopped."""
        self._parts[name].wait()

    def result(self) -> Sketch:
        """The sketch, once all is there and read; raises Cancelled once it is stopped."""
        for name in self._parts:
            self.read(name)
        left, right, made = self._parts.values()
        return _sketch(self.vectors, left, right, made, self._weights)

    def stop(self) -> None:
        """Read nothing more: nobody reads the matrices once this returns."""
        self.stopped.set()
        for each in self._parts.values():
            each.stop()

    def raise_if_stopped(self) -> None:
        """Raise Cancelled once it is stopped."""
        if self.stopped.is_set():
            raise Cancelled("the product was cancelled")

    def of_finite(self, rows: Array) -> Sketch:
        """The sketch of `rows` [batch, m] of op(A) alone, all of it there, and with 0 for what is not finite."""
        weights = self._weights.only(rows)
        self.raise_if_stopped()
        left = project(self.a, self.vectors, finite=True, weights=weights)
        right = project(self.b, left.out, finite=True)
        self.raise_if_stopped()
        made = project(self.c, self.vectors, finite=True, norms=self._norms, weights=weights)
        found = _sketch(self.vectors, left, right, made, weights)
        return replace(found, columns=np.sqrt(self._parts["b"].squares))


def _sketch(vectors: Array, left: Projection, right: Projection, made: Projection, weights: RowWeights) -> Sketch:
    with np.errstate(all="ignore"):
        middle, whole = np.sqrt(np.square(left.out).sum(2).max(1)), np.sqrt(left.squares.sum(1))
        columns, results = np.sqrt(right.squares), np.sqrt(made.squares)
        largest = np.abs(made.out - right.out).max(1)
    unknown = np.asarray(~(np.isfinite(made.out).all(1) & np.isfinite(right.out).all(1)))
    is_finite = all(np.isfinite(each).all() for each in (whole, columns, made.out))
    return Sketch(vectors, largest, middle, whole, columns, results, weights.weights, unknown, is_finite)


def unfinished(matrix: Array) -> Iterator[tuple[Piece, Array]]:
    """Of each block [batches, rows] that has something which is not finite: where it is, and a mask of what is not."""
    batch, rows, columns = matrix.shape
    for at in pieces(batch, rows, columns, _LOOK):
        mask = ~np.isfinite(matrix[at])
        if mask.any():
            yield at, mask
