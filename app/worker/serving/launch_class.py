"""Launch classes: launches that are compiled, warmed up and compared with NumPy together, before any of them serves."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np

from app.devices.backend import Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import numpy_dtype
from app.errors import WrongResult
from app.tuning.verify import tolerance
from app.worker.state import ProgramCache
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.fp32_emulation import least_k
from kernels.fp32_emulation import reason as reason_of
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

COMPILING = 60.0  # seconds a compilation or a verification may take, where nobody says otherwise
_VECTOR = 16  # bytes of the widest load
_DEEPEST: Final = 4096  # of k of a sample
_SMALL_GRID = 65_535  # threads up to which PoCL compiles a launch on its own
_KNOWN = 512  # launches whose class is remembered
LaunchClass: TypeAlias = tuple[str, Config, bool, bool, bool, bool, bool]


def verify_class(held: WorkerContext, link: WorkerLink, launch: Launch, allowed: float) -> None:
    """Compile and verify a launch's class now, so that its first product need not wait; raises as `ready`.

    Each of the two has `allowed` seconds.
    """
    ready(held, link, launch, allowed)


def built(held: WorkerContext, link: WorkerLink, launch: Launch, allowed: float) -> tuple[Program, float]:
    """The program of a launch as `ready` gives it, and the seconds that its first use took; 0 at any other."""
    program = held.state(ProgramCache).find(launch)
    if program is not None:
        return program, 0.0
    started = perf_counter()
    return ready(held, link, launch, allowed), perf_counter() - started


def ready(held: WorkerContext, link: WorkerLink, launch: Launch, allowed: float = COMPILING) -> Program:
    """The compiled program of a launch, its class verified in this process; raises CompileFailed, WrongResult."""
    cache = held.state(ProgramCache)
    return cache.find(launch) or _verified(held, link, cache, launch, allowed)


def _verified(held: WorkerContext, link: WorkerLink, cache: ProgramCache, launch: Launch, allowed: float) -> Program:
    digest = launch.build.digest
    program = cache.by_digest.get(digest)
    if program is None:
        link.phase("compile", allowed)
        program = held.backend.compile(launch.build)
    cache.keep(digest, program)
    kind = class_of(launch)
    if kind not in cache.verified:
        link.phase("compile", allowed)
        held.backend.warm(program, launch)
        link.phase("verify", allowed)
        check(held, link, program, launch, allowed)
        cache.verified.add(kind)
    cache.remember(launch, digest)
    return program


@lru_cache(_KNOWN)
def class_of(launch: Launch) -> LaunchClass:
    """What is compiled and verified once for all launches that are alike.

    A device may compile anew for a large grid: that counts as compiling, and is over before the lease is asked for.
    """
    large = launch.grid * launch.block[0] > _SMALL_GRID
    return launch.build.digest, launch.config, launch.problem.batch > 1, large, *aligned(launch.problem)


def aligned(problem: Problem) -> tuple[bool, bool, bool]:
    """Whether rows of m, of n and of k elements are whole 16 bytes: kernels read those by wider loads."""
    m, n, k = (size * problem.itemsize % _VECTOR == 0 for size in (problem.m, problem.n, problem.k))
    return m, n, k


def sample(launch: Launch) -> Problem:
    """A small problem of the launch's class: more than one tile in every direction, the last of them not full.

    A size is a multiple of 16 bytes if the launch's is, and k at least the minimum of emulation, with as many splits as
    the launch has: fewer are added up another way. Where a tile has all of k, that is as much as it has room for,
    or one less if that is not zero, but no more than a few passes take.
    """
    problem = launch.problem
    step = _VECTOR // problem.itemsize
    tiles = 2, 2, _k_tiles(launch) - 1
    m, n, k = (
        count * launch.config.get(tile, 16) + (step if whole else odd)
        for count, tile, whole, odd in zip(tiles, ("BM", "BN", "BK"), aligned(problem), (3, 5, 7), strict=True)
    )
    most_k = CATALOGUE[launch.kernel].most_k
    if most_k is not None:
        k = max(1, min(most_k(launch.config, problem), _DEEPEST) - (not aligned(problem)[2]))
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


def _k_tiles(launch: Launch) -> int:
    """Of a sample: as many in each split, three at least, and the last one beyond the minimum of emulation."""
    splits, size = launch.config.get("SPLIT_K", 1), launch.config.get("BK", 16)
    least = least_k(launch.config) if launch.problem.precision == "emulated" else 0
    return max(3, splits * -(-(least + size) // (splits * size)))


def check(held: WorkerContext, link: WorkerLink, program: Program, launch: Launch, allowed: float = COMPILING) -> None:
    """Compare one small product of the launch's class with NumPy's in float64; raises WrongResult."""
    problem, backend = sample(launch), held.backend
    small = CATALOGUE[launch.kernel].for_problem(launch, problem)
    if _steps(small) - _steps(launch):
        link.phase("compile", allowed)
        backend.warm(program, small)
        link.phase("verify", allowed)
    a, b = tolerance.operands(problem, seed=problem.m)
    c = np.empty((problem.batch, problem.m, problem.n), dtype=numpy_dtype(problem.dtype))
    with link.lease(2.0 + 10 * predict(CATALOGUE[launch.kernel], launch.config, problem, backend.device)):
        operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
        backend.fill(operands.c, tolerance.POISON)
        backend.run(program, small, operands)
        declined = backend.declined(small)
        backend.download(operands.c, c)
    if declined:
        raise WrongResult(f"{launch.kernel} {launch.config} declined ordinary operands: {reason_of(declined)}")
    reference = backend.reference(*tolerance.applied(problem, a, b))
    reason = tolerance.judge(problem, a, b, reference, c)
    if reason is not None:
        raise WrongResult(f"{launch.kernel} {launch.config} failed its check before serving: {reason}")


def _steps(launch: Launch) -> set[str]:
    """The digests of a launch's steps."""
    return {step.build.digest for step in (*launch.before, *launch.after)}
