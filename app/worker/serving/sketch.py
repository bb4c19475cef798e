"""The sketch of a product that its device makes where A, B and C lie, right after it (Freivalds' check).

Whatever is wrong with the sketch itself is no fault of the product: there is none then, and the host makes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np

from app.devices.backend import Buffer, Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed
from app.tuning.verify.block_sums import block_sums
from app.tuning.verify.row_weights import RowWeights
from app.worker.serving.device_memory import unless_out_of_memory
from app.worker.state import warmed
from kernels.freivalds import BLOCK_BYTES, VECTORS, WIDTH, StoredMatrix, project, row_peaks, word_sums
from kernels.launch import Launch
from kernels.problem import Problem

_LOG: Final = logging.getLogger(__name__)
_DOUBLE: Final = 8
_SIGNS: Final = np.array([-1.0, 1.0])  # of a bit
_NOTHING: Final = np.empty(0)
_CHECKING: Final = 5.0  # seconds that a check of a hundred rows may take
_SAMPLE: Final = 43, 300, 270  # m, n and k: more than one block of columns, and of rows that are added up at once
Programs: TypeAlias = dict[Launch, Program]


@dataclass(frozen=True, slots=True)
class SketchRequest:
    """The vectors as bits [m, VECTORS], eight to a byte: 1 stands for +1, 0 for -1."""

    bits: bytes

    @classmethod
    def of(cls, vectors: Array) -> SketchRequest:
        """Of vectors [VECTORS, m] of +1 and -1."""
        return cls(np.packbits(vectors.T > 0, axis=1).tobytes())


@dataclass(frozen=True, slots=True)
class DeviceSketch:
    """What a device found of the operands and C in its memory.

    `largest` [batch, n] are magnitudes of vectors C less vectors op(A) op(B), the largest of each column; `middle`
    [batch] is the largest norm of a vector times op(A), `whole` [batch] is that of op(A), `columns` and `results`
    [batch, n] are those of op(B)'s and C's columns. Rows of op(A) and C count times their `weights` [batch, m].
    `is_finite` says whether all of these are. `sums` are of the words of A, B and C. It took `seconds`.
    """

    largest: Array
    middle: Array
    whole: Array
    columns: Array
    results: Array
    weights: Array
    is_finite: bool
    sums: tuple[Array, Array, Array]
    seconds: float


@dataclass
class SketchClasses:
    """By dtype and transpositions, whether this device's sketches were right where their values were known.

    `pages` are of arrays that were read, by what was read: fresh ones would be mapped each time.
    """

    known: dict[tuple[str, bool, bool], bool] = field(default_factory=dict)
    pages: dict[str, Array] = field(default_factory=dict)

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """Doubles of a shape, in which what was read before under the name is lost."""
        count = prod(shape)
        if self.pages.get(name, _NOTHING).size < count:
            self.pages[name] = np.empty(count)
        return self.pages[name][:count].reshape(shape)


@dataclass(frozen=True, slots=True)
class _Sketched:
    """The matrices of a problem, as their sketch has them."""

    a: StoredMatrix
    b: StoredMatrix
    c: StoredMatrix

    @classmethod
    def of(cls, problem: Problem) -> _Sketched:
        m, n, k, batch, dtype = problem.m, problem.n, problem.k, problem.batch, problem.dtype
        a, b = StoredMatrix(m, k, batch, dtype, problem.trans_a), StoredMatrix(k, n, batch, dtype, problem.trans_b)
        return cls(a, b, StoredMatrix(m, n, batch, dtype))

    @property
    def matrices(self) -> tuple[StoredMatrix, ...]:
        return self.a, self.b, self.c

    def launches(self) -> list[Launch]:
        """Each launch of the sketch, some of them twice."""
        return [row_peaks(self.a), *map(project, self.matrices), *(word_sums(each.nbytes) for each in self.matrices)]


def _prepare(held: WorkerContext, link: WorkerLink, problem: Problem, allowed: float) -> Programs | None:
    """The programs of a problem's sketch, compiled and checked; None where this device makes none."""
    classes = held.state(SketchClasses)
    kind = problem.dtype, problem.trans_a, problem.trans_b
    if not classes.known.get(kind, True):
        return None
    try:
        programs = _programs(held, link, _Sketched.of(problem), allowed)
        if kind not in classes.known:
            classes.known[kind] = _is_right(held, link, problem, allowed)
    except LaunchFailed as error:
        if error.facts.get("fatal", True):
            raise
        return None  # there may be memory for the next one
    except CompileFailed as error:
        if error.facts.get("fatal"):
            raise
        _LOG.warning("no sketches of %s are made on %s: %s", problem.dtype, held.backend.device.id, error.message)
        classes.known[kind] = False
    return programs if classes.known[kind] else None


def prepared(
    held: WorkerContext, link: WorkerLink, problem: Problem, request: SketchRequest, allowed: float
) -> SketchMaker | None:
    """What makes the sketch that is asked for beside the product, its programs compiled and checked now.

    None where this device makes none.
    """
    programs = _prepare(held, link, problem, allowed)
    return None if programs is None else SketchMaker(held, programs, problem, request)


class SketchMaker:
    """The steps of one sketch: `begin` before the product's launch, `compute` while it runs, `end` once it is over.

    Where the device has no memory for a step there is no sketch. `begin` and `end` raise LaunchFailed if the device
    cannot go on. Source: Freivalds, IFIP 1977; the vectors are its own (docs/how-to/verify.md).
    """

    def __init__(self, held: WorkerContext, programs: Programs, problem: Problem, request: SketchRequest) -> None:
        self._backend, self._programs, self._request = held.backend, programs, request
        self._classes = held.state(SketchClasses)
        self._problem, self._of = problem, _Sketched.of(problem)
        self._on: Operands | None = None  # None where there will be no sketch
        self._seconds = 0.0

    def begin(self, on: Operands) -> None:
        """Read the largest of some elements of each of op(A)'s rows [batch, m]; A is there, and B and C will be."""
        started, self._on = perf_counter(), None
        with unless_out_of_memory():
            peaks = self._backend.allocate(self._problem.batch * self._problem.m * _DOUBLE)
            self._run(row_peaks(self._of.a), Operands(peaks, on.a, peaks))
            self._peaks, self._on = self._read(peaks, (self._problem.batch, self._problem.m)), on
        self._seconds = perf_counter() - started

    def compute(self) -> None:
        """Compute on the host the weights of op(A)'s rows [batch, m], and the factors of C's [batch, m, WIDTH]."""
        if self._on is None:
            return
        batch, m = self._problem.batch, self._problem.m
        rows = RowWeights(batch, m)
        rows.take(slice(0, batch), slice(0, m), self._peaks)
        self._weights = rows.weights
        self._factors = _factors(self._problem, self._request, self._weights)

    def end(self) -> DeviceSketch | None:
        """The sketch of A, B and C, which are there."""
        if self._on is not None:
            with unless_out_of_memory():
                return self._sketch(self._on)
        return None

    def _sketch(self, on: Operands) -> DeviceSketch:
        started = perf_counter()
        factors = self._backend.upload(self._factors)
        left = self._projected(self._of.a, factors, on.a)
        product = self._projected(self._of.b, left, on.b)
        result = self._projected(self._of.c, factors, on.c)
        a, b, c = (self._sums(each, of) for each, of in zip(self._of.matrices, (on.a, on.b, on.c), strict=True))
        made = zip("abc", self._of.matrices, (left, product, result), strict=True)
        pages = ((self._classes.array(name, matrix.sketch_shape), buffer) for name, matrix, buffer in made)
        found = _found(*(self._filled(out, buffer) for out, buffer in pages))
        is_finite = all(np.isfinite(each).all() for each in found)
        seconds = self._seconds + perf_counter() - started
        return DeviceSketch(*found, self._weights, is_finite, (a, b, c), seconds)

    def _projected(self, matrix: StoredMatrix, factors: Buffer, at: Buffer) -> Buffer:
        batch, columns, width = matrix.sketch_shape
        out = self._backend.allocate(batch * columns * width * _DOUBLE)
        self._run(project(matrix), Operands(factors, at, out))
        return out

    def _sums(self, matrix: StoredMatrix, at: Buffer) -> Array:
        count = -(-matrix.nbytes // BLOCK_BYTES)
        sums = self._backend.allocate(count * _DOUBLE)
        self._run(word_sums(matrix.nbytes), Operands(at, sums, sums))
        return self._read(sums, (count,), np.uint64)

    def _run(self, launch: Launch, operands: Operands) -> None:
        self._backend.run(self._programs[launch], launch, operands)

    def _read(self, buffer: Buffer, shape: tuple[int, ...], kind: type[np.generic] = np.float64) -> Array:
        return self._filled(np.empty(shape, kind), buffer)

    def _filled(self, out: Array, buffer: Buffer) -> Array:
        self._backend.download(buffer, out)
        return out


def _found(left: Array, product: Array, result: Array) -> tuple[Array, Array, Array, Array, Array]:
    """The largest magnitudes and the norms of a sketch, by the projections of its matrices."""
    through = left[..., :VECTORS]
    with np.errstate(all="ignore"):
        largest = np.abs((result - product)[..., :VECTORS]).max(2)
        middle = np.sqrt(np.einsum("bmv,bmv->bv", through, through).max(1))
        return largest, middle, np.sqrt(left[..., -1].sum(1)), np.sqrt(product[..., -1]), np.sqrt(result[..., -1])


def _factors(problem: Problem, request: SketchRequest, weights: Array) -> Array:
    """The factors of C's rows [batch, m, WIDTH]: the vectors times the rows' weights, and these."""
    bits = np.unpackbits(np.frombuffer(request.bits, np.uint8)).reshape(problem.m, VECTORS)
    factors = np.zeros((problem.batch, problem.m, WIDTH))
    np.multiply(_SIGNS[bits], weights[..., None], out=factors[..., :VECTORS])
    factors[..., VECTORS] = weights
    return factors


def _programs(held: WorkerContext, link: WorkerLink, of: _Sketched, allowed: float) -> Programs:
    """The programs of every launch, compiled and loaded; raises CompileFailed, LaunchFailed."""
    return {launch: warmed(held, link, launch, allowed) for launch in of.launches()}


def _is_right(held: WorkerContext, link: WorkerLink, like: Problem, allowed: float) -> bool:
    """Whether the sketch of small integers, whose every sum is exact, is NumPy's."""
    m, n, k = _SAMPLE
    problem = Problem(m, n, k, 2, like.dtype, trans_a=like.trans_a, trans_b=like.trans_b)
    rng, backend = np.random.default_rng(m), held.backend
    shapes = (m, k), (k, n), (m, n)
    left, right, made = (rng.integers(-4, 5, (2, *shape)).astype(numpy_dtype(like.dtype)) for shape in shapes)
    left[:, m // 2] *= 64  # a row that has a weight
    given = left.swapaxes(1, 2) if like.trans_a else left, right.swapaxes(1, 2) if like.trans_b else right, made
    stored = [np.ascontiguousarray(each) for each in given]
    signs = rng.choice([-1.0, 1.0], (VECTORS, m))
    programs = _programs(held, link, _Sketched.of(problem), allowed)
    link.phase("verify", allowed)
    with link.lease(_CHECKING):
        on = Operands(*map(backend.upload, stored))
        maker = SketchMaker(held, programs, problem, SketchRequest.of(signs))
        maker.begin(on)
        maker.compute()
        found = maker.end()
    if found is None:
        raise LaunchFailed("out of memory for a sketch of known matrices", fatal=False)
    got = found.largest, found.middle, found.whole, found.columns, found.results, *found.sums
    of_words = (block_sums(each.reshape(-1).view(np.uint8)) for each in stored)
    known = *_expected(signs, found.weights, *(each.astype(np.float64) for each in (left, right, made))), *of_words
    is_right = all(np.array_equal(*pair) for pair in zip(got, known, strict=True))
    if not is_right:
        _LOG.warning("sketches of %s are wrong on %s: the host makes them", like.dtype, backend.device.id)
    return is_right


def _expected(signs: Array, weights: Array, left: Array, right: Array, made: Array) -> tuple[Array, ...]:
    """The largest magnitudes and the norms of matrices with these weights, as `_found` has them."""
    vectors = signs[None] * weights[:, None]
    middle = vectors @ left
    whole, columns, results = (
        np.sqrt(np.square(each).sum(at))
        for each, at in ((weights[..., None] * left, (1, 2)), (right, 1), (weights[..., None] * made, 1))
    )
    largest = np.abs(vectors @ made - middle @ right).max(1)
    return largest, np.sqrt(np.square(middle).sum(2).max(1)), whole, columns, results
