"""One trial: compile, verify and time a config. Every failure of a config is an outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from math import nan
from statistics import median
from typing import Final

from app.devices.backend import Reading, WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.tuning.measure.drift import DriftDetector
from app.tuning.measure.racing import GRAPH, WARM, NoiseModel, RaceResult, policy_of, race, sample_interleaved, timing
from app.tuning.outcome import Accuracy, Conditions, Measured, Outcome, Rejected
from app.tuning.runner import Contender, InterleavedSamples
from app.tuning.verify.emulation import refusal
from app.tuning.verify.tolerance import Verdict, verdict
from app.worker.measuring.contenders import VENDOR, LoadedContender, OperandRotation, loaded
from app.worker.measuring.fixture import Fixture, FixtureKey, drop, drop_buffers, prepared
from app.worker.measuring.reference_kernel import ReferenceKernel, reference_kernel
from app.worker.measuring.reference_product import Comparison, patience, poison
from app.worker.measuring.stress import stress_verify

__all__ = ["VENDOR", "FixtureKey", "attempt", "prepare", "sample", "stress_verify"]

_MEASURING: Final = 60.0  # seconds of the host's own work between launches
_REFERENCE: Final = 10.0  # seconds: the reference kernel takes a ten-thousandth of this
_AWAKE: Final = 0.1  # seconds: a launch that is longer wakes the device by itself
_LONG: Final = 4.0  # times the limit: a race that took that long is not run again
_RETAKEN: Final = 2  # times that a race is run again because the device was disturbed


def prepare(held: WorkerContext, link: WorkerLink, key: FixtureKey) -> None:
    """Prepare the fixture of a problem's trials and the reference kernel; raises as `attempt`."""
    reference_kernel(held, link)
    prepared(held, link, key)


def attempt(
    held: WorkerContext, link: WorkerLink, contender: Contender, key: FixtureKey, best: float | None, limit: float
) -> Outcome:
    """Compile, verify and race one config, or the vendor's library, against `best` seconds.

    At most about `limit` seconds of launches are timed, and again if the device was disturbed. Raises CompileFailed or
    LaunchFailed if the device is lost to this process (facts: fatal), WrongResult if the fixture's reference is wrong;
    other failures are Rejected.
    """
    entrant = loaded(held, link, contender)
    if isinstance(entrant, Rejected):
        if entrant.stage == "launch":  # on a few elements, and who knows where else
            drop_buffers(held)
        return entrant
    stage = "launch"
    try:
        verified = _verified(held, link, entrant, key)
        if verified.reason is not None:
            drop_buffers(held)
            return entrant.rejected("verify", verified.reason)
        stage = "measure"
        raced, policy = _raced(held, link, entrant, prepared(held, link, key), best, limit)
    except LaunchFailed as error:
        drop_buffers(held)
        if error.facts.get("fatal"):
            raise
        return entrant.rejected(stage, error.message)
    except MemoryError as error:
        drop(held)
        return entrant.rejected(stage, f"out of memory: {error}")
    timed = timing(raced.seconds, policy, dropped=raced.dropped)
    return Measured(entrant.kernel, entrant.config, timed, verified.accuracy, entrant.compilation, raced.seconds)


def sample(
    held: WorkerContext, link: WorkerLink, contenders: Sequence[Contender], key: FixtureKey, rounds: int
) -> InterleavedSamples:
    """Time contenders that were attempted before, each once a round, in random order, on cold rotating buffers.

    The lease is offered between launches. Raises DeviceError if a contender cannot be launched any more.
    """
    entrants = [_expected(loaded(held, link, contender)) for contender in contenders]
    reference = reference_kernel(held, link)
    ready = prepared(held, link, key)
    link.phase("measure", _MEASURING)
    rotation = OperandRotation(ready.on(held.backend).rotation)
    policy = policy_of(key.problem, held.backend.device)
    takes = [entrant.taking(link, rotation, policy) for entrant in entrants]
    for number, entrant in enumerate(entrants):
        if not entrant.slowest or (number == 0 and entrant.slowest < _AWAKE):
            takes[number](1)  # the device wakes up, and what was loaded anew warms up
    readings: list[Reading | None] = []
    turns = cycle(range(len(takes)))

    def referenced() -> float:
        link.phase("measure", _MEASURING)
        if next(turns) == 0:  # about once a round
            readings.append(held.backend.conditions())
        return _reference_seconds(link, reference)

    generator = random.Random()  # noqa: S311  no secret: an order of launches
    seconds, retaken = sample_interleaved([_alone(take) for take in takes], referenced, _watch(held), rounds, generator)
    return InterleavedSamples(seconds, policy, conditions(readings), retaken)


def conditions(readings: Sequence[Reading | None]) -> Conditions | None:
    """The medians of sensors' readings, and all their reasons for lower clocks; None without readings."""
    read = [reading for reading in readings if reading is not None]
    if not read:
        return None

    def middle(name: str) -> float | None:
        values = [value for reading in read if (value := getattr(reading, name)) is not None]
        return median(values) if values else None

    return Conditions(
        sm_mhz=middle("sm_mhz"),
        memory_mhz=middle("memory_mhz"),
        watts=middle("watts"),
        celsius=middle("celsius"),
        throttled=tuple(sorted({reason for reading in read for reason in reading.throttled})),
    )


def _verified(held: WorkerContext, link: WorkerLink, entrant: LoadedContender, key: FixtureKey) -> Verdict:
    """Launch once into a poisoned C between guard bands, and compare it with the reference.

    A reference that was written over is made once more, and the launch repeated: an earlier one may have done it.
    """
    problem = key.problem
    if entrant.program is None and problem.precision == "emulated":
        problem = replace(problem, precision="strict")  # what the vendor's library computes
    for _ in range(2):
        ready = prepared(held, link, key)
        compared, declined = _compared(held, link, entrant, ready)
        if compared is None or compared.outside is not None:
            drop(held)
        if compared is not None:
            found = verdict(problem, ready.reference.norms, compared.errors)
            reason = refusal(declined) if declined else found.reason
            return replace(found, reason=compared.outside or reason)
    return Verdict(Accuracy(nan, nan), "wrote outside C: over the reference product")


def _compared(
    held: WorkerContext, link: WorkerLink, entrant: LoadedContender, ready: Fixture
) -> tuple[Comparison | None, int]:
    """What a launch left, None if its reference is lost, and the verdict by which it declined its operands, or 0."""
    backend, buffers, allowed = held.backend, ready.on(held.backend), patience(ready.key.problem)
    link.phase("launch", allowed)
    poison(backend, buffers.guarded, buffers.verifying.c)
    with link.lease(entrant.deadline()):
        entrant.run(buffers.verifying)
        declined = entrant.declined()
    link.phase("verify", allowed)
    return ready.reference.compare(link, buffers.guarded), declined


def _raced(
    held: WorkerContext, link: WorkerLink, entrant: LoadedContender, ready: Fixture, best: float | None, limit: float
) -> tuple[RaceResult, str]:
    """Race a contender, and again while the reference kernel says that the device was disturbed meanwhile."""
    reference, watch, noise = reference_kernel(held, link), _watch(held), _noise(held, ready.key)
    link.phase("measure", _MEASURING)
    referenced = partial(_reference_seconds, link, reference)
    policy = policy_of(ready.key.problem, held.backend.device)
    take = entrant.taking(link, OperandRotation(ready.on(held.backend).rotation), policy)
    if watch.level is None:
        watch.disturbed(referenced)
    if policy == GRAPH:
        take(1)  # one graph is as long as a warm-up
    for _ in range(1 + _RETAKEN):
        raced = race(take, best, limit, noise, 0.0 if policy == GRAPH else WARM)
        if not watch.disturbed(referenced) or sum(raced.seconds) > _LONG * limit:
            break
    return raced, policy


def _watch(held: WorkerContext) -> DriftDetector:
    """The worker's drift detector, which lives as long as the process."""
    return held.state(DriftDetector)


@dataclass
class _BenchNoise:
    """The noise of one fixture's samples."""

    key: FixtureKey | None = None
    model: NoiseModel = field(default_factory=NoiseModel)


def _noise(held: WorkerContext, key: FixtureKey) -> NoiseModel:
    """The noise model of a fixture; another's is dropped."""
    known = held.state(_BenchNoise)
    if known.key != key:
        known.key, known.model = key, NoiseModel()
    return known.model


def _reference_seconds(link: WorkerLink, reference: ReferenceKernel) -> float:
    with link.lease(_REFERENCE):
        return reference.seconds()


def _alone(take: Callable[[int], list[float]]) -> Callable[[], float]:
    return lambda: take(1)[0]


def _expected(entrant: LoadedContender | Rejected) -> LoadedContender:
    """A contender that can be launched; raises LaunchFailed for one that cannot, though it could before."""
    if isinstance(entrant, Rejected):
        raise LaunchFailed(f"{entrant.kernel} {entrant.config} is gone: {entrant.reason}", stage=entrant.stage)
    return entrant
