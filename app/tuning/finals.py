"""Finals: the finalists are re-measured in turn; one is chosen, stress-verified, and measured afresh for the report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

from app.tuning.measure.racing import NoiseModel
from app.tuning.measure.statistics import rank
from app.tuning.outcome import FinalReport, Measured, Outcome
from app.tuning.report import BASELINES, DEFAULT, VENDOR, RoundReport, beside, reported
from app.tuning.runner import Contender, Runner
from app.tuning.sampling import FEWEST, Finalist, FinalistSampling
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

_FEWEST: Final = 8  # finalists
_MOST: Final = 24
_REGRET: Final = 5e-4  # of the time: the choice is made once it is expected to lose less
_SHARE: Final = 0.02  # of that: a finalist that adds less than its part of it is beaten
_FIRST: Final = 12  # rounds before which only a finalist that was always slower is beaten
_ROUNDS: Final = 200  # of the choice, at most
_TRIED: Final = 3  # rounds of a choice at least: with fewer there is none
_GROWTH: Final = 0.5  # of the rounds so far are added at once
_CHOOSING: Final = (0.1, 0.6)  # of the limit: at least, where the report is long, and at most
_SEEDING: Final = 0.15  # of the limit, within the choice's: the rounds of all finalists, where they are over eight


def finals(
    outcomes: Sequence[Outcome],
    default: Launch | None,
    launches: Callable[[Measured], Launch],
    runner: Runner,
    problem: Problem,
    limit: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
    *,
    most: float | None = None,
) -> FinalReport | None:
    """Measure the fastest configs of a search again, choose by these samples alone, and measure the choice anew.

    From 8 to 24 finalists that could still be the best, given the search's noise: fewer if there is no time for three
    rounds of them, more than eight only if there is time for twelve. They are sampled in turn, without the clearly
    slower ones, until the choice is expected to lose less than 0.05 % or its part of the limit is spent. The first by
    `statistics.rank` that passes `runner.stress_verify` is chosen, and timed in a further round with the entries beside
    it (`report.reported`). `limit` is seconds of verification and sampling by the clock, or up to `most` if five rounds
    of the report need them; entries forecast not to fit are left out, but for one launch of a config that passes. None
    if nothing was measured or passes. Raises DeviceError if sampling fails with no contender to blame, OutOfTime if the
    budget ends before the report.
    """
    found = {
        (one.kernel, one.config): Finalist(one, _contender(one, launches, problem))
        for one in outcomes
        if isinstance(one, Measured)
    }
    generator = random.Random(seed)  # noqa: S311  no secret: an order of launches
    sampling = FinalistSampling(runner, generator, clock, limit, max(limit, most or 0.0))
    ours = sorted((one for one in found.values() if one.measured.kernel != VENDOR), key=lambda one: one.seconds)
    reports = _reports(ours, found, default)
    if ours:
        sampling.holds(ours[0])  # which tells what a proof takes
    chosen = _choice(_finalists(ours, sampling, _until(reports, sampling)), sampling, lambda: _until(reports, sampling))
    for best in filter(sampling.holds, [*chosen, *(entry for entry in ours if entry not in chosen)]):
        told = reported(best, *beside(outcomes, found, sampling.wrong, best, default), sampling)
        if told is not None:
            return _final(told, chosen, sampling)
    return None


def _reports(
    ours: Sequence[Finalist], found: Mapping[tuple[str, Config], Finalist], default: Launch | None
) -> list[Finalist]:
    """Who is likely to be in the report."""
    if not ours:
        return []
    entries, _ = beside((), found, {}, ours[0], None)
    untuned = found.get((default.kernel, default.config)) if default is not None else None
    return list(dict.fromkeys(one for one in (ours[0], *entries.values(), untuned) if one is not None))


def _until(reports: Sequence[Finalist], sampling: FinalistSampling) -> float:
    """Seconds spent at which the choice must end, so that stress verification and five rounds of the report fit."""
    told = FEWEST * sampling.each(sampling.fitting(reports)) + 2 * sampling.proof
    sampling.raise_limit(told / (1 - _CHOOSING[1]))
    least, most = (share * sampling.limit for share in _CHOOSING)
    return max(least, min(most, sampling.limit - told))


def _contender(measured: Measured, launches: Callable[[Measured], Launch], problem: Problem) -> Contender:
    return problem if measured.kernel == VENDOR else launches(measured)


def _finalists(by_median: Sequence[Finalist], sampling: FinalistSampling, limit: float) -> list[Finalist]:
    """The configs that could still be the best, at least eight; as many as fit the limit, and at least one.

    By the median and by the fastest sample in turn: where clocks boost, a config that was measured hot has a slow
    median, and one that was cold throughout a fast one.
    """
    by_fastest = sorted(by_median, key=_fastest)
    possible = _possible(by_median)
    turns = chain.from_iterable(zip_longest(by_median, by_fastest))
    hopeful = dict.fromkeys(entry for entry in turns if entry in possible)
    rest = (entry for entry in by_median if entry not in possible)
    most = sampling.affordable(by_median[:1], sampling.limit * _SEEDING / _FIRST, _FEWEST, _MOST)
    found: list[Finalist] = []
    for entry in chain(hopeful, rest):
        enough = len(found) >= (most if entry in hopeful else _FEWEST)
        if found and (enough or _TRIED * sampling.each([*found, entry]) > limit):
            break
        found.append(entry)
    return found


def _possible(by_median: Sequence[Finalist]) -> set[Finalist]:
    """Those that were not dropped and whose fastest sample is not clearly slower than the best median."""
    noise = NoiseModel()
    kept = [entry for entry in by_median if not entry.measured.timing.dropped]
    for entry in kept:
        if len(entry.measured.seconds) > max(NoiseModel.looks):
            noise.learn(entry.measured.seconds)
    return {entry for entry in kept if _fastest(entry) <= kept[0].seconds * noise.margin(_look(entry))}


def _fastest(entry: Finalist) -> float:
    return min(entry.measured.seconds, default=entry.seconds)


def _look(entry: Finalist) -> int:
    return max((look for look in NoiseModel.looks if look <= len(entry.measured.seconds)), default=1)


def _choice(
    finalists: Sequence[Finalist], sampling: FinalistSampling, until: Callable[[], float]
) -> dict[Finalist, list[float]]:
    """The finalists and the samples that order them, fastest first; as the search has them if there is no choice."""
    samples: dict[Finalist, list[float]] = {entry: [] for entry in finalists}
    alive, beaten, lost = list(finalists), list[Finalist](), 0.0
    by_search = {entry: list[float]() for entry in sorted(finalists, key=lambda entry: entry.seconds)}
    if len(alive) < 2 or sampling.affordable(alive, until() - sampling.spent, 0, _TRIED) < _TRIED:  # noqa: PLR2004
        return by_search
    rounds = 1  # which tells what a sample takes, all told
    while True:
        taken = sampling.sample(alive, rounds)
        alive = [entry for entry in alive if entry in taken]
        for entry in alive:
            samples[entry] += taken[entry]
        if not alive:
            break
        if rounds == len(samples[alive[0]]) == 1:
            rounds = sampling.affordable(alive, until() - sampling.spent, 0, _FIRST - 1)
            if rounds < _TRIED - 1:
                return {entry: seconds for entry, seconds in by_search.items() if entry not in sampling.wrong}
            continue
        found = rank([samples[entry] for entry in alive])
        ranked = [(alive[place], found.losses[place]) for place in found.places]
        alive, size = [entry for entry, _ in ranked], len(samples[ranked[0][0]])
        enough = size >= _FIRST
        sure = enough and lost + found.regret < _REGRET
        if sure or size >= _ROUNDS or sampling.spent >= until() or len(alive) == 1:
            break
        slowest = max(samples[alive[0]])
        slower = ((entry, enough or min(samples[entry]) > slowest, loss) for entry, loss in ranked[1:])
        beaten[:0] = [entry for entry, clearly, loss in slower if clearly and loss < _SHARE * _REGRET]
        lost += sum(loss for entry, loss in ranked if entry in beaten)
        alive = [entry for entry in alive if entry not in beaten]
        rounds = sampling.affordable(alive, until() - sampling.spent, 1, min(_ROUNDS - size, int(_GROWTH * size) + 1))
    return {entry: samples[entry] for entry in (*alive, *beaten) if entry not in sampling.wrong}


def _final(told: RoundReport, chosen: dict[Finalist, list[float]], sampling: FinalistSampling) -> FinalReport:
    figures = {entry: sampling.timed(entry, seconds) for entry, seconds in told.seconds.items()}
    shown = {name: figures[entry] for name, entry in told.beside.items() if entry in figures}
    right = {entry: seconds for entry, seconds in chosen.items() if seconds and entry not in sampling.wrong}
    return FinalReport(
        finalists=tuple(sampling.timed(entry, seconds) for entry, seconds in right.items()),
        best=figures[told.best],
        default=shown.get(DEFAULT),
        vendor=shown.get(VENDOR),
        baselines={name: shown[name] for name in BASELINES if name in shown},
        reasons=told.reasons,
        wrong=tuple(rejected for entry, rejected in sampling.wrong.items() if rejected.kernel != VENDOR),
        conditions=sampling.conditions,
        retaken=sampling.retaken,
    )
