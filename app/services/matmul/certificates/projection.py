"""Projection: a few vectors times a matrix and the norms of its columns, by blocks, as the matrix arrives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from typing import Final, TypeAlias

import numpy as np

from app.dtypes import Array
from app.errors import Cancelled
from app.tuning.verify.row_weights import RowWeights
from kernels.freivalds import CHUNK

_BLOCK: Final = 2**18  # elements of a block, which is 2 MiB of float64 and stays in a core's cache
_ALONE: Final = 2**18  # multiplications that OpenBLAS makes in the thread that asks: it wakes its own for more
_THREADS: Final = 16  # at most: each takes the interpreter's lock ten times a block
_NICE: Final = 5  # products without a certificate go first

Block: TypeAlias = tuple[slice, slice, slice]  # of batches, of terms, of columns
_of_thread: Final = threading.local()


def _lower_priority() -> None:
    with suppress(OSError):  # a sandbox may refuse it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def threads() -> int:
    """How many threads read at once, at most."""
    return min(_THREADS, len(os.sched_getaffinity(0)))


# Starts no thread before the first certificate. Blocks of all products take turns.
_threads: Final = ThreadPoolExecutor(threads(), "certificate", _lower_priority)


class Projection:
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
        self._panels = self._in_order()
        self._panel = next(self._panels, None)
        self._there, self._is_open, self._is_stopped = 0, after is None, False
        self._running, self._left_over = 0, matrix.size
        self._failed: BaseException | None = None
        self._turn, self._told = threading.Lock(), threading.Condition()
        self._followers: list[Callable[[], None]] = []
        if after is not None:
            after.then(self._open)

    def advance(self, nbytes: int) -> None:
        """Take note that the first `nbytes` of the matrix are there; blocks nobody."""
        if nbytes > self._there:
            self._there = nbytes
            self._spread_soon()

    def then(self, follow: Callable[[], None]) -> None:
        """Call `follow`, which blocks nobody, once everything is summed up."""
        with self._told:
            if self._left_over:
                self._followers.append(follow)
                return
        follow()

    def wait(self) -> None:
        """Wait until everything is summed up, of a matrix that is there; raises Cancelled once it is stopped."""
        self.advance(self._matrix.nbytes)
        with self._told:
            self._told.wait_for(lambda: not self._left_over or self._is_stopped)
            if self._failed is not None:
                raise self._failed
            if self._left_over:
                raise Cancelled("the product was cancelled")

    def stop(self) -> None:
        """Read nothing more: no thread reads the matrix once this returns."""
        with self._told:
            self._is_stopped = True
            self._told.notify_all()
            self._told.wait_for(lambda: not self._running)

    @contextmanager
    def _reading(self) -> Iterator[bool]:
        """Whether the matrix may be read in the block, which `stop` waits for."""
        with self._told:
            may = not self._is_stopped
            self._running += may
        try:
            yield may
        finally:
            with self._told:
                self._running -= may
                self._told.notify_all()

    def _open(self) -> None:
        self._is_open = True
        self._spread_soon()

    def _spread_soon(self) -> None:
        if self._is_open and not self._is_stopped:
            _threads.submit(self._spread)

    def _spread(self) -> None:
        """Give the blocks of all panels that are there to threads."""
        with self._reading() as may, self._turn:
            while may and self._panel is not None and self._panel[0] <= self._there:
                if self._weights is not None and self._learns:
                    self._learn(self._panel[1], self._weights)
                for block in self._panel[1]:
                    _threads.submit(self._take, block)
                self._panel = next(self._panels, None)

    def _learn(self, blocks: list[Block], weights: RowWeights) -> None:
        """Have the rows weighed of which a panel has the first elements."""
        batches, terms, columns = blocks[0]
        if self._is_turned:
            for _, rows, _ in blocks:
                weights.learn(batches, rows, self._matrix[batches, rows, columns])
        else:
            weights.learn(batches, terms, self._matrix[batches, terms])

    def _take(self, block: Block) -> None:
        size, error = 0, None
        with self._reading() as may:
            try:
                size = self._add(block) if may else 0
            except BaseException as failure:  # noqa: BLE001 - it is raised where the result is waited for
                error = failure
        with self._told:
            self._left_over -= size
            if error is not None:
                self._failed, self._is_stopped = error, True
            is_over = bool(size) and not self._left_over
            self._told.notify_all()
        if is_over:
            for follow in self._followers:
                follow()

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
