"""Measures how fast this host and device prepare a tune: operands, reference product, comparison."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Final

from app.devices.backend import Backend, WorkerContext
from app.devices.process import WorkerLink
from app.tuning.verify.tolerance import applied, expect, operands, review
from app.worker.measuring.reference_kernel import reference_kernel
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.problem import Problem

_SMALL: Final = Problem(512, 512, 512)
_LARGE: Final = Problem(2048, 2048, 2048)
_QUICK: Final = 0.01  # seconds: a reference made in less says more of its start than of its rate
_SECONDS: Final = 30.0  # that calibrating takes at most


@dataclass(frozen=True, slots=True)
class PreparationRates:
    """Measured rates a second: operand elements generated, float64 flops of a reference, elements of C compared.

    `tiled` is the time of a launch of the kernel tiled over the cost model's.
    """

    drawn: float
    reference: float
    compared: float
    tiled: float


def calibrate(held: WorkerContext, link: WorkerLink) -> PreparationRates:
    """Prepare, reference and compare a product of a few hundred rows; raises CompileFailed and LaunchFailed."""
    kept, device = reference_kernel(held, link), held.backend.device
    with link.lease(_SECONDS):
        took = kept.seconds()
    tiled = took / predict(CATALOGUE[kept.launch.kernel], kept.launch.config, kept.launch.problem, device)
    link.phase("verify", _SECONDS)
    started = perf_counter()
    a, b = operands(_SMALL, 1)
    drawn = (a.size + b.size) / (perf_counter() - started)
    with link.lease(_SECONDS):
        rate, seconds = _reference_rate(held.backend, _SMALL)
        if seconds < _QUICK:
            rate, _ = _reference_rate(held.backend, _LARGE)
    reference = held.backend.reference(*applied(_SMALL, a, b))
    started = perf_counter()
    review(_SMALL, expect(_SMALL, a, b, reference), reference.astype(a.dtype))
    compared = reference.size / (perf_counter() - started)
    return PreparationRates(drawn, rate, compared, tiled)


def _reference_rate(backend: Backend, problem: Problem) -> tuple[float, float]:
    """Flops a second of a float64 product, and the seconds that one takes; the caller has the lease."""
    left, right = applied(problem, *operands(problem, 2))
    backend.reference(left[:, :64], right)  # threads start, libraries load
    started = perf_counter()
    backend.reference(left, right)
    seconds = perf_counter() - started
    return problem.flops / seconds, seconds
