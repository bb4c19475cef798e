"""In the serving child: one product from slab to slab, by a kernel whose class was verified here first."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from app.devices.base import Array, Backend, Operands, Program
from app.devices.fleet import Held
from app.devices.process import Link
from app.errors import WrongResult
from app.tuning import verify
from kernels import CATALOGUE
from kernels.kernel import Launch
from kernels.model import predict
from kernels.problem import Problem

_COMPILING = 120.0  # seconds a compiler may take before its process is killed
_VECTOR = 16  # bytes of the widest load
_SMALL_GRID = 65_535  # threads up to which PoCL compiles a launch on its own
_COPYING = 1e8  # bytes a second that no copy is slower than: a deadline, not an estimate


@dataclass(frozen=True, slots=True)
class Order:
    """A product to make: byte offsets of A, B and C in the slab; `launch` None asks for the vendor's library."""

    problem: Problem
    launch: Launch | None
    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that the copy to the device, the kernel and the copy back took."""

    h2d: float
    kernel: float
    d2h: float


def view(slab: memoryview, offset: int, problem: Problem, count: int) -> Array:
    """`count` elements of the problem's dtype at an offset of the slab, as a flat array that shares its memory."""
    kind = np.dtype(problem.dtype)
    return np.frombuffer(slab, dtype=kind, count=count, offset=offset)


def multiply(held: Held, link: Link, order: Order) -> Spent:
    """Copy A and B to the device, launch, copy C back; raises WrongResult where the kernel's class fails its check."""
    program = None if order.launch is None else ready(held, link, order.launch)
    problem = order.problem
    a = view(held.slab, order.a, problem, problem.a_bytes // problem.itemsize)
    b = view(held.slab, order.b, problem, problem.b_bytes // problem.itemsize)
    c = view(held.slab, order.c, problem, problem.c_bytes // problem.itemsize)
    with link.lease(deadline(held.backend, order)):
        started = perf_counter()
        operands = Operands(held.backend.upload(a), held.backend.upload(b), held.backend.allocate(problem.c_bytes))
        copied = perf_counter()
        _run(held.backend, program, order, operands)
        launched = perf_counter()
        held.backend.download(operands.c, c)
        return Spent(copied - started, launched - copied, perf_counter() - launched)


def verify_class(held: Held, link: Link, launch: Launch) -> None:
    """Compile and verify a launch's class now, so that its first product need not wait; raises as `ready`."""
    ready(held, link, launch)


def deadline(backend: Backend, order: Order) -> float:
    """Seconds after which the launch is taken for hung: max(2, 10 x the model's prediction), and the copies' time."""
    naive = CATALOGUE["naive"]
    kernel = CATALOGUE[order.launch.kernel] if order.launch else naive
    config = order.launch.config if order.launch else naive.default(order.problem, backend.device)
    return max(2.0, 10 * predict(kernel, config, order.problem, backend.device)) + order.problem.bytes / _COPYING


def _run(backend: Backend, program: Program | None, order: Order, operands: Operands) -> None:
    if program is None or order.launch is None:
        backend.vendor_run(order.problem, operands)
    else:
        backend.run(program, order.launch, operands)


def ready(held: Held, link: Link, launch: Launch) -> Program:
    """The compiled program of a launch, its class verified in this process; raises CompileFailed, WrongResult."""
    programs: dict[str, Program] = held.memory.setdefault("programs", {})
    digest = launch.build.digest
    if digest not in programs:
        link.phase("compile", _COMPILING)
        programs[digest] = held.backend.compile(launch.build)
    verified: set[tuple[object, ...]] = held.memory.setdefault("verified", set())
    # A device may compile anew for a large grid: that counts as compiling, and is over before the lease is asked for.
    large = launch.grid * launch.block[0] > _SMALL_GRID
    kind = (digest, launch.config, launch.problem.batch > 1, large, *aligned(launch.problem))
    if kind not in verified:
        link.phase("compile", _COMPILING)
        held.backend.warm(programs[digest], launch)
        link.phase("verify", _COMPILING)
        check(held, link, programs[digest], launch)
        verified.add(kind)
    return programs[digest]


def aligned(problem: Problem) -> tuple[bool, bool, bool]:
    """Whether rows of m, of n and of k elements are whole 16 bytes: kernels read those by wider loads."""
    m, n, k = (size * problem.itemsize % _VECTOR == 0 for size in (problem.m, problem.n, problem.k))
    return m, n, k


def sample(launch: Launch) -> Problem:
    """A small problem of the launch's class: more than one tile in every direction, the last of them not full.

    A size is a multiple of 16 bytes where the launch's is.
    """
    problem = launch.problem
    step = _VECTOR // problem.itemsize
    m, n, k = (
        2 * launch.config.get(tile, 16) + (step if whole else odd)
        for tile, whole, odd in zip(("BM", "BN", "BK"), aligned(problem), (3, 5, 7), strict=True)
    )
    return Problem(
        m=m,
        n=n,
        k=k,
        batch=2 if problem.batch > 1 else 1,
        dtype=problem.dtype,
        precision=problem.precision,
        trans_a=problem.trans_a,
        trans_b=problem.trans_b,
    )


def check(held: Held, link: Link, program: Program, launch: Launch) -> None:
    """Compare one small product of the launch's class with NumPy's in float64; raises WrongResult."""
    problem, backend = sample(launch), held.backend
    small = CATALOGUE[launch.kernel].resized(launch, problem)
    if _steps(small) - _steps(launch):
        link.phase("compile", _COMPILING)
        backend.warm(program, small)
        link.phase("verify", _COMPILING)
    a, b = verify.operands(problem, seed=problem.m)
    c = np.empty((problem.batch, problem.m, problem.n), dtype=problem.dtype)
    with link.lease(2.0 + 10 * predict(CATALOGUE[launch.kernel], launch.config, problem, backend.device)):
        operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
        backend.fill(operands.c, verify.POISON)
        backend.run(program, small, operands)
        backend.download(operands.c, c)
    reference = backend.reference(*verify.applied(problem, a, b))
    reason = verify.judge(problem, a, b, reference, c)
    if reason is not None:
        raise WrongResult(f"{launch.kernel} {launch.config} failed its check before serving: {reason}")


def _steps(launch: Launch) -> set[str]:
    """The digests of what runs before and after a launch."""
    return {step.build.digest for step in (*launch.before, *launch.after)}
