"""The reference product on the device, where each C is compared: neither it nor C crosses to the host.

For 7427 x 14336 elements of bfloat16 the host's comparison takes a second of one core, and the reference 852 MB.
Kernels of ours (kernels/comparison) read the operands, the reference and C; a device's have to find what NumPy finds in
a known product before they are relied on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from math import isclose, isnan, sqrt
from typing import Final, TypeAlias

import numpy as np

from app.devices.backend import Backend, Buffer, Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed
from app.tuning.verify.tolerance import POISON, Errors, Norms, applied, by_fmas, errors, expect, operands, spot_check
from app.worker.measuring.reference_product import GUARD, Comparison, overrun, patience, poison, turns
from app.worker.state import warmed
from kernels.comparison import FINDINGS, compare, expected_bytes, norms, widen
from kernels.launch import Launch
from kernels.problem import Problem

_LOG: Final = logging.getLogger(__name__)
PLATFORMS: Final = frozenset({"cuda"})  # elsewhere the device's memory and cores are the host's
LEAST: Final = 2**18  # elements of A, B and C: fewer are compared in a few milliseconds on the host
_COMPILING: Final = 60.0  # seconds
_DOUBLE: Final = 8
_SAMPLE: Final = 67, 261, 75, 2  # m, n, k and batch: more than one block of rows and of columns
_PLANTED: Final = 1e-3  # relative errors of the sample's C
_CLOSE: Final = 1e-9  # relative: both sum in float64, in another order
Programs: TypeAlias = dict[Launch, Program]


@dataclass
class ComparisonClasses:
    """By dtype and transpositions, whether this device's comparisons were right where their values were known."""

    known: dict[tuple[str, bool, bool], bool] = field(default_factory=dict)


class DeviceReference:
    """The expected product in a device's memory.

    A launch that wrote over it would have changed its sums, which every comparison takes again in the same order.
    """

    def __init__(
        self, backend: Backend, problem: Problem, programs: Programs, expected: Buffer, fmas: float | None
    ) -> None:
        self._backend, self.problem, self.expected = backend, problem, expected
        self._launch = compare(problem)
        self._program = programs[self._launch]
        self._found = backend.allocate(_DOUBLE * FINDINGS * self._launch.grid)
        self._band = np.empty(2 * GUARD, np.uint8)
        unwritten = backend.allocate(problem.c_bytes)
        backend.fill(unwritten, POISON)
        self._sums = self._compared(unwritten)[1]
        whole, scales = self._sums
        self.norms = Norms(sqrt(whole), sqrt(scales / problem.k), fmas)

    def compare(self, link: WorkerLink, guarded: Buffer) -> Comparison | None:
        """Compare a C between guard bands on the device; None if the reference is no longer what it was.

        Raises LaunchFailed if the device refuses.
        """
        end = GUARD + self.problem.c_bytes
        with link.lease(patience(self.problem)):
            found, sums = self._compared(guarded.window(GUARD, self.problem.c_bytes))
        if sums != self._sums:
            return None
        for at, band in ((0, self._band[:GUARD]), (end, self._band[GUARD:])):
            self._backend.download(guarded.window(at, GUARD), band)
        return Comparison(found, overrun(self._band[:GUARD], self._band[GUARD:]))

    def element(self, batch: int, i: int, j: int) -> float:
        """One element of the reference."""
        found, at = np.empty(1), (batch * self.problem.m + i) * self.problem.n + j
        self._backend.download(self.expected.window(_DOUBLE * at, _DOUBLE), found)
        return float(found[0])

    def _compared(self, c: Buffer) -> tuple[Errors, tuple[float, float]]:
        """C's errors, and the sums of the squares of the reference and of its scales."""
        self._backend.run(self._program, self._launch, Operands(c, self.expected, self._found))
        found = np.empty((self._launch.grid, FINDINGS))
        self._backend.download(self._found, found)
        squares, whole, scales, nans, unwritten = found[:, : FINDINGS - 2].sum(0).tolist()
        worst, early = found[:, FINDINGS - 2 :].max(0).tolist()
        return Errors(squares, worst, early, int(nans), int(unwritten)), (whole, scales)


def is_compared_there(backend: Backend, problem: Problem) -> bool:
    """Whether a problem's products are worth comparing on this device, and it may have the memory."""
    elements = problem.bytes // problem.itemsize
    if backend.device.platform not in PLATFORMS or backend.vendor.name is None or elements < LEAST:
        return False
    return problem.bytes + expected_bytes(problem) + _DOUBLE * elements <= backend.free_bytes() // 2


def device_reference(
    held: WorkerContext, link: WorkerLink, problem: Problem, a: Array, b: Array, seed: int
) -> DeviceReference | None:
    """The reference of operands as stored, checked at random elements.

    None where this device makes none, for want of memory or since its comparisons are wrong. Raises CompileFailed or
    LaunchFailed if it is lost to this process (facts: fatal), WrongResult if an element is wrong.
    """
    known, kind = held.state(ComparisonClasses).known, (problem.dtype, problem.trans_a, problem.trans_b)
    try:
        if kind not in known:
            known[kind] = _is_right(held, link, problem)
        reference = _made(held, link, problem, a, b) if known[kind] else None
    except LaunchFailed as error:
        if error.facts.get("fatal"):
            raise
        return None  # there may be memory for the next one
    except CompileFailed as error:
        if error.facts.get("fatal"):
            raise
        _LOG.warning("no products of %s are compared on %s: %s", problem.dtype, held.backend.device.id, error.message)
        known[kind] = False
        return None
    if reference is not None:
        spot_check(reference.element, a, b, problem, seed)
    return reference


def _made(held: WorkerContext, link: WorkerLink, problem: Problem, a: Array, b: Array) -> DeviceReference:
    """The float64 product of the vendor's library, in pieces as on the host, and the norms."""
    backend, deadline = held.backend, patience(problem)
    launches = widen(problem, "a"), widen(problem, "b"), norms(problem, "a"), norms(problem, "b"), compare(problem)
    programs = {launch: warmed(held, link, launch, _COMPILING) for launch in launches}
    link.phase("verify", deadline)
    fmas = by_fmas(problem, *applied(problem, a, b))
    left, right = (backend.allocate(_DOUBLE * each.size) for each in (a, b))
    expected = backend.allocate(expected_bytes(problem))
    stored = backend.upload(a), backend.upload(b)
    outs = left, right, expected, expected
    with link.lease(deadline):
        for launch, matrix, out in zip(launches, stored * 2, outs, strict=False):
            backend.run(programs[launch], launch, Operands(matrix, matrix, out))
        for batches, rows in turns(backend, problem):
            link.offer(deadline)
            _multiply(backend, problem, Operands(left, right, expected), batches, rows)
        return DeviceReference(backend, problem, programs, expected, fmas)


def _multiply(backend: Backend, problem: Problem, wide: Operands, batches: slice, rows: slice) -> None:
    """Some rows of a batch, or all of some batches, of op(A) [batch, m, k] in float64 times B as it is stored."""
    m, n, k = problem.m, problem.n, problem.k
    first, last, _ = batches.indices(problem.batch)
    top, bottom, _ = rows.indices(m)
    row, count = first * m + top, (last - first) * (bottom - top)
    part = Problem(bottom - top, n, k, last - first, "float64", trans_b=problem.trans_b)
    windows = (
        buffer.window(_DOUBLE * start, _DOUBLE * size)
        for buffer, start, size in (
            (wide.a, row * k, count * k),
            (wide.b, first * k * n, (last - first) * k * n),
            (wide.c, row * n, count * n),
        )
    )
    backend.vendor_run(part, Operands(*windows))


def _is_right(held: WorkerContext, link: WorkerLink, like: Problem) -> bool:
    """Whether a known product with planted errors, NaN and an unwritten element is off by what NumPy finds."""
    m, n, k, batch = _SAMPLE
    problem = replace(like, m=m, n=n, k=k, batch=batch, precision="strict")
    a, b = operands(problem, m)
    left, right = applied(problem, a, b)
    known = expect(problem, a, b, np.matmul(left, right, dtype=np.float64))
    rng = np.random.default_rng(m)
    c = (known.reference * (1 + _PLANTED * rng.standard_normal((batch, m, n)))).astype(numpy_dtype(like.dtype))
    reference = _made(held, link, problem, a, b)
    found = [_errors(held, link, reference, problem, c)]
    told = [errors(problem, known, c)]
    c[0, m // 2, n // 2] = np.nan
    c[1, -1, -1:].view(np.uint8)[...] = POISON
    found.append(_errors(held, link, reference, problem, c))
    told.append(errors(problem, known, c))
    is_right = _are_close(reference.norms, known.norms) and all(map(_agree, found, told))
    if not is_right:
        _LOG.warning("comparisons of %s are wrong on %s: the host makes them", like.dtype, held.backend.device.id)
    return is_right


def _errors(
    held: WorkerContext, link: WorkerLink, reference: DeviceReference, problem: Problem, c: Array
) -> Errors | None:
    """What a known C is found to be off by."""
    backend = held.backend
    guarded = backend.allocate(problem.c_bytes + 2 * GUARD)
    window = guarded.window(GUARD, problem.c_bytes)
    poison(backend, guarded, window)
    backend.write(window, c)
    compared = reference.compare(link, guarded)
    return compared.errors if compared is not None and compared.outside is None else None


def _are_close(found: Norms, known: Norms) -> bool:
    pairs = (found.whole, known.whole), (found.usual, known.usual)
    return all(isclose(*pair, rel_tol=_CLOSE) for pair in pairs)


def _agree(found: Errors | None, known: Errors) -> bool:
    """Whether errors are the known ones; of a C with NaN, whether its elements are counted right."""
    if found is None or (found.nans, found.unwritten) != (known.nans, known.unwritten):
        return False
    if known.nans:
        return isnan(found.squares)
    pairs = (found.squares, known.squares), (found.worst, known.worst), (found.early, known.early)
    return all(isclose(*pair, rel_tol=_CLOSE) for pair in pairs)
