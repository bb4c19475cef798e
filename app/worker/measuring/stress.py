"""Stress verification of finalists: adversarial operands and neighbouring shapes, before a config may be promoted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.devices.backend import Backend, Buffer, Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.errors import CompileFailed, LaunchFailed
from app.tuning.outcome import Rejected
from app.tuning.verify import adversarial
from app.tuning.verify.adversarial import Case
from app.tuning.verify.tolerance import POISON, applied
from app.worker.measuring.contenders import LoadedContender, loaded, warm
from app.worker.measuring.fixture import FixtureKey, drop, drop_buffers
from app.worker.measuring.reference_product import GUARD, overrun, patience, poison, product
from kernels import KERNELS
from kernels.cost_model import predict
from kernels.launch import Launch
from kernels.problem import Problem

_SHORTEST: Final = 2.0  # seconds: no launch is taken for hung before
_AHEAD: Final = 4  # cases that the host draws ahead and judges behind: of up to a million elements each


def stress_verify(held: WorkerContext, link: WorkerLink, launch: Launch, key: FixtureKey) -> Rejected | None:
    """Launch a config on every case of `adversarial.cases`; None if all are right.

    Neighbours for which the kernel's space refuses the config are moved into its class. Raises CompileFailed or
    LaunchFailed if the device is lost to this process (facts: fatal).
    """
    entrant = loaded(held, link, launch)
    if isinstance(entrant, Rejected):
        return entrant
    try:
        return _first_wrong(held, link, entrant, launch, key)
    except (CompileFailed, LaunchFailed) as error:
        if error.facts.get("fatal"):
            raise
        drop_buffers(held)
        return entrant.rejected("launch", error.message)
    except MemoryError as error:
        drop(held)
        return entrant.rejected("launch", f"out of memory: {error}")


def _first_wrong(
    held: WorkerContext, link: WorkerLink, entrant: LoadedContender, launch: Launch, key: FixtureKey
) -> Rejected | None:
    """The first case that is wrong: the host draws the operands of some ahead, and judges what came before."""
    kernel, device, program = KERNELS[launch.kernel], held.backend.device, entrant.program
    if program is None:
        return None

    def legal(problem: Problem) -> bool:
        return kernel.space.refusal(launch.config, problem, device) is None

    def computes(problem: Problem) -> bool:
        return kernel.computes(launch.config, problem)

    hostile = adversarial.cases(launch.config, launch.problem, device, legal, computes)
    with ThreadPoolExecutor(_AHEAD) as pool:
        judged = deque[tuple[Case, Future[str | None]]]()
        for case, drawn in _drawn(pool, hostile, key.seed):
            planned = kernel.for_problem(launch, case.problem)
            found = _launched(held, link, program, planned, case, drawn.result())
            judged.append((case, pool.submit(found.judge)))
            if len(judged) > _AHEAD and (wrong := _wrong(entrant, *judged.popleft())):
                return wrong
        return next((wrong for each in judged if (wrong := _wrong(entrant, *each))), None)


def _wrong(entrant: LoadedContender, case: Case, judged: Future[str | None]) -> Rejected | None:
    reason = judged.result()
    return entrant.rejected("verify", f"{case.name}: {reason}") if reason else None


def _drawn(
    pool: Executor, cases: Iterable[Case], seed: int
) -> Iterator[tuple[Case, Future[tuple[Array, Array, Array, Array]]]]:
    """Each case with A and B, and with the operands of its reference, which are finite; a few are drawn ahead."""
    waiting = deque[tuple[Case, Future[tuple[Array, Array, Array, Array]]]]()
    for number, case in enumerate(cases):
        waiting.append((case, pool.submit(_operands, case, seed + number)))
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    yield from waiting


def _operands(case: Case, seed: int) -> tuple[Array, Array, Array, Array]:
    a, b = adversarial.draw(case, seed)
    return a, b, *applied(case.problem, *adversarial.finite_operands(case, a, b))


@dataclass(frozen=True, slots=True)
class _Launched:
    """What a launch on a case left: C in the readback, or why it is wrong or None where it is not to be judged."""

    case: Case
    a: Array
    b: Array
    reference: Array
    readback: Array
    is_product: bool
    reason: str | None = None

    def judge(self) -> str | None:
        """Say why C is wrong; None: it is right."""
        if not self.is_product:
            return self.reason
        return adversarial.judge(self.case, self.a, self.b, self.reference, product(self.case.problem, self.readback))


def _launched(
    held: WorkerContext,
    link: WorkerLink,
    program: Program,
    launch: Launch,
    case: Case,
    drawn: tuple[Array, Array, Array, Array],
) -> _Launched:
    """Launch once into a poisoned C between guard bands, with A and B between NaN, and make the reference."""
    backend, problem, (a, b, left, right) = held.backend, case.problem, drawn
    link.phase("verify", patience(problem))
    warm(held, link, program, launch)
    link.phase("launch", patience(problem))
    guarded = backend.allocate(problem.c_bytes + 2 * GUARD)
    operands = Operands(_among_nan(backend, a), _among_nan(backend, b), guarded.window(GUARD, problem.c_bytes))
    poison(backend, guarded, operands.c)
    predicted = predict(KERNELS[launch.kernel], launch.config, problem, backend.device)
    with link.lease(max(_SHORTEST, 10 * predicted)):
        backend.run(program, launch, operands)
        verdict = backend.declined(launch)
    with link.lease(patience(problem)):
        reference = backend.reference(left, right)
    link.phase("verify", patience(problem))
    readback = np.empty(guarded.nbytes, np.uint8)
    backend.download(guarded, readback)
    outside = overrun(readback[:GUARD], readback[-GUARD:])
    if outside is not None:
        drop(held)
    reason = adversarial.declined(case, verdict) if verdict and outside is None else outside
    return _Launched(case, a, b, reference, readback, is_product=not (verdict or outside), reason=reason)


def _among_nan(backend: Backend, array: Array) -> Buffer:
    """The array on the device between NaN, so that reads outside it show in C."""
    bands = np.full(array.nbytes + 2 * GUARD, POISON, np.uint8)
    bands[GUARD:-GUARD] = array.reshape(-1).view(np.uint8)
    return backend.upload(bands).window(GUARD, array.nbytes)
