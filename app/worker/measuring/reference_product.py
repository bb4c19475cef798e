"""The reference product of a fixture on the host, and the guard bands that C lies between on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from app.devices.backend import Backend, Buffer
from app.devices.host import available_bytes
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import LaunchFailed
from app.tuning.verify.tolerance import POISON, Errors, Expected, Norms, applied, errors, expect, pieces, spot_check
from kernels.problem import Problem

GUARD: Final = 2**16  # bytes watched on each side of C
_PATTERN: Final = 0xA5
_TURN: Final = 0.05  # seconds that one piece of the reference takes at the float64 peak of what computes it
_HOST_PEAK: Final = 1e11  # float64 flop/s, roughly: without the vendor's library the host computes the reference
_SLOW: Final = 2e7  # bytes a second that no host work on operands is slower than: a deadline, not an estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a launch left: C's errors, and which bytes of the guard bands have changed, None if none has."""

    errors: Errors
    outside: str | None


class ReferenceProduct(Protocol):
    """The float64 product of a fixture's operands, wherever it lies."""

    @property
    def norms(self) -> Norms:
        """What a product's errors are judged by."""
        ...

    def compare(self, link: WorkerLink, guarded: Buffer) -> Comparison | None:
        """Compare a C between guard bands on the device; None if the reference is no longer what it was.

        Raises LaunchFailed if the device refuses.
        """
        ...


class HostReference:
    """The reference in the host's memory: each C is downloaded and compared by NumPy."""

    def __init__(self, backend: Backend, problem: Problem, expected: Expected) -> None:
        self._backend, self._problem, self._expected = backend, problem, expected
        self._readback = np.empty(problem.c_bytes + 2 * GUARD, np.uint8)

    @property
    def norms(self) -> Norms:
        """What a product's errors are judged by."""
        return self._expected.norms

    def compare(self, link: WorkerLink, guarded: Buffer) -> Comparison:
        """Compare a C between guard bands on the device; raises LaunchFailed."""
        del link
        self._backend.download(guarded, self._readback)
        c = product(self._problem, self._readback)
        return Comparison(
            errors(self._problem, self._expected, c), overrun(self._readback[:GUARD], self._readback[-GUARD:])
        )


def host_reference(
    backend: Backend, link: WorkerLink, problem: Problem, a: Array, b: Array, seed: int
) -> HostReference:
    """The reference of operands as stored, checked at random elements.

    It is made in pieces between which a product of the service may use the device. Raises LaunchFailed if the host has
    no memory for it, or the device refuses, WrongResult if an element is wrong.
    """
    expect_room(problem, 8 * problem.batch * problem.m * problem.n + problem.c_bytes)
    left, right = applied(problem, a, b)
    reference = np.empty((problem.batch, problem.m, problem.n))
    deadline = patience(problem)
    with link.lease(deadline):
        for where in turns(backend, problem):
            reference[where] = backend.reference(left[where], right[where[0]])
            link.offer(deadline)
    spot_check(lambda at, i, j: float(reference[at, i, j]), a, b, problem, seed)
    return HostReference(backend, problem, expect(problem, a, b, reference))


def turns(backend: Backend, problem: Problem) -> list[tuple[slice, slice]]:
    """The (batches, rows) of C that are made of the reference before a product of the service may use the device."""
    peak = max(backend.device.limits.peak64, 1e9) if backend.vendor.name else _HOST_PEAK
    return list(pieces(problem.batch, problem.m, 2 * problem.n * problem.k, int(_TURN * peak)))


def poison(backend: Backend, guarded: Buffer, c: Buffer) -> None:
    """Fill C with NaN and its guard bands with their pattern."""
    backend.fill(guarded, _PATTERN)
    backend.fill(c, POISON)


def overrun(before: Array, after: Array) -> str | None:
    """Say how many bytes of the guard bands have changed, of the band before C and the one after it; None: none."""
    changed = [int(np.count_nonzero(band != _PATTERN)) for band in (before, after)]
    if not any(changed):
        return None
    places = [f"{count} bytes {where}" for count, where in zip(changed, ("before it", "past its end"), strict=True)]
    return f"wrote outside C: {' and '.join(place for place, count in zip(places, changed, strict=True) if count)}"


def product(problem: Problem, readback: Array) -> Array:
    """C as it was downloaded with its guard bands, [batch, m, n], sharing the readback's memory."""
    return readback[GUARD:-GUARD].view(numpy_dtype(problem.dtype)).reshape(problem.batch, problem.m, problem.n)


def patience(problem: Problem) -> float:
    """Seconds after which host work on a problem's operands is taken for hung."""
    return 60.0 + problem.bytes / _SLOW


def expect_room(problem: Problem, needed: int) -> None:
    """Raise LaunchFailed if the host has no memory for a problem's operands, or its reference."""
    available = available_bytes()
    if needed > available:
        message = f"out of memory: to verify {problem} takes {needed} bytes more, the host has {available}"
        raise LaunchFailed(message, fatal=False)
