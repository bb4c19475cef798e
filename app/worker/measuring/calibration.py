"""Measures how fast this host and device prepare a tune: operands, reference product, comparison."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Final

from app.devices.backend import WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.tuning.verify.tolerance import operands
from app.worker.measuring.fixture import reference_of
from app.worker.measuring.reference_kernel import reference_kernel
from app.worker.measuring.reference_product import GUARD
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
    rates = _rates(held, link, _SMALL, a, b)
    if rates[0] > _SMALL.flops / _QUICK:
        rates = _rates(held, link, _LARGE, *operands(_LARGE, 2))
    return PreparationRates(drawn, *rates, tiled)


def _rates(held: WorkerContext, link: WorkerLink, problem: Problem, a: Array, b: Array) -> tuple[float, float]:
    """Flops a second of a reference, and elements of C that are compared in one."""
    reference_of(held, link, problem, a, b, 1)  # threads start, libraries load
    started = perf_counter()
    reference = reference_of(held, link, problem, a, b, 1)
    made = perf_counter()
    reference.compare(link, held.backend.allocate(problem.c_bytes + 2 * GUARD))
    return problem.flops / (made - started), problem.batch * problem.m * problem.n / (perf_counter() - made)
