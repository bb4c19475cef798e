"""In a device's child: contestants verified, the fastest right variant of each chosen, and all sampled in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median
from time import perf_counter

from app.devices.backend import Reading, WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.tuning.measure.drift import DriftDetector
from app.tuning.measure.racing import policy_of, sample_interleaved
from app.tuning.outcome import Accuracy, Conditions, Rejected
from app.tuning.verify.emulation import refusal
from app.tuning.verify.tolerance import verdict
from app.worker.measuring.contenders import LoadedContender, OperandRotation
from app.worker.measuring.fixture import Fixture, FixtureKey, drop, drop_buffers, prepared
from app.worker.measuring.reference_kernel import reference_kernel
from app.worker.measuring.reference_product import patience, poison
from app.worker.measuring.trial import conditions
from benchmarks.kernels.peers.contestants import Contestant, absent
from kernels.problem import Problem
from kernels.space import Config

FEW = 7  # rounds of everybody: fewer have no interval that asks nothing of their distribution
SLOW = 4.0  # times the fastest: who is slower than that has no more rounds
LEAST, MOST = 9, 61  # rounds of the others
SIFTED = 3  # samples by which variants are ordered
HOPELESS = 2.0  # times the fastest variant: one sample is enough of those
MEASURING = 60.0  # seconds of the host's own work between launches
WATCHING = 10.0  # seconds: the reference kernel takes a ten-thousandth of this


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a contestant: the samples of its fastest right variant, in the order of the rounds, or a reason.

    `tried` counts the variants that could be launched.
    """

    name: str
    kernel: str
    config: Config
    seconds: tuple[float, ...] = ()
    accuracy: Accuracy | None = None
    tried: int = 1
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Contest:
    """All results of one problem, in the contestants' order; samples of a number are of the same round."""

    results: tuple[Result, ...]
    policy: str
    conditions: Conditions | None
    retaken: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """Who takes part: a contestant's fastest right variant."""

    name: str
    loaded: LoadedContender
    accuracy: Accuracy
    tried: int


def contest(
    held: WorkerContext, link: WorkerLink, bench: FixtureKey, contestants: Sequence[Contestant], limit: float
) -> Contest:
    """Measure contestants on a bench, about `limit` seconds of rounds; what a contestant cannot do is its reason.

    Raises CompileFailed or LaunchFailed where the device is lost to this process (facts: fatal).
    """
    ready = prepared(held, link, bench)
    policy = policy_of(bench.problem, held.backend.device)
    found = [_entered(held, link, ready, policy, contestant) for contestant in contestants]
    entries = [entry for entry in found if isinstance(entry, _Entry)]
    seconds, readings, retaken = _rounds(held, link, ready, policy, [entry.loaded for entry in entries], limit)
    samples = dict(zip((entry.name for entry in entries), seconds, strict=True))
    results = tuple(
        _told(entry, samples[entry.name])
        if isinstance(entry, _Entry)
        else Result(contestant.name, entry.kernel, entry.config, reason=entry.reason)
        for contestant, entry in zip(contestants, found, strict=True)
    )
    return Contest(results, policy, conditions(readings), retaken)


def _told(entry: _Entry, seconds: tuple[float, ...]) -> Result:
    return Result(entry.name, entry.loaded.kernel, entry.loaded.config, seconds, entry.accuracy, entry.tried)


def _entered(
    held: WorkerContext, link: WorkerLink, ready: Fixture, policy: str, contestant: Contestant
) -> _Entry | Rejected:
    """The fastest variant that answers right."""
    variants = contestant.variants(held, link, ready.key.problem)
    if isinstance(variants, Rejected):
        return variants
    wrong = None
    for variant in variants if len(variants) == 1 else _sifted(held, link, ready, policy, variants):
        accuracy = _verified(held, link, ready, variant, contestant.held_to(ready.key.problem))
        if not isinstance(accuracy, Rejected):
            return _Entry(contestant.name, variant, accuracy, len(variants))
        wrong = wrong or accuracy
    return wrong or absent(contestant.name, "nothing that can be launched was proposed")


def _sifted(
    held: WorkerContext, link: WorkerLink, ready: Fixture, policy: str, variants: Sequence[LoadedContender]
) -> list[LoadedContender]:
    """The variants that can be launched, fastest first, by a few samples each under the conditions of the contest."""
    link.phase("measure", MEASURING)
    seconds: dict[int, float] = {}
    for number, variant in enumerate(variants):
        try:
            take = variant.taking(link, OperandRotation(ready.on(held.backend).rotation), policy)
            take(1)
            fastest = min(seconds.values(), default=inf)
            seconds[number] = take(1)[0]
            if seconds[number] < HOPELESS * fastest:
                seconds[number] = median([seconds[number], *take(SIFTED - 1)])
        except LaunchFailed as error:
            if error.facts.get("fatal"):
                raise
    return [variants[number] for number in sorted(seconds, key=lambda number: seconds[number])]


def _verified(
    held: WorkerContext, link: WorkerLink, ready: Fixture, entrant: LoadedContender, asked: Problem
) -> Accuracy | Rejected:
    """Launch once into a poisoned C between guard bands, and compare it with the reference as `asked` allows."""
    backend, problem = held.backend, ready.key.problem
    link.phase("launch", patience(problem))
    try:
        buffers = ready.on(backend)
        poison(backend, buffers.guarded, buffers.verifying.c)
        with link.lease(entrant.deadline()):
            entrant.run(buffers.verifying)
            declined = entrant.declined()
        link.phase("verify", patience(problem))
        compared = ready.reference.compare(link, buffers.guarded)
    except LaunchFailed as error:
        if error.facts.get("fatal"):
            raise
        return entrant.rejected("launch", error.message)
    if compared is None:
        drop(held)
        return entrant.rejected("verify", "wrote outside C: over the reference product")
    found = verdict(asked, ready.reference.norms, compared.errors)
    reason = refusal(declined) if declined else found.reason or compared.outside
    if reason is None:
        return found.accuracy
    drop_buffers(held)
    return entrant.rejected("verify", reason)


Taken = tuple[tuple[float, ...], ...]


def _rounds(
    held: WorkerContext,
    link: WorkerLink,
    ready: Fixture,
    policy: str,
    entrants: Sequence[LoadedContender],
    limit: float,
) -> tuple[Taken, list[Reading | None], int]:
    """A few rounds of all, and more of those that are not far behind: samples, the sensors' readings, rounds redone."""
    if not entrants:
        return (), [], 0
    reference, watch, readings = reference_kernel(held, link), DriftDetector(), list[Reading | None]()
    rotation = OperandRotation(ready.on(held.backend).rotation)
    link.phase("measure", MEASURING)
    takes = [partial(_one, entrant.taking(link, rotation, policy)) for entrant in entrants]

    def referenced() -> float:
        link.phase("measure", MEASURING)
        with link.lease(WATCHING):
            return reference.seconds()

    def sampled(numbers: Sequence[int], rounds: int) -> tuple[Taken, int]:
        readings.append(held.backend.conditions())
        generator = random.Random()  # noqa: S311  no secret: an order of launches
        return sample_interleaved([takes[number] for number in numbers], referenced, watch, rounds, generator)

    for take in takes:
        take()  # the device wakes up
    everybody, retaken = sampled(range(len(takes)), FEW)
    middles = [median(seconds) for seconds in everybody]
    close = [number for number, middle in enumerate(middles) if middle <= SLOW * min(middles)]
    started = perf_counter()
    first, again = sampled(close, 1)
    most = max(LEAST, min(MOST, int(limit / (perf_counter() - started))))
    rest, redone = sampled(close, most)
    more = {number: one + many for number, one, many in zip(close, first, rest, strict=True)}
    whole = tuple(seconds + more.get(number, ()) for number, seconds in enumerate(everybody))
    return whole, readings, retaken + again + redone


def _one(take: Callable[[int], list[float]]) -> float:
    return take(1)[0]
