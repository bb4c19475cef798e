"""Stress verification of finalists: adversarial operands and neighbouring shapes, before a config may be promoted."""

from __future__ import annotations

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
from app.worker.measuring.fixture import GUARD, FixtureKey, drop, drop_buffers, overrun, patience, poison, product
from kernels import KERNELS
from kernels.cost_model import predict
from kernels.launch import Launch
from kernels.problem import Problem

_SHORTEST: Final = 2.0  # seconds: no launch is taken for hung before


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
    kernel, device = KERNELS[launch.kernel], held.backend.device

    def legal(problem: Problem) -> bool:
        return kernel.space.refusal(launch.config, problem, device) is None

    for number, case in enumerate(adversarial.cases(launch.config, launch.problem, device, legal)):
        planned = kernel.for_problem(launch, case.problem)
        reason = _wrong(held, link, entrant.program, planned, case, key.seed + number) if entrant.program else None
        if reason is not None:
            return entrant.rejected("verify", f"{case.name}: {reason}")
    return None


def _wrong(
    held: WorkerContext, link: WorkerLink, program: Program, launch: Launch, case: Case, seed: int
) -> str | None:
    """Launch once into a poisoned C between guard bands, with A and B between NaN; the reason if C is wrong."""
    backend, problem = held.backend, case.problem
    link.phase("verify", patience(problem))
    a, b = adversarial.draw(case, seed)
    left, right = applied(problem, adversarial.finite(a), adversarial.finite(b))
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
    outside = overrun(readback)
    if outside is not None:
        drop(held)
    if outside is None and verdict:
        return adversarial.declined(case, verdict)
    return outside or adversarial.judge(case, a, b, reference, product(problem, readback))


def _among_nan(backend: Backend, array: Array) -> Buffer:
    """The array on the device between NaN, so that reads outside it show in C."""
    bands = np.full(array.nbytes + 2 * GUARD, POISON, np.uint8)
    bands[GUARD:-GUARD] = array.reshape(-1).view(np.uint8)
    return backend.upload(bands).window(GUARD, array.nbytes)
