"""Transfer of tuned configs to untuned shapes: the config, its expected loss, and a bound on that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp, hypot, log
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.tuning.conformal import FEW, expected_value, unsure, upper_bound
from app.tuning.kriging import Floats, LossStatistics, alike, krige
from kernels.problem import Problem
from kernels.space import Config

TransferChoice: TypeAlias = tuple[str, Config]
Whole: TypeAlias = NDArray[np.intp]

PRIOR_BOUND: Final = 2.0  # how much slower the winner of an equal shape may be, before anything was learned
PRIOR_GROWTH: Final = 0.2  # what each doubling of distance adds to that bound's logarithm
PRIOR_LOSS: Final = 0.3  # the logarithm of what a winner is expected to lose elsewhere, likewise
# The same for the untuned choice, which is made for each shape: distance adds nothing. benchmarks/results/peers*.json
# have it beside the tuned one for 119 shapes of one device: 1.02 on average, 1.10 at the 95th percentile. That is
# the device it was written for; of another, where nothing was learned yet, more is allowed for.
DEFAULT_BOUND: Final = 1.5
DEFAULT_LOSS: Final = 0.1
_REACHES: Final = (2.0, 4.0, 8.0)  # doublings over which losses are alike; chosen by what would have chosen best
_TRUSTS: Final = (0.0, 0.5)  # share of the model's predicted loss that is believed; chosen with it
_ROWS: Final = 24  # nearest tuned shapes that are looked at
_COLUMNS: Final = 16  # winners of theirs that are weighed
_SHORT: Final = 6  # of those, how many the model is asked for
_SAMPLE: Final = 32  # tuned shapes that reach and trust are chosen on
_CAUTION: Final = 0.3  # spreads by which the less known of two equals is put behind
_DOUBT: Final = 1 / 3  # of the way from the untuned choice's expected loss to its bound: where a config replaces it
_STEEPEST: Final = 1.5  # logarithm of a loss above which all losses are alike


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """A tuned problem: its winner, the winner's seconds, and those of other problems' winners on it (any subset).

    `default` is the seconds of the untuned choice, if measured.
    """

    problem: Problem
    kernel: str
    config: Config
    seconds: float
    others: Mapping[TransferChoice, float] = field(default_factory=dict, repr=False)
    default: float | None = None


@dataclass(frozen=True, slots=True)
class TransferEstimate:
    """The expected time of a config on an untuned problem over that of a tune's winner, and its bound.

    `loss_bound` holds in 95 cases of 100. Both are at least 1. The bound rests on `shapes` tuned shapes, each predicted
    from the others; below 32 of them it is widened by a prior.
    """

    expected_loss: float
    loss_bound: float
    shapes: int


@dataclass(frozen=True, slots=True)
class Transferred(TransferEstimate):
    """A config for an untuned problem: the winner of `source`, the nearest problem that it won.

    `over_untuned` is what its time over the untuned choice's does not exceed in 95 cases of 100.
    """

    source: Problem
    kernel: str
    config: Config
    over_untuned: float


@dataclass(frozen=True, slots=True)
class _Guess:
    """Candidates for one problem, the most promising first, with logarithms of their losses and the losses' spread."""

    columns: Whole
    losses: Floats
    spreads: Floats


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Errors in standard deviations, sorted, of each tuned shape's losses as predicted from the others.

    Those of the config that is chosen for it, of the untuned choice, and of the difference between these two.
    """

    winners: Floats
    default: Floats
    over_untuned: Floats


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Hyperparameters of a family of shapes: the length scale of losses in doublings, and the weight of the cost model.

    `winners` and `default` are the statistics of the losses of other shapes' winners, and of the untuned choice;
    `errors` say how far their predictions were out.
    """

    reach: float
    trust: float
    winners: LossStatistics
    default: LossStatistics
    errors: PredictionErrors


class Transfer:
    """Predictions from the tuned shapes of one device model and family. Immutable: a promotion makes a new one.

    A loss is a config's time on a shape over that shape's best. For every candidate, the untuned choice among them,
    its losses on the shapes around are interpolated by distance (kriging.py), with a share of the cost model's
    prediction as their mean. The bound is conformal (conformal.py): every tuned shape is predicted from the others, and
    the errors bound the next one. With `like` the settings and errors are those of another one.
    """

    settings: TransferSettings

    def __init__(
        self,
        tuned: Iterable[TunedProblem],
        legal: Callable[[TransferChoice, Problem], bool],
        predict: Callable[[TransferChoice, Problem], float],
        like: Transfer | None = None,
    ) -> None:
        self._legal, self._predict = legal, predict
        self._tuned = tuple(sorted({one.problem: one for one in tuned}.values(), key=lambda one: one.problem))
        self._choices = sorted({(one.kernel, one.config) for one in self._tuned}, key=lambda one: (one[0], str(one[1])))
        self._places = {choice: number for number, choice in enumerate(self._choices)}
        self._own = np.array([self._places[one.kernel, one.config] for one in self._tuned], dtype=np.intp)
        self._points = points(one.problem for one in self._tuned)
        self._losses = np.full((len(self._tuned), len(self._choices)), np.nan)
        for row, one in enumerate(self._tuned):
            self._fill(row, one)
        self._known = ~np.isnan(self._losses)
        self._elsewhere = self._known.copy()
        self._elsewhere[np.arange(len(self._own)), self._own] = False
        self._default = np.array([_loss(one.default, one.seconds) for one in self._tuned], dtype=float)
        self._foretold: dict[int, Floats] = {}
        self.settings = self._learn() if like is None else like.settings

    def choose(self, problem: Problem) -> Transferred | None:
        """The candidate with the least expected loss that is legal for the problem; None if none is."""
        if not self._tuned:
            return None
        distances = self._distances(problem)
        rows = _nearest(distances, _ROWS)
        guess = self._guess(distances, rows, self._candidates(rows), problem)
        for column, loss, spread in zip(guess.columns, guess.losses, guess.spreads, strict=True):
            kernel, config = choice = self._choices[column]
            if self._legal(choice, problem):
                source = min(np.flatnonzero(self._own == column), key=lambda row: (distances[row], row))
                prior = log(PRIOR_BOUND) + PRIOR_GROWTH * float(distances[rows[0]])
                told = _estimate(float(loss), float(spread), self.settings.errors.winners, prior)
                untuned = self._guess_default(distances, rows)
                over = _difference((float(loss), float(spread)), untuned)
                bound = exp(upper_bound(*over, self.settings.errors.over_untuned, prior))
                return Transferred(*told, self._tuned[source].problem, kernel, config, bound)
        return None

    def default(self, problem: Problem) -> TransferEstimate:
        """The expected loss of the untuned choice on a problem."""
        distances = self._distances(problem)
        loss, spread = self._guess_default(distances, _nearest(distances, _ROWS))
        return TransferEstimate(*_estimate(loss, spread, self.settings.errors.default, log(DEFAULT_BOUND)))

    def _distances(self, problem: Problem) -> Floats:
        distances: Floats = np.sqrt(np.square(self._points - points([problem])).sum(axis=1))
        return distances

    def _fill(self, row: int, one: TunedProblem) -> None:
        """Take the losses that were measured on one shape."""
        for choice, seconds in one.others.items():
            if (place := self._places.get(choice)) is not None:
                self._losses[row, place] = _loss(seconds, one.seconds)
        self._losses[row, self._own[row]] = 0.0

    def _model(self, row: int) -> Floats:
        """The cost model's log losses relative to the least of the shape; zero if nothing was measured."""
        if row not in self._foretold:
            found = np.full(len(self._choices), np.nan)
            for column in np.flatnonzero(self._known[row]):
                found[column] = log(self._predict(self._choices[column], self._tuned[row].problem))
            self._foretold[row] = np.nan_to_num(_over_least(found))
        return self._foretold[row]

    def _candidates(self, rows: Whole) -> Whole:
        """The distinct winners of some shapes, in the order of the shapes."""
        columns = self._own[rows]
        return columns[np.sort(np.unique(columns, return_index=True)[1])][:_COLUMNS]

    def _guess(self, distances: Floats, rows: Whole, columns: Whole, problem: Problem) -> _Guess:
        """Losses of candidates on a problem at some distances, from the losses on `rows`."""
        trust, where = self.settings.trust, np.ix_(rows, columns)
        known, losses = self._known[where], self._losses[where]
        if trust:
            losses = losses - trust * np.array([self._model(row)[columns] for row in rows])
        near = self._alike(distances, rows)
        found, spreads = krige(
            *near, known, self._elsewhere[where], np.where(known, losses, 0.0), self.settings.winners
        )
        order = np.argsort(found + _CAUTION * spreads, kind="stable")
        if trust:
            order = order[:_SHORT]
            logs = [log(self._predict(self._choices[column], problem)) for column in columns[order]]
            found[order] += trust * _over_least(np.array(logs))
            order = order[np.argsort((found + _CAUTION * spreads)[order], kind="stable")]
        least = np.maximum(found[order], 0.0)
        # A loss that is foretold is less sure than none: a winner that is no loss anywhere near is one here neither.
        return _Guess(columns[order], least, spreads[order] + least / 2)

    def _guess_default(self, distances: Floats, rows: Whole) -> tuple[float, float]:
        """The loss of the untuned choice at some distances, and its spread, likewise."""
        losses = self._default[rows, None]
        known = ~np.isnan(losses)
        near, learned = self._alike(distances, rows), self.settings.default
        found, spreads = krige(*near, known, known, np.where(known, losses, 0.0), learned)
        loss = max(float(found[0]), 0.0)
        return loss, float(spreads[0]) + loss / 2

    def _alike(self, distances: Floats, rows: Whole) -> tuple[Floats, Floats]:
        """How alike losses on `rows` are among themselves, and each to those at its distance."""
        around = np.sqrt(np.square(self._points[rows, None] - self._points[None, rows]).sum(axis=2))
        return alike(around, self.settings.reach), alike(distances[rows], self.settings.reach)

    def _learn(self) -> TransferSettings:
        """The reach and the trust that would have chosen best for the tuned shapes, had each been untuned."""
        winners = LossStatistics.of(self._losses[self._elsewhere], PRIOR_LOSS)
        default = LossStatistics.of(self._default[~np.isnan(self._default)], DEFAULT_LOSS)
        unchecked = PredictionErrors(*[np.empty(0)] * 3)
        self.settings = TransferSettings(_REACHES[len(_REACHES) // 2], _TRUSTS[0], winners, default, unchecked)
        if len(self._tuned) >= FEW:
            sample = range(0, len(self._tuned), -(-len(self._tuned) // _SAMPLE))
            reach = min(_REACHES, key=lambda reach: self._total(sample, reach, _TRUSTS[0]))
            trust = min(_TRUSTS, key=lambda trust: self._total(sample, reach, trust))
            self.settings = replace(self.settings, reach=reach, trust=trust)
        everyone = range(len(self._tuned))
        found = np.array([told[1:] for told in self._leave_one_out(everyone)]).reshape(-1, 2)
        of_default = np.sort(list(self._leave_one_out_default(everyone)))
        over_untuned = np.sort(found[~np.isnan(found[:, 1]), 1])
        return replace(self.settings, errors=PredictionErrors(np.sort(found[:, 0]), of_default, over_untuned))

    def _total(self, sample: Iterable[int], reach: float, trust: float) -> float:
        """The total loss of some shapes with these settings."""
        self.settings = replace(self.settings, reach=reach, trust=trust)
        return sum(loss for loss, *_ in self._leave_one_out(sample))

    def _others(self, target: int) -> tuple[Floats, Whole]:
        """How far every shape is from one of them, which is none of the nearest then, and the nearest."""
        distances = np.sqrt(np.square(self._points - self._points[target]).sum(axis=1))
        distances[target] = np.inf
        return distances, _nearest(distances, min(_ROWS, len(self._tuned) - 1))

    def _leave_one_out(self, targets: Iterable[int]) -> Iterator[tuple[float, float, float]]:
        """Each shape's loss if predicted from the others, its error, and that of what it is above the untuned choice's.

        Only configs measured on a shape can be chosen for it; shapes without any are left out.
        """
        for target in targets:
            distances, rows = self._others(target)
            columns = self._candidates(rows)
            columns = columns[self._known[target, columns]]
            if len(columns):
                guess = self._guess(distances, rows, columns, self._tuned[target].problem)
                loss = float(self._losses[target, guess.columns[0]])
                told = float(guess.losses[0]), float(guess.spreads[0])
                over, spread = _difference(told, self._guess_default(distances, rows))
                yield loss, (loss - told[0]) / told[1], (loss - float(self._default[target]) - over) / spread

    def _leave_one_out_default(self, targets: Iterable[int]) -> Iterator[float]:
        """By how many spreads each shape's loss of the untuned choice is above the guess from the others."""
        for target in targets:
            if not np.isnan(self._default[target]):
                loss, spread = self._guess_default(*self._others(target))
                yield (float(self._default[target]) - loss) / spread


def _loss(seconds: float | None, best: float) -> float:
    """The logarithm of a loss; NaN if it was not measured."""
    return float("nan") if seconds is None else min(max(log(seconds / best), 0.0), _STEEPEST)


def _difference(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """By how much one prediction is above another, and the spread of that."""
    return one[0] - other[0], hypot(one[1], other[1])


def _estimate(loss: float, spread: float, errors: Floats, prior: float) -> tuple[float, float, int]:
    """The expected loss and its bound, as ratios, and how many errors they rest on."""
    likely = max(0.0, expected_value(loss, spread, errors))
    bound = max(likely + unsure(len(errors)) * prior, upper_bound(loss, spread, errors, prior))
    return exp(likely), exp(bound), len(errors)


def beats(found: Transferred, default: TransferEstimate) -> bool:
    """Whether a config is sure enough to be faster than the untuned choice to replace it.

    So it is where its time over that one's is bounded below 1, and its own bound lies below the untuned choice's by two
    thirds of the way to that one's expected loss, and by more if few shapes are known.
    """
    share = _DOUBT if found.shapes >= FEW else 0.0
    expected, bound = log(default.expected_loss), log(default.loss_bound)
    return found.over_untuned < 1 and found.loss_bound < exp(expected + share * (bound - expected))


def distance(one: Problem, other: Problem) -> float:
    """How far two shapes are apart: the Euclidean distance in log2 of m, n, k and batch."""
    return float(np.sqrt(np.square(points([one]) - points([other])).sum()))


def points(problems: Iterable[Problem]) -> Floats:
    """A row for each problem: log2 of m, n, k and batch."""
    sizes = np.array([(one.m, one.n, one.k, one.batch) for one in problems], dtype=float)
    found: Floats = np.log2(sizes.reshape(-1, 4))
    return found


def _nearest(distances: Floats, most: int) -> Whole:
    return np.argsort(distances, kind="stable")[:most]


def _over_least(logs: Floats) -> Floats:
    over: Any = logs - np.nanmin(logs, axis=-1, keepdims=True, initial=np.inf)
    return np.minimum(over, _STEEPEST)  # type: ignore[no-any-return]
