"""Freivalds' check: random vectors x, and C x compared with op(A) (op(B) x) on the host, in float64.

R. Freivalds, Probabilistic machines can use less running time, IFIP 1977. Matrices are read in blocks: no
operand is copied as a whole. What is not finite is left out, and looked at on its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from app.dtypes import Array
from app.errors import Cancelled
from app.tuning.verify.tolerance import Piece, pieces

ROUNDS: Final = 16  # vectors; an error that is above the bound is missed once in 2**16 times at most
CHUNK: Final = 512  # terms that are added up at once: of n terms, an addition goes through 512 + n / 512 roundings
_BLOCK: Final = 2**18  # elements of a block, which is 2 MiB of float64 and stays in a core's cache
_ROWS: Final = 32  # with CHUNK terms and ROUNDS vectors no more than OpenBLAS multiplies in one thread
_ALONE: Final = 2**20  # elements up to which a pool of threads is not worth its start


def _by_rows(block: Array, right: Array) -> Array:
    """The product of a block [batch, rows, columns], few rows at once.

    A BLAS makes so small a product in the thread that asks for it: it wakes its own for a larger one, and they would
    wait for each other's.
    """
    batch, rows, columns = block.shape
    even, parts = rows - rows % _ROWS, []
    if even:
        split = block[:, :even].reshape(batch, even // _ROWS, _ROWS, columns)
        parts.append((split @ (right if right.ndim < block.ndim else right[:, None])).reshape(batch, even, -1))
    if even < rows:
        parts.append(block[:, even:] @ right)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@dataclass
class Stream:
    """A matrix [batch, rows, columns] read in blocks of float64; raises Cancelled once `stop` is set.

    With `finite`, NaN and infinities are read as 0.
    """

    matrix: Array
    stop: threading.Event = field(default_factory=threading.Event)
    finite: bool = False

    def times(self, vectors: Array) -> Array:
        """The product with [columns, r], or [batch, columns, r], as [batch, rows, r]."""
        out = np.zeros((*self.matrix.shape[:2], vectors.shape[-1]))

        def add(at: Piece, columns: slice, block: Array) -> None:
            right = vectors[at[0], columns] if vectors.ndim == self.matrix.ndim else vectors[columns]
            out[at] += _by_rows(block, right)

        self._each(add)
        return out

    def times_with_norms(self, vectors: Array) -> tuple[Array, Array, Array]:
        """As `times`, and the norms of the rows [batch, rows] and of the columns [batch, columns]."""
        batch, rows, columns = self.matrix.shape
        out, of_rows, of_columns = np.zeros((batch, rows, vectors.shape[-1])), np.zeros((batch, rows)), []

        def add(at: Piece, chunk: slice, block: Array) -> None:
            right = vectors[at[0], chunk] if vectors.ndim == self.matrix.ndim else vectors[chunk]
            out[at] += _by_rows(block, right)
            of_rows[at] += np.einsum("bij,bij->bi", block, block)
            of_columns.append((at[0], chunk, np.einsum("bij,bij->bj", block, block)))

        self._each(add)
        squares = np.zeros((batch, columns))
        for which, chunk, part in of_columns:
            squares[which, chunk] += part
        return out, np.sqrt(of_rows), np.sqrt(squares)

    def rows_times(self, left: Array) -> Array:
        """The product of a few rows [r, rows] with one matrix of a batch of one, as [r, columns]."""
        turned = Stream(self.matrix.swapaxes(1, 2), self.stop, self.finite)
        found: Array = turned.times(left.T)[0].T
        return found

    def blocks(self) -> Iterator[tuple[Piece, slice, Array]]:
        """Its blocks in turn, as they are stored."""
        batch, rows, columns = self.matrix.shape
        for at in pieces(batch, rows, min(columns, CHUNK), _BLOCK):
            for start in range(0, columns, CHUNK):
                chunk = slice(start, start + CHUNK)
                yield at, chunk, self.matrix[at][..., chunk]

    def _each(self, take: Callable[[Piece, slice, Array], None]) -> None:
        """Give every block to `take`, on all cores: all blocks of the same rows to one thread, in their order."""
        batch, rows, columns = self.matrix.shape
        run = partial(self._piece, take)
        given = list(pieces(batch, rows, min(columns, CHUNK), _BLOCK))
        if self.matrix.size <= _ALONE or len(given) == 1:
            for at in given:
                run(at)
            return
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="certificate") as pool:
            for _ in pool.map(run, given):
                pass

    def _piece(self, take: Callable[[Piece, slice, Array], None], at: Piece) -> None:
        with np.errstate(all="ignore"):
            for start in range(0, self.matrix.shape[2], CHUNK):
                if self.stop.is_set():
                    raise Cancelled("the product was cancelled")
                chunk = slice(start, start + CHUNK)
                block = self.matrix[at][..., chunk].astype(np.float64, copy=False)
                take(at, chunk, np.nan_to_num(block, posinf=0.0, neginf=0.0) if self.finite else block)


@dataclass(frozen=True)
class Sketch:
    """What a check knows of op(A) and op(B): `vectors` [n, r] of +1 and -1, and `product` = op(A) op(B) vectors.

    `rows` are the norms of op(A)'s rows [batch, m], `columns` those of op(B)'s columns [batch, n], `middle` those of
    op(B)'s products with the vectors [batch, r]. A norm that is not finite says that something in its row or column is
    not: `vectors` are 0 in such a column.
    """

    a: Array
    b: Array
    vectors: Array
    product: Array
    rows: Array
    columns: Array
    middle: Array

    @property
    def has_only_finite(self) -> bool:
        """Whether both operands are finite throughout."""
        return bool(np.isfinite(self.rows).all() and np.isfinite(self.columns).all())


def sketch(a: Array, b: Array, stop: threading.Event, rounds: int = ROUNDS) -> Sketch:
    """Sketch op(A) [batch, m, k] and op(B) [batch, k, n], which are read once each; raises Cancelled.

    Vectors are drawn afresh, from the system's source of randomness: no product can be made to fit them.
    """
    signs = np.random.default_rng().integers(0, 2, (b.shape[2], rounds), dtype=np.int8)
    vectors = np.where(signs, 1.0, -1.0)
    middle, _, columns = Stream(b, stop).times_with_norms(vectors)
    if not np.isfinite(columns).all():
        vectors[~np.isfinite(columns).all(0)] = 0.0
        middle = Stream(b, stop, finite=True).times(vectors)
    product, rows, _ = Stream(a, stop).times_with_norms(middle)
    return Sketch(a, b, vectors, product, rows, columns, np.sqrt(np.square(middle).sum(1)))


class SketchThread:
    """A sketch that is made in a thread of its own, while a device makes the product; `close` ends it.

    Where the device is the host it is made `beside` nothing: the thread starts when the sketch is asked for.
    """

    def __init__(self, a: Array, b: Array, *, beside: bool = True) -> None:
        self.stop, self._made = threading.Event(), list[Sketch]()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(a, b), name="certificate", daemon=True)
        if beside:
            self._thread.start()

    def result(self) -> Sketch:
        """The sketch, once it is made; raises what its thread raised."""
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join()
        if self._failed:
            raise self._failed[0]
        return self._made[0]

    def close(self) -> None:
        """Stop reading the operands: their memory is given back then."""
        self.stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self, a: Array, b: Array) -> None:
        try:
            self._made.append(sketch(a, b, self.stop))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._failed.append(error)


def unfinished(stream: Stream) -> Iterator[tuple[Piece, slice, Array]]:
    """Of each block that has something which is not finite: where it is, and a mask of what is not."""
    for at, chunk, block in stream.blocks():
        mask = ~np.isfinite(block)
        if mask.any():
            yield at, chunk, mask
