"""The fixture that all trials of a problem share: operands, reference product, device buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.devices.backend import Backend, Buffer, Operands, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.tuning.verify.tolerance import operands
from app.worker.measuring.device_reference import device_reference, is_compared_there
from app.worker.measuring.reference_product import GUARD, ReferenceProduct, expect_room, host_reference, patience
from kernels.problem import Problem

_PAGE: Final = 4096  # windows of buffers start at multiples of this
_CACHE: Final = 64 * 2**20  # bytes of a last-level cache that a device says nothing of
_PASSED: Final = 3  # times the cache that the sets are together: what was used last time round is gone
_MOST_SETS: Final = 1024
_MOST_BYTES: Final = 2**30
_MOST_HOST_BYTES: Final = 2**28  # where they are the host's memory: writing 1 GiB for the first time takes it a second


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
    """Operands as stored, their reference product, and the device's buffers."""

    key: FixtureKey
    a: Array
    b: Array
    reference: ReferenceProduct
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


def _prepare(held: WorkerContext, link: WorkerLink, key: FixtureKey) -> Fixture:
    problem = key.problem
    link.phase("verify", patience(problem))
    expect_room(problem, problem.a_bytes + problem.b_bytes)
    a, b = operands(problem, key.seed)
    return Fixture(key, a, b, reference_of(held, link, problem, a, b, key.seed))


def reference_of(
    held: WorkerContext, link: WorkerLink, problem: Problem, a: Array, b: Array, seed: int
) -> ReferenceProduct:
    """The reference of operands as stored, on the device if that is worth it and works; raises as `prepared`."""
    if is_compared_there(held.backend, problem):
        there = device_reference(held, link, problem, a, b, seed)
        if there is not None:
            return there
    return host_reference(held.backend, link, problem, a, b, seed)


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
