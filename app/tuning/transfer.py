"""Which tuned shape's config to answer an untuned shape with, and what that is expected to cost and at most costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb, exp, log, log2
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernels.problem import Problem
from kernels.space import Config

Choice: TypeAlias = tuple[str, Config]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Whole: TypeAlias = NDArray[np.intp]

COVERAGE: Final = 0.95  # of the answers: how many the bound holds for
CONFIDENCE: Final = 0.8  # that it holds for so many, given the shapes that happen to be tuned
PRIOR_BOUND: Final = 2.0  # how much slower the winner of an equal shape may be, before anything was learned
PRIOR_GROWTH: Final = 0.2  # what each doubling of distance adds to that bound's logarithm
PRIOR_LOSS: Final = 0.3  # the logarithm of what a winner is expected to lose elsewhere, likewise
_REACHES: Final = (2.0, 4.0, 8.0)  # doublings over which losses are alike; chosen by what would have chosen best
_TRUSTS: Final = (0.0, 0.5)  # share of the model's predicted loss that is believed; chosen with it
_FEW: Final = 8  # shapes below which nothing is chosen: the middle reach, and no trust
_ROWS: Final = 24  # nearest tuned shapes that are looked at
_COLUMNS: Final = 16  # winners of theirs that are weighed
_SHORT: Final = 6  # of those, how many the model is asked for
_SAMPLE: Final = 32  # tuned shapes that reach and trust are chosen on
_NOISE: Final = 0.05  # variance of what no distance explains, over that of what it does
_FLOOR: Final = 0.1  # the least spread of a logarithm of a loss: timing noise, and the winner's curse of short tunes
_CAUTION: Final = 0.3  # spreads by which the less known of two equals is put behind
_STEEPEST: Final = 1.5  # logarithm of a loss above which all losses are alike


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuned problem: its winner, that one's seconds, and what other problems' winners took on it (any subset)."""

    problem: Problem
    kernel: str
    config: Config
    seconds: float
    others: Mapping[Choice, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Transferred:
    """A config for an untuned problem: the winner of `source`, the nearest problem that it won.

    `expected_loss` is its time over what a tune would reach; `loss_bound` is not exceeded in 95 cases of 100. Both are
    at least 1. The bound rests on `shapes` tuned shapes that were foretold from the others; below 32 of them it is
    widened by a prior.
    """

    source: Problem
    kernel: str
    config: Config
    expected_loss: float
    loss_bound: float
    shapes: int


@dataclass(frozen=True, slots=True)
class _Guess:
    """Candidates for one problem, the most promising first, with logarithms of their losses and the losses' spread."""

    columns: Whole
    losses: Floats
    spreads: Floats


class Transfer:
    """What the tuned shapes of one device model and family say of the others. Immutable: made anew at a promotion.

    A loss is a config's time on a shape over that shape's best. For every candidate its losses on the shapes around
    are interpolated by distance (kriging: Cressie, Statistics for Spatial Data, 1993), a share of what the model
    foretells taken out before and put back after. The bound is conformal: every tuned shape is foretold from the
    others, and the errors, each over its own spread, bound the next one (Vovk et al., Algorithmic Learning in a Random
    World, 2005; Lei et al., JASA 113, 2018), at the rank that also holds for this very set of shapes (Vovk, 2012).
    """

    def __init__(
        self,
        tuned: Iterable[Tuned],
        legal: Callable[[Choice, Problem], bool],
        predict: Callable[[Choice, Problem], float],
    ) -> None:
        self._legal, self._predict = legal, predict
        self._tuned = tuple(sorted({one.problem: one for one in tuned}.values(), key=lambda one: one.problem))
        self._choices = sorted({(one.kernel, one.config) for one in self._tuned}, key=lambda one: (one[0], str(one[1])))
        places = {choice: number for number, choice in enumerate(self._choices)}
        self._own = np.array([places[one.kernel, one.config] for one in self._tuned], dtype=np.intp)
        self._points = np.array([_point(one.problem) for one in self._tuned]).reshape(-1, 4)
        self._losses = np.array([self._row(one) for one in self._tuned]).reshape(len(self._tuned), len(self._choices))
        self._known = ~np.isnan(self._losses)
        self._foretold = self._model()
        self._elsewhere = self._known.copy()
        self._elsewhere[np.arange(len(self._own)), self._own] = False
        found = self._losses[self._elsewhere]
        # Two shapes' worth of the prior: a handful of measured losses says little of how large they are elsewhere.
        self._mean = (found.sum() + 2 * PRIOR_LOSS) / (found.size + 2)
        self._variance = (np.square(found - self._mean).sum() + 2 * PRIOR_LOSS**2) / (found.size + 2)
        self._reach, self._trust = self._settings()
        self._errors = np.sort([error for _, error in self._foretelling(range(len(self._tuned)))])

    def choose(self, problem: Problem) -> Transferred | None:
        """The candidate with the least expected loss that is legal for the problem; None where none is."""
        if not self._tuned:
            return None
        distances = np.sqrt(np.square(self._points - _point(problem)).sum(axis=1))
        rows = _nearest(distances, _ROWS)
        guess = self._guess(distances, rows, self._candidates(rows), problem)
        for column, loss, spread in zip(guess.columns, guess.losses, guess.spreads, strict=True):
            kernel, config = choice = self._choices[column]
            if self._legal(choice, problem):
                source = min(np.flatnonzero(self._own == column), key=lambda row: (distances[row], row))
                expected, bound = self._bounded(float(loss), float(spread), float(distances[rows[0]]))
                return Transferred(self._tuned[source].problem, kernel, config, expected, bound, len(self._errors))
        return None

    def _row(self, one: Tuned) -> list[float]:
        own = (one.kernel, one.config)
        seconds = [one.seconds if each == own else one.others.get(each) for each in self._choices]
        losses = [float("nan") if each is None else log(each / one.seconds) for each in seconds]
        return [each if each != each else min(max(each, 0.0), _STEEPEST) for each in losses]  # noqa: PLR0124  NaN

    def _model(self) -> Floats:
        """The model's logarithms of losses, over the least of each shape's; zero where nothing was measured."""
        found = np.full(self._losses.shape, np.nan)
        for row, column in np.argwhere(self._known):
            found[row, column] = log(self._predict(self._choices[column], self._tuned[row].problem))
        return np.nan_to_num(_over_least(found))

    def _candidates(self, rows: Whole) -> Whole:
        """The distinct winners of some shapes, in the order of the shapes."""
        columns = self._own[rows]
        return columns[np.sort(np.unique(columns, return_index=True)[1])][:_COLUMNS]

    def _guess(self, distances: Floats, rows: Whole, columns: Whole, problem: Problem) -> _Guess:
        """Losses of candidates on a problem at some distances, from the losses on `rows`."""
        reach, trust = self._reach, self._trust
        around = np.sqrt(np.square(self._points[rows, None] - self._points[None, rows]).sum(axis=2))
        where = np.ix_(rows, columns)
        known = self._known[where]
        losses = np.where(known, self._losses[where] - trust * self._foretold[where], 0.0)
        alike = _alike(around, reach), _alike(distances[rows], reach)
        found, spreads = self._krige(*alike, known, self._elsewhere[where], losses)
        order = np.argsort(found + _CAUTION * spreads, kind="stable")
        if trust:
            order = order[:_SHORT]
            logs = [log(self._predict(self._choices[column], problem)) for column in columns[order]]
            found[order] += trust * _over_least(np.array(logs))
            order = order[np.argsort((found + _CAUTION * spreads)[order], kind="stable")]
        losses = np.maximum(found[order], 0.0)
        # A loss that is foretold is less sure than none: a winner that is no loss anywhere near is one here neither.
        return _Guess(columns[order], losses, spreads[order] + losses / 2)

    def _krige(
        self, among: Floats, here: Floats, known: Mask, elsewhere: Mask, losses: Floats
    ) -> tuple[Floats, Floats]:
        """Each column's value here and its spread, with its mean drawn to that of all where little of it is known.

        That a winner loses nothing on its own shape says nothing of what it loses on average.
        """
        rows = len(here)
        among = among + _NOISE * np.eye(rows)
        if known.all():
            solved = np.linalg.solve(among, np.column_stack([here, np.ones(rows), losses]))
            weights, ones, values = solved[:, :1], solved[:, 1:2], solved[:, 2:]
        else:
            mask = known.T.astype(float)
            system = mask[:, :, None] * among * mask[:, None, :] + np.eye(rows) * (1 - mask)[:, None, :]
            right = np.stack([mask * here, mask, losses.T], axis=2)
            solved = np.linalg.solve(system, right)
            weights, ones, values = (solved[:, :, part].T for part in range(3))
        ones_elsewhere = np.maximum(ones, 0) * elsewhere
        mean = ((ones_elsewhere * losses).sum(axis=0) + self._mean) / (ones_elsewhere.sum(axis=0) + 1)
        rest = losses - mean * known
        found = mean + (weights * rest).sum(axis=0)
        power = (rest * (values - mean * ones)).sum(axis=0) + 2 * self._variance
        left = np.maximum(1 + _NOISE - (weights * (here[:, None] * known)).sum(axis=0), _NOISE)
        return found, _FLOOR + np.sqrt(np.maximum(power, 0) / (known.sum(axis=0) + 2) * left)

    def _settings(self) -> tuple[float, float]:
        """The reach and the trust that would have chosen best for the tuned shapes, had each been untuned."""
        self._reach, self._trust = _REACHES[len(_REACHES) // 2], _TRUSTS[0]
        if len(self._tuned) < _FEW:
            return self._reach, self._trust
        sample = range(0, len(self._tuned), -(-len(self._tuned) // _SAMPLE))

        def total(reach: float, trust: float) -> float:
            self._reach, self._trust = reach, trust
            return sum(loss for loss, _ in self._foretelling(sample))

        best = min(_REACHES, key=lambda reach: total(reach, _TRUSTS[0]))
        return best, min(_TRUSTS, key=lambda trust: total(best, trust))

    def _foretelling(self, targets: Iterable[int]) -> list[tuple[float, float]]:
        """Each shape's loss had it been untuned, and by how many spreads it is above the guess.

        Only what was measured on a shape can be chosen for it here; a shape with nothing measured says nothing.
        """
        told = []
        for target in targets:
            distances = np.sqrt(np.square(self._points - self._points[target]).sum(axis=1))
            distances[target] = np.inf
            rows = _nearest(distances, min(_ROWS, len(self._tuned) - 1))
            columns = self._candidates(rows)
            columns = columns[self._known[target, columns]]
            if len(columns):
                guess = self._guess(distances, rows, columns, self._tuned[target].problem)
                loss = float(self._losses[target, guess.columns[0]])
                told.append((loss, (loss - float(guess.losses[0])) / float(guess.spreads[0])))
        return told

    def _bounded(self, loss: float, spread: float, distance: float) -> tuple[float, float]:
        """The expected loss and its bound, as ratios."""
        number = len(self._errors)
        centre = float(self._errors.mean()) if number else 0.0
        if number < _FEW:
            centre = max(centre, 0.0)  # a handful of good guesses is no ground for a better one
        expected = max(0.0, loss + centre * spread)
        upper = loss + max(_quantile(self._errors), 0.0) * spread if number else loss
        lacking = max(0.0, 1 - (1 - COVERAGE**number) / CONFIDENCE)
        bound = max(expected, upper) + lacking * (log(PRIOR_BOUND) + PRIOR_GROWTH * distance)
        return exp(expected), exp(bound)


def distance(one: Problem, other: Problem) -> float:
    """How far two shapes are apart: the Euclidean distance in log2 of m, n, k and batch."""
    return float(np.sqrt(np.square(_point(one) - _point(other)).sum()))


def _point(problem: Problem) -> Floats:
    return np.array([log2(problem.m), log2(problem.n), log2(problem.k), log2(problem.batch)])


def _nearest(distances: Floats, most: int) -> Whole:
    return np.argsort(distances, kind="stable")[:most]


def _alike(distances: Floats, reach: float) -> Floats:
    """How alike losses are at a distance: Matern's correlation of smoothness 3/2."""
    scaled = distances * (3**0.5 / reach)
    alike: Floats = (1 + scaled) * np.exp(-scaled)
    return alike


def _over_least(logs: Floats) -> Floats:
    over: Any = logs - np.nanmin(logs, axis=-1, keepdims=True, initial=np.inf)
    return np.minimum(over, _STEEPEST)  # type: ignore[no-any-return]


def _quantile(errors: Floats) -> float:
    """The error below which 95 % of all errors are with 80 % confidence; the largest where there are too few."""
    rank, share = _rank(len(errors))
    lower = errors[rank - 2] if rank > 1 else errors[rank - 1]
    return float(lower + share * (errors[rank - 1] - lower))


@lru_cache(maxsize=1024)
def _rank(number: int) -> tuple[int, float]:
    """The order statistic (from 1) that reaches the confidence, and the share of the step up to it that is enough."""
    sure = below = 0.0
    for rank in range(1, number + 1):
        # That the share of errors below the rank-th of them is over the coverage: fewer than `rank` of them are.
        below, sure = (
            sure,
            sure + comb(number, rank - 1) * COVERAGE ** (rank - 1) * (1 - COVERAGE) ** (number - rank + 1),
        )
        if sure >= CONFIDENCE:
            return rank, (CONFIDENCE - below) / (sure - below)
    return number, 1.0
