"""Bayesian optimisation of log time, warm-started with times of other shapes and devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from math import exp, inf
from typing import Final

import numpy as np
from threadpoolctl import ThreadpoolController

from app.tuning.search.candidates import CandidateFeatures, ModelView
from app.tuning.search.encoding import Matrix, Rows
from app.tuning.search.history import SearchHistory
from app.tuning.search.inputs import SearchInputs
from app.tuning.search.posterior import GaussianProcess, LinearTrend, Posterior, feasibility
from kernels.space import Config

_OPENING: Final = 24  # configs that are tried before a model is believed
_MEASURED: Final = 8  # how many must have been measured before
_SEEDS: Final = 2  # configs that each source gives; more draw the search to their own optimum
# Configs that the analytic model gives. With 2, and one turn of eight for the view with a trend, a quarter of 52
# searches of a recorded space ended over 2 % from its best; with these, 1 of 24.
_MODEL_SEEDS: Final = 6
_ALIKE: Final = 3  # digits of the log2 of seconds in which configs differ that the model tells apart
_SURE: Final = 4  # seeds before the first random row: a short tune comes no further
_FASTEST: Final = 8  # whose neighbours are looked at
_CLOSEST: Final = 4  # whose neighbours are tried, whatever is believed of them
_SHORTLIST: Final = 256
_PREDICTED: Final = 8192  # rows that the analytic model is asked for at first: more of them delay the first trial
_NUGGET: Final = 1e-4  # variance of a measured log time
# Views take turns, since each is blind to some optima, and where they disagree is where to look. A smooth one finds
# the way down ordered parameters, one of single values what comes of their combinations, one with a trend what the
# analytic model says and what holds elsewhere too: it alone knows of values that were hardly tried, but as elsewhere
# may mislead, it has three turns of eight. None: a neighbour of one of the fastest, whatever is believed.
_SMOOTH: Final = ModelView(0.5)
_CLIFFS: Final = ModelView(1.0, values=True)
_KIN: Final = ModelView(0.5, trend=True)
_ROUND: Final = (_SMOOTH, _CLIFFS, _KIN, None, _SMOOTH, _CLIFFS, _KIN, _KIN)


def preload() -> None:
    """Start to load the models' libraries in a thread, during a tune's first trials."""
    threading.Thread(target=_libraries, name="load the models' libraries").start()


@cache
def _libraries() -> ThreadpoolController:
    """Those that have threads of their own; looking for them costs as much as a small fit."""
    import sklearn.gaussian_process  # noqa: F401, PLC0415 - a second to load, and what it loads is to be found too

    return ThreadpoolController()


@dataclass(frozen=True, slots=True)
class _BatchInputs:
    """The data for picking a batch: measured rows with log times, candidates and their feasibility."""

    rows: Rows
    logs: Matrix
    candidates: Rows
    feasibility: Matrix


class BayesianSearch:
    """Bayesian optimisation of log time: Gaussian processes of several views take turns, one of eight a neighbour."""

    def __init__(self, inputs: SearchInputs, seed: int) -> None:
        self._history = SearchHistory(inputs)
        self._random = np.random.default_rng(seed)
        self._seed = seed
        self._candidates = CandidateFeatures(inputs, self._history, self._random)
        self._processes: dict[ModelView, GaussianProcess] = {}
        self._turn = 0
        self._gains = (inf, inf)
        self._openers = self._opening([int(row) for row in self._random.permutation(len(self._history.configs))])

    def ask(self, count: int) -> list[Config]:
        """The default, seeds and random configs first, then the views' largest expected improvements."""
        taken = self._history.take(self._history.opening(count))
        while len(taken) < count and self._history.open.any():
            if self._history.seen < _OPENING or len(self._history.seconds) < _MEASURED:
                rows = [next(self._openers)]
            else:
                # Matrices are small: two threads would wait for each other most of the time.
                with _libraries().limit(limits=1):
                    rows = self._picks(count - len(taken))
            taken += self._history.take(rows)
        return taken

    def tell(self, config: Config, seconds: float | None) -> None:
        """Record the outcome of a config."""
        self._history.tell(config, seconds)

    def gain(self) -> float:
        """The largest expected gain of the last two batches and of the history."""
        return max(*self._gains, self._history.gain()) if self._history.open.any() else 0.0

    def _opening(self, order: Sequence[int]) -> Iterator[int]:
        """Seeds, sought at once, after the first few alternating with random rows; then random rows alone."""
        seeds = self._seeds(order)
        sure, others = seeds[:_SURE], seeds[_SURE:]
        alternating = [row for pair in zip_longest(others, order[: len(seeds)]) for row in pair if row is not None]
        return (row for row in chain(sure, alternating, order) if self._history.open[row])

    def _seeds(self, order: Sequence[int]) -> list[int]:
        """The fastest of each source in turn, the nearest source first, and those the analytic model has fastest.

        Of configs that the model cannot tell apart one is enough, and the default may be that one.
        """
        lists = [self._fastest_at(known.seconds) for known in self._candidates.sources]
        rows = np.sort(np.array(order[:_PREDICTED], dtype=np.intp))
        predicted = self._candidates.predicted(rows).round(_ALIKE)
        if len(predicted) and np.ptp(predicted) > 0:
            times, places = np.unique(predicted, return_index=True)
            first = self._history.first
            known = None if first is None else self._candidates.predicted(np.array([first]))[0].round(_ALIKE)
            lists.append([int(row) for row in rows[places[times != known][:_MODEL_SEEDS]]])
        seeds = [row for level in zip_longest(*lists) for row in level if row is not None]
        return list(dict.fromkeys(seeds))[: _OPENING // 2]

    def _fastest_at(self, seconds: Mapping[Config, float]) -> list[int]:
        rows = {config: row for config in seconds if (row := self._history.row(config)) is not None}
        return [rows[config] for config in sorted(rows, key=lambda config: seconds[config])[:_SEEDS]]

    def _picks(self, count: int) -> list[int]:
        """The next open rows of the round, each chosen by the view whose turn it is."""
        turns = [self._view((self._turn + step) % len(_ROUND)) for step in range(count)]
        self._turn = (self._turn + count) % len(_ROUND)
        picks: list[int] = []
        gain = 0.0
        if any(turns):
            look = self._batch_inputs()
            for view in dict.fromkeys(turn for turn in turns if turn):
                chosen, expected = self._batch(view, look, turns.count(view), picks)
                picks, gain = picks + chosen, max(gain, expected)
            self._gains = (self._gains[1], gain)
        others = np.setdiff1d(np.flatnonzero(self._history.open), picks)
        missing = min(count - len(picks), len(others))
        near = np.intersect1d(others, self._neighbours())
        drawn = self._random.choice(near, min(missing, len(near)), replace=False)
        rest = np.setdiff1d(others, drawn)
        return [*picks, *map(int, drawn), *map(int, self._random.choice(rest, missing - len(drawn), replace=False))]

    def _neighbours(self) -> Rows:
        """Rows that differ in one parameter from one of the few fastest."""
        seconds = self._history.seconds
        return self._candidates.neighbours(sorted(seconds, key=seconds.__getitem__)[:_CLOSEST])

    def _view(self, turn: int) -> ModelView | None:
        """The view of a turn; without times from elsewhere the smooth view replaces one with a trend."""
        view = _ROUND[turn]
        return view if view is None or not view.trend or self._candidates.has_trends else _SMOOTH

    def _batch_inputs(self) -> _BatchInputs:
        seconds, rejected = self._history.seconds, self._history.rejected
        rows = np.fromiter(seconds, dtype=np.intp)
        logs = np.log(np.fromiter(seconds.values(), dtype=np.float64))
        candidates = self._candidates.candidates(rows[np.argsort(logs, kind="stable")[:_FASTEST]])
        chance = np.ones(len(candidates))
        if rejected and len(candidates):
            tried = np.fromiter([*seconds, *rejected], dtype=np.intp)
            held = np.repeat([1.0, 0.0], [len(seconds), len(rejected)])
            failing = self._candidates.failing
            chance = feasibility(failing(tried), held, failing(candidates), self._seed)
        return _BatchInputs(rows, logs, candidates, chance)

    def _batch(self, view: ModelView, look: _BatchInputs, count: int, picks: Sequence[int]) -> tuple[list[int], float]:
        """A view's rows of largest expected improvement, and that. Pending rows count as measured at their mean."""
        free = ~np.isin(look.candidates, picks)
        candidates, chance = look.candidates[free], look.feasibility[free]
        if not len(candidates):
            return [], 0.0
        process, trend = self._fitted(view, look)
        best = float(look.logs.min())
        believed = process.predict(self._candidates.points(view, candidates))
        mean = believed.mean + self._trend_of(trend, candidates)
        worth = Posterior(mean, believed.deviation).improvement(best) * chance
        short = np.argsort(-worth, kind="stable")[:_SHORTLIST]
        pending = np.fromiter([*self._history.pending, *picks], dtype=np.intp)
        joint = process.predict_joint(self._candidates.points(view, np.concatenate([pending, candidates[short]])))[1]
        for place in range(len(pending)):
            joint = _measured(joint, place)
        chosen, gain = _greedy(mean[short], joint[len(pending) :, len(pending) :], chance[short], best, count)
        return [int(row) for row in candidates[short[chosen]]], 1 - exp(-gain)

    def _fitted(self, view: ModelView, look: _BatchInputs) -> tuple[GaussianProcess, LinearTrend | None]:
        logs = np.minimum(look.logs, np.quantile(look.logs, view.quantile))
        columns = self._candidates.trends(look.rows) if view.trend else np.zeros((len(logs), 0))
        trend = LinearTrend(columns, logs) if columns.shape[1] else None
        process = self._processes.setdefault(view, GaussianProcess(*self._candidates.ties(view)))
        process.fit(self._candidates.points(view, look.rows), logs - self._trend_of(trend, look.rows))
        return process, trend

    def _trend_of(self, trend: LinearTrend | None, rows: Rows) -> Matrix:
        return np.zeros(len(rows)) if trend is None else trend.at(self._candidates.trends(rows))


def _greedy(mean: Matrix, covariance: Matrix, chance: Matrix, best: float, count: int) -> tuple[list[int], float]:
    """Places picked one after the other for their expected improvement, and the largest of these.

    Each is then taken for measured as expected, so that the next one lies elsewhere (the kriging believer of
    Ginsbourger, Le Riche and Carraro, 2010; means stay as they are).
    """
    chosen: list[int] = []
    gain = 0.0
    for _ in range(min(count, len(mean))):
        deviation = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        worth = Posterior(mean, deviation).improvement(best) * chance
        worth[chosen] = -1.0
        place = int(np.argmax(worth))
        gain = max(gain, float(worth[place]))
        chosen.append(place)
        covariance = _measured(covariance, place)
    return chosen, gain


def _measured(covariance: Matrix, place: int) -> Matrix:
    """The covariance conditioned on a measurement of one place."""
    column = covariance[:, place]
    return np.asarray(covariance - np.outer(column, column) / (column[place] + _NUGGET))
