"""The reference kernel: one fixed launch, timed between trials to detect drift of the device.

A change of its time is the device's, not a candidate's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from app.devices.backend import Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.tuning.measure.racing import EVENTS
from app.tuning.verify.tolerance import operands
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem

_SECONDS: Final = 1e-4  # of one launch: long against the clock's own error, short beside a candidate's trial
_FIRST: Final = 256  # rows and columns of the launch that the size is chosen by
_STEP: Final = 16
_LEAST, _MOST = 64, 2048
_LAUNCHES: Final = 3  # of which the median counts: one alone may have met an interrupt
_COMPILING: Final = 60.0  # seconds
_LAUNCHING: Final = 10.0  # seconds


@dataclass(slots=True)
class ReferenceKernel:
    """A square product by `tiled`'s default config, sized to about 100 us a launch here; knows its readings."""

    held: WorkerContext = field(repr=False)
    program: Program
    launch: Launch
    operands: Operands

    def seconds(self) -> float:
        """Time it now; the caller has the lease. Raises LaunchFailed."""
        sets = [self.operands] * _LAUNCHES
        return median(self.held.backend.time(self.program, self.launch, sets, EVENTS))


@dataclass
class _ReferenceSlot:
    """The worker's one reference kernel."""

    kernel: ReferenceKernel | None = None


def reference_kernel(held: WorkerContext, link: WorkerLink) -> ReferenceKernel:
    """The worker's reference kernel, compiled and sized on first use.

    Raises CompileFailed and LaunchFailed.
    """
    state = held.state(_ReferenceSlot)
    kept = state.kernel
    if kept is None:
        first = _compiled(held, link)
        with link.lease(_LAUNCHING):
            first.seconds()
            size = _FIRST * (_SECONDS / first.seconds()) ** (1 / 3)
            state.kernel = kept = _of_size(first, max(_LEAST, min(_MOST, round(size / _STEP) * _STEP)))
            kept.seconds()
    return kept


def _compiled(held: WorkerContext, link: WorkerLink) -> ReferenceKernel:
    """The reference kernel of the first size."""
    kernel, device = CATALOGUE["tiled"], held.backend.device
    problem = Problem(_FIRST, _FIRST, _FIRST)
    launch = kernel.launch(kernel.default(problem, device), problem, device)
    link.phase("compile", _COMPILING)
    program = held.backend.compile(launch.build)
    held.backend.warm(program, launch)
    return ReferenceKernel(held, program, launch, _operands(held, problem))


def _of_size(first: ReferenceKernel, size: int) -> ReferenceKernel:
    problem, launch = Problem(size, size, size), first.launch
    sized = CATALOGUE[launch.kernel].for_problem(launch, problem)
    return replace(first, launch=sized, operands=_operands(first.held, problem))


def _operands(held: WorkerContext, problem: Problem) -> Operands:
    a, b = operands(problem, seed=problem.m)
    return Operands(held.backend.upload(a), held.backend.upload(b), held.backend.allocate(problem.c_bytes))
