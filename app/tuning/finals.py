"""The end of a tune: finalists proved, measured again in turn, one chosen, and that one measured afresh to be told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as made
from itertools import chain, islice, zip_longest
from statistics import median
from typing import Final as Constant

from app.errors import DeviceError
from app.tuning.estimate import standing, steady
from app.tuning.measure import NARROW, Noise
from app.tuning.outcome import Conditions, Final, Measured, Outcome, Rejected, Timing
from app.tuning.runner import Contender, Heat, Runner
from kernels.kernel import Launch
from kernels.problem import Problem
from kernels.space import Config

_VENDOR: Constant = "vendor"
_BASELINES: Constant = ("naive", "tiled")
_HOPELESS: Constant = 10  # times the winner: a baseline slower than that keeps the search's timing
_FEWEST: Constant = 8  # finalists
_MOST: Constant = 24
_REGRET: Constant = 5e-4  # of the time: the choice is made once it is expected to lose less
_SHARE: Constant = 0.02  # of that: a finalist that adds less than its part of it is beaten
_FIRST: Constant = 12  # rounds before which only a finalist that was always slower is beaten
_ROUNDS: Constant = 200  # of the choice or the report, at most
_GROWTH: Constant = 0.5  # of the rounds so far are added at once
_CHOOSING: Constant = 0.6  # of the limit
_SEEDING: Constant = 0.15  # of the limit, within the choice's: the rounds of all finalists, where they are over eight
_TELLING: Constant = 0.5  # of what is left of it: a report may have to be taken twice
_TOLD: Constant = 5  # rounds of a report at least, and twice as many with the baselines
_RETRIES: Constant = 2  # of a round that failed though every contender runs alone


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A contender and what the search measured of it."""

    measured: Measured
    contender: Contender

    @property
    def seconds(self) -> float:
        return self.measured.timing.median_ms / 1e3


@dataclass(slots=True)
class _Floor:
    """Where entries are proved and sampled: what that took by the clock, each sample lately, and who fell out."""

    runner: Runner
    generator: random.Random
    clock: Callable[[], float]
    wrong: dict[_Entry, Rejected] = made(default_factory=dict)
    proved: set[_Entry] = made(default_factory=set)
    policy: str = ""
    conditions: Conditions | None = None
    retaken: int = 0
    spent: float = 0.0
    cost: float = 0.0

    def holds(self, entry: _Entry) -> bool:
        """Whether an entry stands hostile operands."""
        if entry not in self.proved and entry not in self.wrong and isinstance(entry.contender, Launch):
            rejected = self.runner.prove(entry.contender)
            if rejected is None:
                self.proved.add(entry)
            else:
                self.wrong[entry] = rejected
        return entry not in self.wrong

    def sample(self, entries: Sequence[_Entry], rounds: int) -> dict[_Entry, list[float]]:
        """Samples of the entries that stay; one that takes the device down is wrong, and its rounds are redone."""
        left, failures = list(entries), 0
        while left:
            self.generator.shuffle(left)
            started = self.clock()
            try:
                heat = self.runner.sample([entry.contender for entry in left], rounds)
            except DeviceError:
                if not self._culprits(left):
                    failures += 1
                    if failures > _RETRIES:
                        raise
                left = [entry for entry in left if entry not in self.wrong]
                continue
            return self._counted(left, heat, self.clock() - started)
        return {}

    def affordable(self, entries: Sequence[_Entry], limit: float, fewest: int, most: int) -> int:
        """How many rounds of entries fit a limit."""
        each = sum(max(entry.seconds, self.cost) for entry in entries)
        return max(fewest, min(most, int(limit / each))) if each else fewest

    def _culprits(self, entries: Sequence[_Entry]) -> bool:
        """Find who cannot be sampled even alone."""
        before = len(self.wrong)
        for entry in entries:
            try:
                self.runner.sample([entry.contender], 1)
            except DeviceError as error:
                self.wrong[entry] = Rejected(entry.measured.kernel, entry.measured.config, "measure", error.message)
        return len(self.wrong) > before

    def _counted(self, entries: Sequence[_Entry], heat: Heat, elapsed: float) -> dict[_Entry, list[float]]:
        self.policy, self.conditions = heat.policy, heat.conditions or self.conditions
        self.retaken += heat.retaken
        self.spent += max(elapsed, sum(map(sum, heat.seconds)))
        self.cost = elapsed / max(1, sum(map(len, heat.seconds)))
        return {entry: list(seconds) for entry, seconds in zip(entries, heat.seconds, strict=True)}


def finals(
    outcomes: Sequence[Outcome],
    default: Launch | None,
    launches: Callable[[Measured], Launch],
    runner: Runner,
    problem: Problem,
    limit: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> Final | None:
    """Measure a search's fastest again, choose on those samples alone, and measure the choice afresh beside the rest.

    From 8 to 24 finalists: whatever could still be the best, given the search's noise, and withstands `runner.prove`;
    more than eight only where there is time for twelve rounds of them all. They are sampled in turn, the clearly beaten
    leaving, until the choice is expected to lose less than 0.05 % or its part of the limit is spent; its statistic
    is estimate.standing's. What is told of the winner, the default, the vendor's library and the baselines comes
    from further rounds of them all. A default that is faster there is the winner, and the rounds are taken once more.
    `limit` is seconds of sampling by the clock; the fewest rounds that say anything are taken even past it. None where
    nothing was measured or nothing holds. Raises DeviceError where sampling fails with no contender to blame.
    """
    found = {
        (one.kernel, one.config): _Entry(one, _contender(one, launches, problem))
        for one in outcomes
        if isinstance(one, Measured)
    }
    floor = _Floor(runner, random.Random(seed), clock)  # noqa: S311  no secret: an order of launches
    ours = [entry for entry in found.values() if entry.measured.kernel != _VENDOR]
    chosen = _choice(_finalists(ours, floor, limit * _SEEDING), floor, limit * _CHOOSING)
    untuned = found.get((default.kernel, default.config)) if default is not None else None
    vendor = found.get((_VENDOR, Config(())))
    best, told = next(iter(chosen), None), dict[_Entry, list[float]]()
    while best is not None:
        field = _Field(best, untuned, vendor, _baselines(best, ours, floor))
        told = _report(field, floor, (limit - floor.spent) * _TELLING)
        if best in floor.wrong:
            best = next((entry for entry in chosen if entry not in floor.wrong), None)
        elif untuned in told and median(told[untuned]) < median(told[best]):
            best = untuned
        else:
            return _final(field, chosen, told, floor, outcomes)
    return None


@dataclass(frozen=True, slots=True)
class _Field:
    """Who is in a report."""

    best: _Entry
    untuned: _Entry | None
    vendor: _Entry | None
    baselines: dict[str, _Entry]


def _contender(measured: Measured, launches: Callable[[Measured], Launch], problem: Problem) -> Contender:
    return problem if measured.kernel == _VENDOR else launches(measured)


def _finalists(entries: Sequence[_Entry], floor: _Floor, limit: float) -> list[_Entry]:
    """What could still be the best, and at least eight, of those that hold; as many as fit the limit.

    By the median and by the fastest sample in turn: where clocks boost, a config that was measured hot has a slow
    median, and one that was cold throughout a fast one.
    """
    by_median = sorted(entries, key=lambda entry: entry.seconds)
    by_fastest = sorted(entries, key=_fastest)
    possible = _possible(by_median)
    turns = chain.from_iterable(zip_longest(by_median, by_fastest))
    hopeful = dict.fromkeys(entry for entry in turns if entry in possible)
    rest = (entry for entry in by_median if entry not in possible)
    found = list(islice(filter(floor.holds, chain(hopeful, rest)), _FEWEST))
    most = floor.affordable(by_median[:1], limit / _FIRST, _FEWEST, _MOST)
    more = (entry for entry in hopeful if entry not in found and floor.holds(entry))
    return found + list(islice(more, max(0, most - len(found))))


def _possible(by_median: Sequence[_Entry]) -> set[_Entry]:
    """Those that were not dropped and whose fastest sample is not clearly slower than the best median."""
    noise = Noise()
    kept = [entry for entry in by_median if not entry.measured.timing.dropped]
    for entry in kept:
        if len(entry.measured.seconds) > max(Noise.looks):
            noise.learn(entry.measured.seconds)
    return {entry for entry in kept if _fastest(entry) <= kept[0].seconds * noise.margin(_look(entry))}


def _fastest(entry: _Entry) -> float:
    return min(entry.measured.seconds, default=entry.seconds)


def _look(entry: _Entry) -> int:
    return max((look for look in Noise.looks if look <= len(entry.measured.seconds)), default=1)


def _choice(finalists: Sequence[_Entry], floor: _Floor, limit: float) -> dict[_Entry, list[float]]:
    """The finalists and the samples that order them, fastest first."""
    samples: dict[_Entry, list[float]] = {entry: [] for entry in finalists}
    alive, beaten, lost = list(finalists), list[_Entry](), 0.0
    rounds = floor.affordable(alive, limit, 3, _FIRST)
    while True:
        taken = floor.sample(alive, rounds)
        alive = [entry for entry in alive if entry in taken]
        for entry in alive:
            samples[entry] += taken[entry]
        if not alive:
            break
        found = standing([samples[entry] for entry in alive])
        ranked = [(alive[place], found.losses[place]) for place in found.places]
        alive, size = [entry for entry, _ in ranked], len(samples[ranked[0][0]])
        enough = size >= _FIRST
        if (enough and lost + found.regret < _REGRET) or size >= _ROUNDS or floor.spent >= limit or len(alive) == 1:
            break
        slowest = max(samples[alive[0]])
        slower = ((entry, enough or min(samples[entry]) > slowest, loss) for entry, loss in ranked[1:])
        beaten[:0] = [entry for entry, clearly, loss in slower if clearly and loss < _SHARE * _REGRET]
        lost += sum(loss for entry, loss in ranked if entry in beaten)
        alive = [entry for entry in alive if entry not in beaten]
        rounds = floor.affordable(alive, limit - floor.spent, 1, min(_ROUNDS - size, int(_GROWTH * size) + 1))
    return {entry: samples[entry] for entry in (*alive, *beaten) if entry not in floor.wrong}


def _baselines(best: _Entry, entries: Sequence[_Entry], floor: _Floor) -> dict[str, _Entry]:
    """The fastest of each baseline's configs; the winner's own kernel has no faster one."""
    right = [entry for entry in entries if entry not in floor.wrong]
    found: dict[str, _Entry] = {}
    for kernel in _BASELINES:
        configs = [entry for entry in right if entry.measured.kernel == kernel]
        if configs:
            found[kernel] = best if best in configs else min(configs, key=lambda entry: entry.seconds)
    return found


def _report(field: _Field, floor: _Floor, limit: float) -> dict[_Entry, list[float]]:
    """Fresh samples of the winner and those beside it; slow baselines stay out."""
    beside = (field.best, field.untuned, field.vendor)
    entries = list(dict.fromkeys(entry for entry in beside if entry is not None and _fit(entry, floor)))
    slowest = _HOPELESS * field.best.seconds
    near = [entry for entry in field.baselines.values() if entry.seconds <= slowest and entry not in entries]
    if floor.affordable([*entries, *near], limit, 0, _ROUNDS) >= 2 * _TOLD:
        entries += near
    return floor.sample(entries, floor.affordable(entries, limit, _TOLD, _ROUNDS))


def _fit(entry: _Entry, floor: _Floor) -> bool:
    return floor.holds(entry) if isinstance(entry.contender, Launch) else entry not in floor.wrong


def _final(
    field: _Field,
    chosen: dict[_Entry, list[float]],
    told: dict[_Entry, list[float]],
    floor: _Floor,
    outcomes: Sequence[Outcome],
) -> Final:
    def of(entry: _Entry) -> Measured:
        return _timed(entry, told[entry], floor.policy) if entry in told else entry.measured

    right = {entry: seconds for entry, seconds in chosen.items() if entry not in floor.wrong}
    return Final(
        finalists=tuple(_timed(entry, seconds, floor.policy) for entry, seconds in right.items()),
        best=of(field.best),
        default=of(field.untuned) if field.untuned in told else None,
        vendor=_library(field.vendor, told, floor, outcomes),
        baselines={kernel: of(entry) for kernel, entry in field.baselines.items() if entry not in floor.wrong},
        wrong=tuple(rejected for entry, rejected in floor.wrong.items() if entry is not field.vendor),
        conditions=floor.conditions,
        retaken=floor.retaken,
    )


def _library(
    vendor: _Entry | None, told: dict[_Entry, list[float]], floor: _Floor, outcomes: Sequence[Outcome]
) -> Outcome | None:
    """The vendor's library as it was told, or why it was not."""
    if vendor is None:
        return next((one for one in outcomes if isinstance(one, Rejected) and one.kernel == _VENDOR), None)
    return floor.wrong[vendor] if vendor in floor.wrong else _timed(vendor, told[vendor], floor.policy)


def _timed(entry: _Entry, seconds: Sequence[float], policy: str) -> Measured:
    middle, (low, high) = median(seconds), steady(seconds)
    limited = not (high - low) / 2 < NARROW * middle
    timing = Timing(1e3 * middle, (1e3 * low, 1e3 * high), len(seconds), limited, policy=policy)
    return replace(entry.measured, timing=timing, seconds=tuple(seconds))
