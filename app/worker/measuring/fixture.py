"""The fixture that all trials of a problem share: operands, reference product, device buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.devices.backend import Backend, Buffer, Operands, WorkerContext
from app.devices.host import available_bytes
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import LaunchFailed
from app.tuning.verify.tolerance import POISON, Expected, applied, expect, operands, pieces, spot_check
from kernels.problem import Problem

GUARD: Final = 2**16  # bytes watched on each side of C
_PAGE: Final = 4096  # windows of buffers start at multiples of this
_PATTERN: Final = 0xA5
_CACHE: Final = 64 * 2**20  # bytes of a last-level cache that a device says nothing of
_PASSED: Final = 3  # times the cache that the sets are together: what was used last time round is gone
_MOST_SETS: Final = 1024
_MOST_BYTES: Final = 2**30
_MOST_HOST_BYTES: Final = 2**28  # where they are the host's memory: writing 1 GiB for the first time takes it a second
_TURN: Final = 0.05  # seconds that one piece of the reference takes at the float64 peak of what computes it
_HOST_PEAK: Final = 1e11  # float64 flop/s, roughly: without the vendor's library the host computes the reference
_SLOW: Final = 2e7  # bytes a second that no host work on operands is slower than: a deadline, not an estimate


@dataclass(frozen=True, slots=True)
class FixtureKey:
    """A problem of a job, and the seed of its operands: fresh per job, equal for its candidates and its resumption."""

    job_id: str
    problem: Problem
    seed: int


@dataclass(frozen=True, slots=True)
class FixtureBuffers:
    """Device memory: a C between guard bands to verify into, and the sets that timed launches rotate through."""

    guarded: Buffer
    verifying: Operands
    rotation: tuple[Operands, ...]


@dataclass(slots=True)
class Fixture:
    """Operands and their reference. `readback` is host memory for C with both guard bands, `buffers` the device's."""

    key: FixtureKey
    a: Array
    b: Array
    expected: Expected
    readback: Array
    buffers: FixtureBuffers | None = None

    def on(self, backend: Backend) -> FixtureBuffers:
        """The device buffers, allocated if there are none; raises LaunchFailed if they do not fit."""
        if self.buffers is None:
            self.buffers = _buffers(backend, self.key.problem, self.a, self.b)
        return self.buffers


@dataclass
class _FixtureSlot:
    """The worker's one fixture."""

    fixture: Fixture | None = None


def prepared(held: WorkerContext, link: WorkerLink, key: FixtureKey) -> Fixture:
    """The worker's fixture for a key, made if it has another or none; the memory of the old one is freed first.

    Raises LaunchFailed if the device refuses, WrongResult if the reference fails its spot check.
    """
    slot = held.state(_FixtureSlot)
    ready = slot.fixture
    if ready is None or ready.key != key:
        ready = None
        drop(held)
        slot.fixture = ready = _prepare(held, link, key)
    return ready


def kept(held: WorkerContext) -> Fixture | None:
    """The worker's fixture, None if it has none."""
    return held.state(_FixtureSlot).fixture


def drop(held: WorkerContext) -> None:
    """Drop the fixture: if device and process share memory, writes past C may have reached the reference."""
    held.state(_FixtureSlot).fixture = None


def drop_buffers(held: WorkerContext) -> None:
    """Give the fixture's device memory back: a candidate that misbehaved may have written anywhere in it."""
    ready = kept(held)
    if ready is not None:
        ready.buffers = None


def poison(backend: Backend, guarded: Buffer, c: Buffer) -> None:
    """Fill C with NaN and its guard bands with their pattern."""
    backend.fill(guarded, _PATTERN)
    backend.fill(c, POISON)


def overrun(readback: Array) -> str | None:
    """Say how many bytes of the guard bands have changed, of C as it was downloaded with them; None: none."""
    before = int(np.count_nonzero(readback[:GUARD] != _PATTERN))
    after = int(np.count_nonzero(readback[-GUARD:] != _PATTERN))
    if not before and not after:
        return None
    places = [f"{count} bytes {where}" for count, where in ((before, "before it"), (after, "past its end")) if count]
    return f"wrote outside C: {' and '.join(places)}"


def product(problem: Problem, readback: Array) -> Array:
    """C as it was downloaded with its guard bands, [batch, m, n], sharing the readback's memory."""
    return readback[GUARD:-GUARD].view(numpy_dtype(problem.dtype)).reshape(problem.batch, problem.m, problem.n)


def patience(problem: Problem) -> float:
    """Seconds after which host work on a problem's operands is taken for hung."""
    return 60.0 + problem.bytes / _SLOW


def _prepare(held: WorkerContext, link: WorkerLink, key: FixtureKey) -> Fixture:
    problem = key.problem
    link.phase("verify", patience(problem))
    _expect_room(problem)
    a, b = operands(problem, key.seed)
    reference = _reference(held.backend, link, problem, a, b)
    spot_check(reference, a, b, problem, key.seed)
    readback = np.empty(problem.c_bytes + 2 * GUARD, np.uint8)
    return Fixture(key, a, b, expect(problem, a, b, reference), readback)


def _expect_room(problem: Problem) -> None:
    """Raise LaunchFailed if the host has no memory for operands, reference, and C as it is downloaded."""
    needed = problem.bytes + 8 * problem.batch * problem.m * problem.n
    available = available_bytes()
    if needed > available:
        message = f"out of memory: the operands and their reference take {needed} bytes, the host has {available}"
        raise LaunchFailed(message, fatal=False)


def _reference(backend: Backend, link: WorkerLink, problem: Problem, a: Array, b: Array) -> Array:
    """The float64 product, in pieces between which a product of the service may use the device."""
    left, right = applied(problem, a, b)
    reference = np.empty((problem.batch, problem.m, problem.n))
    flops = int(_TURN * (max(backend.device.limits.peak64, 1e9) if backend.vendor.name else _HOST_PEAK))
    deadline = patience(problem)
    with link.lease(deadline):
        for where in pieces(problem.batch, problem.m, 2 * problem.n * problem.k, flops):
            reference[where] = backend.reference(left[where], right[where[0]])
            link.offer(deadline)
    return reference


def _buffers(backend: Backend, problem: Problem, a: Array, b: Array) -> FixtureBuffers:
    guarded, rotation = backend.allocate(problem.c_bytes + 2 * GUARD), rotating(backend, problem, a, b)
    verifying = Operands(rotation[0].a, rotation[0].b, guarded.window(GUARD, problem.c_bytes))
    return FixtureBuffers(guarded, verifying, rotation)


def rotating(backend: Backend, problem: Problem, a: Array, b: Array) -> tuple[Operands, ...]:
    """Sets of operands, A and B the same in each, over three times the cache unless memory is short: one at least."""
    cache = backend.device.limits.cache_bytes or _CACHE
    most = _MOST_BYTES if backend.device.platform == "cuda" else _MOST_HOST_BYTES
    count = _sets(problem, cache, min(most, backend.free_bytes() // 2))
    pools = _repeated(backend, a, count), _repeated(backend, b, count)
    pool_c = backend.allocate(count * _up(problem.c_bytes))
    backend.fill(pool_c, 0)  # a host's memory is there once it was written to: no launch is to pay for that
    return tuple(
        Operands(
            pools[0].window(number * _up(a.nbytes), a.nbytes),
            pools[1].window(number * _up(b.nbytes), b.nbytes),
            pool_c.window(number * _up(problem.c_bytes), problem.c_bytes),
        )
        for number in range(count)
    )


def _sets(problem: Problem, cache: int, most: int) -> int:
    """How many sets of A, B and C are over three times the cache, within `most` bytes; one at least."""
    size = _up(problem.a_bytes) + _up(problem.b_bytes) + _up(problem.c_bytes)
    return max(1, min(_PASSED * cache // size + 1, _MOST_SETS, most // size))


def _repeated(backend: Backend, array: Array, count: int) -> Buffer:
    """`count` copies of an array's bytes, each at a multiple of a page."""
    step = _up(array.nbytes)
    pool = backend.allocate(count * step)
    for number in range(count):
        backend.write(pool.window(number * step, array.nbytes), array)
    return pool


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
