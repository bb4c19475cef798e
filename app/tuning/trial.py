"""In a device's child: compile, verify and measure one candidate. Whatever a candidate does is an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Final

from app.devices.base import Operands
from app.devices.fleet import Held
from app.devices.process import Link
from app.errors import CompileFailed, LaunchFailed
from app.tuning.bench import Bench, Prepared, drop, drop_buffers, overrun, patience, poison, prepared, product
from app.tuning.measure import measure
from app.tuning.outcome import Measured, Outcome, Rejected, Timing
from app.tuning.verify import Verdict, review
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Launch
from kernels.model import predict
from kernels.problem import Problem
from kernels.space import Config

__all__ = ["VENDOR", "Bench", "attempt", "attempt_vendor"]

VENDOR: Final = "vendor"
_COMPILING: Final = 60.0  # seconds
_LOADING: Final = 10.0  # seconds
_MEASURING: Final = 60.0  # seconds of the host's own work between launches
_SHORTEST: Final = 2.0  # seconds: no launch is taken for hung before
_TURN: Final = 2e-3  # seconds of launches after which the device is offered to a product


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What is tried, once it is compiled: launching it, timing it, and how long a first launch may take."""

    kernel: str
    config: Config
    run: Callable[[Operands], None]
    time: Callable[[Sequence[Operands]], list[float]]
    deadline: float
    registers: int | None = None

    def rejected(self, stage: str, reason: str) -> Rejected:
        """Say why it was not timed."""
        return Rejected(self.kernel, self.config, stage, reason)


def attempt(held: Held, link: Link, launch: Launch, bench: Bench, limit: float) -> Outcome:
    """Compile, verify and measure one config, with at most about `limit` seconds of timed launches.

    Raises CompileFailed or LaunchFailed where the device is lost to this process (facts: fatal), WrongResult where the
    bench's own reference is off; what else goes wrong is Rejected.
    """
    backend, device = held.backend, held.backend.device
    link.phase("compile", _COMPILING)
    try:
        program = backend.compile(launch.build)
        if device.platform == "cuda":
            link.phase("launch", _LOADING)  # nothing is left to compile: warming up is a first, tiny launch
        backend.warm(program, launch)
    except CompileFailed as error:
        return _survived(held, error, Rejected(launch.kernel, launch.config, "compile", error.message))
    except LaunchFailed as error:
        return _survived(held, error, Rejected(launch.kernel, launch.config, "launch", error.message))
    candidate = _Candidate(
        launch.kernel,
        launch.config,
        run=partial(backend.run, program, launch),
        time=partial(backend.time, program, launch),
        deadline=_deadline(10 * predict(CATALOGUE[launch.kernel], launch.config, launch.problem, device)),
        registers=program.registers,
    )
    return _tried(held, link, candidate, bench, limit)


def attempt_vendor(held: Held, link: Link, problem: Problem, bench: Bench, limit: float) -> Measured | Rejected:
    """Verify and measure the vendor's library as a kernel is; Rejected at stage space where there is none.

    Raises as `attempt`.
    """
    backend, vendor = held.backend, held.backend.vendor
    if vendor.name is None:
        return Rejected(VENDOR, Config(()), "space", vendor.reason or "no vendor library here")
    candidate = _Candidate(
        VENDOR,
        Config(()),
        run=partial(backend.vendor_run, problem),
        time=partial(backend.vendor_time, problem),
        deadline=_deadline(10 * _naive_seconds(problem, backend.device)),
    )
    return _tried(held, link, candidate, bench, limit)


def _tried(held: Held, link: Link, candidate: _Candidate, bench: Bench, limit: float) -> Measured | Rejected:
    stage = "launch"
    try:
        ready = prepared(held, link, bench)
        verdict = _verified(held, link, candidate, ready)
        if verdict.reason is not None:
            drop_buffers(held)
            return candidate.rejected("verify", verdict.reason)
        stage = "measure"
        timing = _measured(held, link, candidate, ready, limit)
    except LaunchFailed as error:
        return _survived(held, error, candidate.rejected(stage, error.message))
    return Measured(candidate.kernel, candidate.config, timing, verdict.accuracy, candidate.registers)


def _survived(held: Held, error: CompileFailed | LaunchFailed, rejected: Rejected) -> Rejected:
    """Leave nothing of a failure behind; raises the error again where the whole process is lost."""
    drop_buffers(held)
    if error.facts.get("fatal"):
        raise error
    return rejected


def _verified(held: Held, link: Link, candidate: _Candidate, ready: Prepared) -> Verdict:
    """Launch once into a poisoned C between guard bands, and compare it with the reference."""
    backend, problem = held.backend, ready.bench.problem
    link.phase("launch", patience(problem))
    buffers = ready.on(backend)
    poison(backend, buffers)
    with link.lease(candidate.deadline):
        candidate.run(buffers.verifying)
    link.phase("verify", patience(problem))
    backend.download(buffers.guarded, ready.landing)
    verdict = review(problem, ready.expected, product(ready))
    outside = overrun(ready.landing)
    if outside is None:
        return verdict
    drop(held)
    return replace(verdict, reason=outside)


def _measured(held: Held, link: Link, candidate: _Candidate, ready: Prepared, limit: float) -> Timing:
    """Time launches that rotate through the bench's sets; a product waits for 2 ms of them or one launch at most."""
    link.phase("measure", _MEASURING)
    rotation = cycle(ready.on(held.backend).rotation)
    slowest = 0.0

    def take(count: int) -> list[float]:
        nonlocal slowest
        seconds: list[float] = []
        with link.lease(candidate.deadline):
            while len(seconds) < count:
                step = max(1, min(count - len(seconds), int(_TURN / slowest))) if slowest else 1
                link.offer(_deadline(10 * slowest * step) if slowest else candidate.deadline)
                seconds += candidate.time(tuple(islice(rotation, step)))
                slowest = max(slowest, *seconds)
        return seconds

    return measure(take, limit)


def _deadline(seconds: float) -> float:
    return max(_SHORTEST, seconds)


def _naive_seconds(problem: Problem, device: Device) -> float:
    naive = CATALOGUE["naive"]
    return predict(naive, naive.default(problem, device), problem, device)
