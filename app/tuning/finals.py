"""Finals: the finalists are re-measured in turn; one is chosen, stress-verified, and measured afresh for the report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from statistics import median
from typing import Final

from app.tuning.measure.racing import NoiseModel
from app.tuning.measure.statistics import rank
from app.tuning.outcome import VENDOR, FinalReport, Measured, Outcome, Rejected
from app.tuning.runner import Contender, OutOfTime, Runner
from app.tuning.sampling import FEWEST, Finalist, FinalistSampling
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

DEFAULT: Final = "default"
BASELINES: Final = ("naive", "tiled")
BESIDE: Final = (DEFAULT, "tiled", VENDOR, "naive")  # where time is short, who comes first is measured first
_REPORT_ROUNDS: Final = 200  # at most
_BLOCKS: Final = 10  # parts of the round between which the clock is looked at
OVER: Final = "the budget was over before it was measured"
_FAR: Final = 4.0  # times the winner: who is slower is sampled less often
_FOR_FAR: Final = 0.5  # of the time, where all rounds with everybody do not fit
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


@dataclass(slots=True)
class RoundReport:
    """Samples of the report round by entry, the entries beside the winner, and reasons for missing ones."""

    best: Finalist
    seconds: dict[Finalist, list[float]]
    beside: dict[str, Finalist]
    reasons: dict[str, str] = field(default_factory=dict)


def reported(
    best: Finalist, beside: Mapping[str, Finalist], reasons: Mapping[str, str], sampling: FinalistSampling
) -> RoundReport | None:
    """Sample the winner and the entries beside it in turn; the best is the one of our kernels with the least median.

    At least five rounds of every reported entry, spread over the time left; entries over four times slower than the
    winner are in fewer rounds. None if the winner failed. Raises DeviceError if sampling fails with no entry to blame.
    """
    told = RoundReport(best, {}, dict(beside), dict(reasons))
    _admit(told, sampling)
    try:
        _sample(told, sampling)
    except OutOfTime:
        if not told.seconds.get(best):
            raise
    if best in sampling.wrong:
        return None
    _drop_untold(told, sampling)
    _promote(told, sampling)
    return told


def _sample(told: RoundReport, sampling: FinalistSampling) -> None:
    """Sample the entries by plan, until the limit, or until the winner fails."""
    entries = list(dict.fromkeys((told.best, *told.beside.values())))
    for part, rounds in _plan(told.best, entries, sampling):
        alive = [entry for entry in part if entry not in sampling.wrong]
        if told.best in sampling.wrong or (sampling.left <= 0 and all(told.seconds.get(entry) for entry in alive)):
            break
        for entry, seconds in sampling.sample(alive, rounds).items():
            told.seconds.setdefault(entry, []).extend(seconds)


def _admit(told: RoundReport, sampling: FinalistSampling) -> None:
    """Leave out entries that failed verification, or with which five rounds of all would exceed the time."""
    admitted = [told.best]
    for entry in [told.beside[name] for name in BESIDE if name in told.beside]:
        if entry in sampling.wrong:
            _drop(told, entry, sampling.wrong[entry].reason)
        elif entry not in admitted and FEWEST * sampling.each([*admitted, entry]) > max(
            sampling.left, sampling.available
        ):
            _drop(told, entry, _unaffordable(max(entry.seconds, sampling.cost)))
        elif entry not in admitted:
            admitted.append(entry)
    sampling.raise_limit(sampling.spent + FEWEST * sampling.each(admitted) + 2 * sampling.proof)


def _unaffordable(seconds: float) -> str:
    time = f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    return f"one launch, with the checks beside it, takes about {time}, which the budget does not afford {FEWEST} times"


def _drop(told: RoundReport, entry: Finalist, reason: str) -> None:
    """Leave an entry out, whichever names it has."""
    told.seconds.pop(entry, None)
    for name in [name for name, other in told.beside.items() if other is entry]:
        told.reasons[name] = reason
        del told.beside[name]


def _drop_untold(told: RoundReport, sampling: FinalistSampling) -> None:
    """Leave out, with a reason, entries that failed or were not reached."""
    for entry in list(told.beside.values()):
        if entry in sampling.wrong:
            _drop(told, entry, sampling.wrong[entry].reason)
        elif entry not in told.seconds:
            _drop(told, entry, OVER)


def _plan(best: Finalist, entries: Sequence[Finalist], sampling: FinalistSampling) -> list[tuple[list[Finalist], int]]:
    """The entries and rounds of each block: rounds of all entries, then rounds of the near ones alone."""
    everybody = list(entries)
    near = [entry for entry in entries if entry.seconds <= _FAR * best.seconds]
    rounds = sampling.affordable(everybody, sampling.left, 1, _REPORT_ROUNDS)
    more = 0
    if FEWEST <= rounds < _REPORT_ROUNDS and len(near) < len(everybody):
        rounds = sampling.affordable(everybody, sampling.left * _FOR_FAR, FEWEST, _REPORT_ROUNDS)
        more = sampling.affordable(near, sampling.left - rounds * sampling.each(everybody), 0, _REPORT_ROUNDS - rounds)
    blocks = min(_BLOCKS, rounds)
    plan: list[tuple[list[Finalist], int]] = []
    for block in range(blocks):
        plan.append((everybody, _part(rounds, block, blocks)))
        if alone := _part(more, block, blocks):
            plan.append((near, alone))
    return plan


def _part(whole: int, number: int, parts: int) -> int:
    """Part `number` of `parts` nearly equal parts of a whole."""
    return whole * (number + 1) // parts - whole * number // parts


def _promote(told: RoundReport, sampling: FinalistSampling) -> None:
    """Make the fastest verified entry of our kernels the best.

    The others are verified too if there is time: the timing of a wrong config would mislead.
    """
    chosen = told.best
    own = [entry for entry in told.seconds if entry.measured.kernel != VENDOR]
    own.sort(key=lambda entry: (median(told.seconds[entry]), entry is not chosen))
    told.best = next(entry for entry in own if _proves(told, entry, sampling))
    _drop_wrong(told, own[own.index(told.best) + 1 :], sampling)
    kernel = told.best.measured.kernel
    if kernel in BASELINES:
        told.beside[kernel] = told.best
        told.reasons.pop(kernel, None)


def _drop_wrong(told: RoundReport, entries: Sequence[Finalist], sampling: FinalistSampling) -> None:
    """Prove slower entries for as long as there is time; those for whom there is none keep their figures."""
    with suppress(OutOfTime):
        for entry in entries:
            if sampling.left > sampling.proof and not sampling.holds(entry):
                _drop(told, entry, sampling.wrong[entry].reason)


def _proves(told: RoundReport, entry: Finalist, sampling: FinalistSampling) -> bool:
    """Whether an entry passes stress verification; if not, or if there is no time for it, it is left out."""
    try:
        if sampling.holds(entry):
            return True
        _drop(told, entry, sampling.wrong[entry].reason)
    except OutOfTime:
        _drop(told, entry, OVER)
    return False


def absent(name: str, outcomes: Sequence[Outcome], default: Launch | None) -> str | None:
    """The reason why one of the names beside the winner was not measured in the search; None if it was."""
    if name == DEFAULT:
        if default is None:
            return "no kernel has a default that is legal here"
        kernel, config = default.kernel, default.config
        tried = [one for one in outcomes if (one.kernel, one.config) == (kernel, config)]
    else:
        tried = [one for one in outcomes if one.kernel == name]
    if any(isinstance(one, Measured) for one in tried):
        return None
    refused = [one for one in tried if isinstance(one, Rejected)]
    if not refused:
        return "it was not tried"
    return refused[0].reason if name in {VENDOR, DEFAULT} else f"none of its configs ran: {refused[0].reason}"


def beside(
    outcomes: Sequence[Outcome],
    found: Mapping[tuple[str, Config], Finalist],
    wrong: Mapping[Finalist, Rejected],
    best: Finalist,
    default: Launch | None,
) -> tuple[dict[str, Finalist], dict[str, str]]:
    """Who stands beside the winner: the default, the vendor's library, the fastest of each baseline; why others not."""
    reasons = {name: reason for name in BESIDE if (reason := absent(name, outcomes, default)) is not None}
    entries: dict[str, Finalist] = {}
    if default is not None and DEFAULT not in reasons:
        entries[DEFAULT] = found[default.kernel, default.config]
    for name in (VENDOR, *BASELINES):
        configs = [entry for entry in found.values() if entry.measured.kernel == name]
        if configs:
            entries[name] = best if best in configs else min(configs, key=lambda one: (one in wrong, one.seconds))
    return entries, reasons


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
