"""The report round: winner, untuned default, baselines and the vendor's library, measured in turn.

An entry too slow for the time left has a reason instead of a timing. The fastest of our kernels here is the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.runner import OutOfTime
from app.tuning.sampling import FEWEST, Finalist, FinalistSampling
from kernels.launch import Launch
from kernels.space import Config

VENDOR: Final = "vendor"
DEFAULT: Final = "default"
BASELINES: Final = ("naive", "tiled")
BESIDE: Final = (DEFAULT, "tiled", VENDOR, "naive")  # where time is short, who comes first is measured first
_ROUNDS: Final = 200  # at most
_BLOCKS: Final = 10  # parts of the round between which the clock is looked at
OVER: Final = "the budget was over before it was measured"
_FAR: Final = 4.0  # times the winner: who is slower is sampled less often
_FOR_FAR: Final = 0.5  # of the time, where all rounds with everybody do not fit


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
    rounds = sampling.affordable(everybody, sampling.left, 1, _ROUNDS)
    more = 0
    if FEWEST <= rounds < _ROUNDS and len(near) < len(everybody):
        rounds = sampling.affordable(everybody, sampling.left * _FOR_FAR, FEWEST, _ROUNDS)
        more = sampling.affordable(near, sampling.left - rounds * sampling.each(everybody), 0, _ROUNDS - rounds)
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
