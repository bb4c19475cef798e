"""Projection: a few vectors times a matrix and the norms of its columns, by blocks, as the matrix arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import prod
from typing import Final, TypeAlias

import numpy as np

from app.dtypes import Array
from app.services.matmul.certificates.reading import StreamedRead
from app.tuning.verify.row_weights import RowWeights
from kernels.freivalds import CHUNK

_BLOCK: Final = 2**18  # elements of a block, which is 2 MiB of float64 and stays in a core's cache
_ALONE: Final = 2**18  # multiplications that OpenBLAS makes in the thread that asks: it wakes its own for more

Block: TypeAlias = tuple[slice, slice, slice]  # of batches, of terms, of columns
_of_thread: Final = threading.local()


class Projection(StreamedRead[Block]):
    """`left` [r, rows], or [batch, r, rows], times a matrix [batch, rows, columns], in float64, in threads of its own.

    The matrix is C-contiguous, or each of the batch is the transpose of such a one. Blocks are taken as `advance` says
    that its first bytes are there, once those of `after` have all been. `out` [batch, r, columns], and `squares`
    [batch, columns], the squared norms of the columns, are whole once `wait` returns. With `finite`, NaN and infinities
    are read as 0; without `norms`, `squares` stays 0. `r` may be 0. With `weights` each row counts times its own,
    which they learn from the matrix, or know.
    """

    def __init__(
        self,
        matrix: Array,
        left: Array,
        *,
        after: Projection | None = None,
        norms: bool = True,
        finite: bool = False,
        weights: RowWeights | None = None,
        learns: bool = True,
    ) -> None:
        batch, self._rows, self._columns = matrix.shape
        self.out = np.zeros((batch, left.shape[-2], self._columns))
        self.squares = np.zeros((batch, self._columns))
        self._matrix, self._left, self._norms, self._finite = matrix, left, norms, finite
        self._weights, self._learns = weights, learns and weights is not None
        self._is_turned = matrix.strides[2] != matrix.itemsize and self._columns > 1
        super().__init__(matrix.nbytes, matrix.size, self._in_order(), after)

    def _expect(self, blocks: list[Block]) -> None:
        """Have the rows weighed of which a panel has the first elements."""
        if self._weights is not None and self._learns:
            self._learn(blocks, self._weights)

    def _learn(self, blocks: list[Block], weights: RowWeights) -> None:
        batches, terms, columns = blocks[0]
        if self._is_turned:
            for _, rows, _ in blocks:
                weights.learn(batches, rows, self._matrix[batches, rows, columns])
        else:
            weights.learn(batches, terms, self._matrix[batches, terms])

    def _in_order(self) -> Iterator[tuple[int, list[Block]]]:
        """Panels in the order in which they are stored: the byte that each ends before, and its blocks."""
        batch, item = len(self._matrix), self._matrix.itemsize
        terms = min(self._rows, CHUNK * max(1, _BLOCK // (CHUNK * self._columns)))
        width = min(self._columns, max(1, _BLOCK // terms))
        whole = self._rows * self._columns
        together = _BLOCK // whole if (terms, width) == (self._rows, self._columns) else 1
        across, along = _slices(self._columns, width), _slices(self._rows, terms)
        for first in range(0, batch, max(1, together)):
            batches = slice(first, min(first + max(1, together), batch))
            start, of = (first * whole) * item, (batches.stop - first) * whole * item
            for part in across if self._is_turned else along:
                end = part.stop * (self._rows if self._is_turned else self._columns) * item
                blocks = [(batches, rows, part) for rows in along] if self._is_turned else []
                blocks = blocks or [(batches, part, columns) for columns in across]
                yield start + (of if batches.stop - first > 1 else end), blocks

    def _add(self, block: Block) -> int:
        """Add what a block is to the sums; its elements."""
        batches, terms, columns = block
        read = self._matrix[block]
        with np.errstate(all="ignore"):
            values = _doubles(read.swapaxes(1, 2) if self._is_turned else read)
            if self._finite:
                values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
            values = values.swapaxes(1, 2) if self._is_turned else values
            if self._weights is not None:
                self._weights.apply(batches, terms, values)
            left = self._left[batches, :, terms] if self._left.ndim == read.ndim else self._left[None, :, terms]
            part = _product_in_chunks(left.astype(np.float64, copy=False), values)
            squares = np.einsum("bij,bij->bj", values, values) if self._norms else None
            with self._turn:
                self.out[batches, :, columns] += part
                if squares is not None:
                    self.squares[batches, columns] += squares
        return read.size


def project(
    matrix: Array, left: Array, *, finite: bool = False, norms: bool = True, weights: RowWeights | None = None
) -> Projection:
    """The projection of a matrix that is there, whole."""
    made = Projection(matrix, left, norms=norms, finite=finite, weights=weights)
    made.wait()
    return made


def norms_of_rows(matrix: Array) -> Array:
    """The norms [batch, rows] of a matrix [batch, rows, columns]; not finite where something in the row is not."""
    turned = matrix.swapaxes(1, 2)
    return np.asarray(np.sqrt(project(turned, np.empty((0, turned.shape[1]))).squares))


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _memory(name: str, shape: tuple[int, ...]) -> Array:
    """Memory of the thread that asks: an allocation of as much would be paged in each time."""
    kept: Array | None = getattr(_of_thread, name, None)
    size = prod(shape)
    if kept is None or kept.size < size:
        kept = np.empty(max(_BLOCK, size))
        setattr(_of_thread, name, kept)
    return kept[:size].reshape(shape)


def _doubles(block: Array) -> Array:
    """A block as float64, until this thread takes the next one."""
    values = _memory("values", block.shape)
    np.copyto(values, block)
    return values


def _product_in_chunks(left: Array, values: Array) -> Array:
    """`left` [1 or b, r, terms] times a block [b, terms, columns], a chunk of terms at once."""
    batch, terms, columns = values.shape
    if terms <= CHUNK:
        return _product(left, values)
    even = terms - terms % CHUNK
    rest = _product(left[:, :, even:], values[:, even:]).copy() if even < terms else 0.0
    if left.shape[1] * CHUNK * columns > _ALONE:
        for start in range(0, even, CHUNK):
            chunk = slice(start, start + CHUNK)
            rest = rest + _product(left[:, :, chunk], values[:, chunk])
        return np.asarray(rest)
    of_left = left[:, :, :even].reshape(*left.shape[:2], even // CHUNK, CHUNK).swapaxes(1, 2)
    return np.asarray((of_left @ values[:, :even].reshape(batch, even // CHUNK, CHUNK, columns)).sum(1) + rest)


def _product(left: Array, values: Array) -> Array:
    """`left` [1 or b, r, terms] times a block [b, terms, columns], so few columns at once that BLAS wakes no thread."""
    batch, terms, columns = values.shape
    r = left.shape[1]
    step = max(1, _ALONE // max(1, terms * r))
    even = columns - columns % step
    if not even:
        return np.asarray(left @ values)
    out = _memory("product", (batch, r, columns))
    split = values[:, :, :even].reshape(batch, terms, even // step, step).swapaxes(1, 2)
    np.matmul(left[:, None], split, out=out[:, :, :even].reshape(batch, r, even // step, step).swapaxes(1, 2))
    if even < columns:
        out[:, :, even:] = left @ values[:, :, even:]
    return out
