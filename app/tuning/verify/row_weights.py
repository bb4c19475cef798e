"""RowWeights: powers of two by which rows of very different sizes are seen beside each other."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.dtypes import Array
from kernels.freivalds import SAMPLE

_MOST: Final = 500  # the power of a weight, whose square is a float64 still
_ALIKE: Final = 4  # powers of two by which rows may differ that count alike: scaling takes a pass over a block


class RowWeights:
    """Powers of two by which the rows of op(A) count alike, told by some elements of each that came first.

    Rows of which all seen is 0 or something is not finite, and those that are within a factor of 16 of the first, have
    the weight 1. Whatever the weights are, a bound that counts them holds.
    """

    def __init__(self, batch: int, rows: int) -> None:
        self.weights, self._first = np.ones((batch, rows)), np.zeros(batch, np.int64)
        self._are_known, self._are_one = np.zeros((batch, rows), bool), True

    def only(self, rows: Array) -> RowWeights:
        """These weights of some rows [batch, rows], and 0 of the others."""
        found = RowWeights(*self.weights.shape)
        found.weights, found._are_known, found._are_one = np.where(rows, self.weights, 0.0), self._are_known, False
        return found

    def apply(self, batches: slice, rows: slice, values: Array) -> None:
        """Scale the rows of a block in place."""
        if self._are_one:
            return
        found = self.weights[batches, rows]
        if (found != 1).any():
            np.multiply(values, found[:, :, None], out=values)

    def learn(self, batches: slice, rows: slice, there: Array) -> None:
        """Look at the first elements that are there of rows that were not looked at; no two threads at once."""
        if not self._are_known[batches, rows].all():
            step = max(1, there.shape[2] // SAMPLE)
            with np.errstate(all="ignore"):
                largest = np.abs(there[:, :, ::step].astype(np.float64)).max(2)
            self.take(batches, rows, largest)

    def take(self, batches: slice, rows: slice, largest: Array) -> None:
        """Weigh rows by the largest magnitude that was seen in each, NaN where something was; as `learn`."""
        with np.errstate(all="ignore"):
            exponents = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
        seen = np.isfinite(largest) & (largest > 0)
        for number, exponent, known in zip(range(batches.start, batches.stop), exponents, seen, strict=True):
            if not self._are_known[number].any() and known.any():
                self._first[number] = exponent[known][0]
            apart = exponent - self._first[number]
            apart[~known | (np.abs(apart) <= _ALIKE)] = 0
            self.weights[number, rows] = np.ldexp(1.0, np.clip(-apart, -_MOST, _MOST))
            self._are_one = self._are_one and not apart.any()
        self._are_known[batches, rows] = True
