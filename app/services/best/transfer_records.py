"""Stored bests as inputs of tuning.transfer, which answers problems that were not tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from app.store.records import BestRecord, CrossRecord, TrialRecord
from app.tuning.measure.racing import policy_of
from app.tuning.transfer import Transfer, TransferChoice, TunedProblem, points
from kernels import CATALOGUE
from kernels.cost_model import analyse, predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

_ENOUGH: Final = 8  # current records of a family with which its stale ones are not needed
_ROUNDS: Final = ("final", "search")  # the better first
_MOST: Final = 256  # tuned shapes that are learned from at once: each takes some milliseconds
_AROUND: Final = 128  # tuned shapes that an answer is looked for among, where there are more than _MOST
_CELLS: Final = 64  # regions whose nearest tuned shapes are kept at hand
WASTEFUL: Final = 4.0  # times the products that the untuned choice launches: a config's tiles are mostly empty then
_FEW_NEW: Final = 32  # bests at most whose times are read by themselves
_SETTLED: Final = 32  # tuned shapes from which on not every change of one has the settings learned anew,
_CHANGED: Final = 8  # but once this share of them has changed: 1 in 8

Times: TypeAlias = Mapping[tuple[str, Config, str], float]
Place: TypeAlias = tuple[str, str]  # a device's model and a family
Winner: TypeAlias = tuple[Problem, int | None, bool]  # and its trial, and whether others were timed on the problem
Cell: TypeAlias = tuple[int, ...]
Won: TypeAlias = tuple[str, Config, str]  # a winner's kernel, its config and the kernel's digest
ReadCrossed: TypeAlias = Callable[[Sequence[BestRecord] | None, Sequence[BestRecord]], Iterable[CrossRecord]]


def launch_of(kernel_name: str, config: Config, problem: Problem, device: Device) -> Launch | None:
    """The launch of a stored config on a problem, or None where there is none: the space may have changed since."""
    kernel = CATALOGUE.get(kernel_name)
    if kernel is None or not kernel.covers(problem, device):
        return None
    try:
        return kernel.launch(kernel.space.config(config), problem, device)
    except ValueError:
        return None


def is_current(trial: TrialRecord, device: Device) -> bool:
    """Whether driver, runtime, compiler, kernel text and timing policy are those the trial was measured with."""
    kernel = CATALOGUE.get(trial.kernel)
    same_text = kernel is not None and trial.kernel_digest == kernel.digest
    same_clock = trial.policy == policy_of(trial.problem, device)
    return same_text and same_clock and trial.environment == device.environment


@dataclass(frozen=True, slots=True)
class ServingRules:
    """On one device: which configs may be served, and the untuned choice for a problem, None where there is none."""

    device: Device
    serves: Callable[[str, Config, Problem], bool]
    default: Callable[[Problem], TransferChoice | None]

    def legal(self, choice: TransferChoice, problem: Problem) -> bool:
        """Whether a config may take the place of the untuned choice."""
        if not self.serves(*choice, problem) or launch_of(*choice, problem, self.device) is None:
            return False
        default = self.default(problem)
        return default is None or self._launched(choice, problem) <= WASTEFUL * self._launched(default, problem)

    def _launched(self, choice: TransferChoice, problem: Problem) -> int:
        """Products that a config makes, those of its tiles' empty parts included."""
        return analyse(CATALOGUE[choice[0]], choice[1], problem, self.device).flops_launched

    def seconds(self, choice: TransferChoice, problem: Problem) -> float:
        """What the model says that a config takes."""
        return predict(CATALOGUE[choice[0]], choice[1], problem, self.device)


class WinnerTimes:
    """What winners took on each other's problems: of a promotion only what it adds is read, for stores grow large.

    `read` gives all of it, or what concerns some bests: on their problems, and of the configs of those of them that are
    given beside on others. These are the configs that won nowhere before: of others all is known but the former.
    """

    def __init__(self, read: ReadCrossed) -> None:
        self._read = read
        self._times: dict[Place, dict[Problem, Times]] = {}
        self._winners: dict[Place, dict[Problem, Won]] = {}

    def of(self, place: Place) -> Mapping[Problem, Times]:
        """The times on each problem of a device's model and family, which the next promotion may add to."""
        return self._times.setdefault(place, {})

    def promoted(self, records: Sequence[BestRecord]) -> None:
        """Read what these bests add; what was known of their problems may be of another environment."""
        if not records:
            return
        everything = len(records) > _FEW_NEW
        if everything:
            self._times.clear()
        for record in records:
            self.deleted(_place(record), record.problem)
        first = [record for record in records if _won(record) not in self._winners.get(_place(record), {}).values()]
        for record in records:
            self._winners.setdefault(_place(record), {})[record.problem] = _won(record)
        added: dict[tuple[Place, Problem], dict[tuple[str, Config, str], float]] = {}
        for one in self._read(None, ()) if everything else self._read(records, first):
            added.setdefault((_place(one), one.problem), {})[one.kernel, one.config, one.round] = one.median_ms
        for (place, problem), times in added.items():  # each in one step: answers are worked out meanwhile
            known = self._times.setdefault(place, {})
            known[problem] = {**known.get(problem, {}), **times}

    def deleted(self, place: Place, problem: Problem) -> None:
        """Forget what is known of a problem."""
        self._times.get(place, {}).pop(problem, None)
        self._winners.get(place, {}).pop(problem, None)


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """The winners that a transfer's settings were learned from."""

    winners: frozenset[Winner]
    transfer: Transfer

    def hold_for(self, winners: frozenset[Winner]) -> bool:
        """Whether other winners need no settings of their own: only a few have changed."""
        return len(self.winners) >= _SETTLED and _CHANGED * len(self.winners ^ winners) <= len(self.winners)


class TunedFamily:
    """The tuned problems of one device model and family: made anew at a promotion, while `times` may grow.

    However many they are, a bounded number is learned from, and an answer is looked for among the nearest. With
    `earlier` its settings are taken, unless they were learned from few or much has changed since.
    """

    def __init__(
        self,
        records: Sequence[BestRecord],
        times: Mapping[Problem, Times],
        rules: ServingRules,
        earlier: TunedFamily | None = None,
    ) -> None:
        self._records, self._rules, self._times = records, rules, times
        winners = frozenset((record.problem, record.trial.id, record.problem in times) for record in records)
        known = earlier.learned if earlier is not None and earlier.learned.hold_for(winners) else None
        if known is not None and len(records) > _MOST:
            self._whole = known.transfer  # of which its settings alone are used: answers are among the nearest
        else:
            self._whole = self._transfer(_spread(records, _MOST), known.transfer if known else None)
        self.learned: LearnedSettings = known or LearnedSettings(winners, self._whole)
        self._points = points(record.problem for record in records)
        self._around = lru_cache(maxsize=_CELLS)(self._in_cell)

    def transfer(self, problem: Problem) -> Transfer:
        """What the tuned problems around one say of it."""
        if len(self._records) <= _MOST:
            return self._whole
        return self._around(tuple(np.rint(points([problem])[0]).astype(int).tolist()))

    def _in_cell(self, cell: Cell) -> Transfer:
        distances = np.square(self._points - np.array(cell)).sum(axis=1)
        nearest = np.argpartition(distances, _AROUND)[:_AROUND]
        return self._transfer([self._records[row] for row in nearest], self._whole)

    def _transfer(self, records: Sequence[BestRecord], like: Transfer | None = None) -> Transfer:
        """What some records say; stale ones are taken in only where too few are current."""
        device = self._rules.device
        usable = [one for one in records if launch_of(one.trial.kernel, one.trial.config, one.problem, device)]
        current = [one for one in usable if is_current(one.trial, device)]
        best = current if len(current) >= _ENOUGH else usable
        tuned = (_tuned(one, self._times.get(one.problem, {})) for one in best)
        return Transfer(tuned, self._rules.legal, self._rules.seconds, like)


def _spread(records: Sequence[BestRecord], most: int) -> Sequence[BestRecord]:
    """At most so many records, evenly from the smallest problem to the largest."""
    if len(records) <= most:
        return records
    ordered = sorted(records, key=lambda record: record.problem.flops)
    return [ordered[number * len(ordered) // most] for number in range(most)]


def _place(record: BestRecord | CrossRecord) -> Place:
    return record.device_model, record.problem.family


def _won(record: BestRecord) -> Won:
    return record.trial.kernel, record.trial.config, record.trial.kernel_digest


def _tuned(record: BestRecord, times: Times) -> TunedProblem:
    """A record with what other winners took; each is set against the winner's time in the same round."""
    trial = record.trial
    own = (trial.median_ms or 0.0) / 1e3
    others: dict[TransferChoice, float] = {}
    for which in _ROUNDS:
        base = times.get((trial.kernel, trial.config, which))
        for (kernel, config, round_), median_ms in times.items():
            if round_ == which:
                others.setdefault((kernel, config), own * median_ms / base if base else median_ms / 1e3)
    default = record.default.median_ms if record.default else None
    return TunedProblem(
        record.problem, trial.kernel, trial.config, own, others, None if default is None else default / 1e3
    )
