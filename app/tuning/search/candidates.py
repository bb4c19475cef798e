"""Model inputs of each candidate: encoded parameters, derived features, times measured elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from app.tuning.search.encoding import Matrix, Rows, codes, indicators, scaled
from app.tuning.search.history import SearchHistory
from app.tuning.search.inputs import PriorTimes, SearchInputs
from app.tuning.search.posterior import imputed
from kernels.space import Config

_POOL: Final = 20_000  # candidates looked at, besides those near the fastest
_NEAR: Final = 2  # parameters in which a near config differs at most
_SOURCES: Final = 4  # the nearest ones are learnt from
_LESSONS: Final = 2000  # configs of a source that are learnt from where it lacks some: half of them the fastest
_FEW: Final = 8  # values of a parameter that are told apart one by one


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model's view of configs: measured times above `quantile` are clipped to it.

    With `values` every parameter has its own length scale and each of its values a coordinate; else parameters are
    ordered and share one scale. With `trend` the model is fitted to residuals of a linear trend in times elsewhere and
    the prediction.
    """

    quantile: float
    values: bool = False
    trend: bool = False


class CandidateFeatures:
    """Model inputs by row of the history. Features are computed only for rows that are candidates."""

    def __init__(self, inputs: SearchInputs, history: SearchHistory, random: np.random.Generator) -> None:
        self._history = history
        self._inputs = inputs
        self._codes = codes(history.configs)
        self._indicators, self._of = indicators(self._codes, _FEW)
        self._sample = np.sort(random.permutation(len(self._codes))[:_POOL])
        self._features: Matrix | None = None
        self._has = np.zeros(len(self._codes), dtype=bool)
        self._predicted = np.full(len(self._codes), np.nan)
        self.sources = _sources(inputs, history)
        self._random = random.spawn(1)[0]

    @cached_property
    def _source_times(self) -> Matrix:
        """Scaled log times at each source: made when first asked for, since models are fitted for it."""
        return scaled(_source_times(self.sources, self._history.configs, self._codes, self._random))

    def candidates(self, fastest: Iterable[int]) -> Rows:
        """Open rows that are worth a look: a sample of the space, and all that is near the fastest rows."""
        looked = np.zeros(len(self._codes), dtype=bool)
        looked[self._sample] = True
        if len(self._sample) < len(self._codes):
            for row in fastest:
                looked |= (self._codes != self._codes[row]).sum(axis=1) <= _NEAR
        return np.flatnonzero(looked & self._history.open)

    def neighbours(self, rows: Iterable[int]) -> Rows:
        """Open rows that differ in one parameter from one of `rows`."""
        near = np.zeros(len(self._codes), dtype=bool)
        for row in rows:
            near |= (self._codes != self._codes[row]).sum(axis=1) == 1
        return np.flatnonzero(near & self._history.open)

    def points(self, view: ModelView, rows: Rows) -> Matrix:
        """A view's coordinates of rows, each column from 0 to 1."""
        return np.hstack([self._codes[rows], self._indicators[rows]]) if view.values else self._codes[rows]

    def ties(self, view: ModelView) -> tuple[Matrix, int]:
        """How a view's columns share length scales, as GaussianProcess takes it, and how many of the scales are alike.

        One scale for all; or one for each parameter, to which one that all share is added for its indicators.
        """
        own = self._codes.shape[1]
        if not view.values:
            return np.ones((own, 1)), 0
        ties = np.eye(own + len(self._of), own + 1)
        ties[own:] = 0.0
        ties[np.arange(own, len(ties)), self._of] = 1.0
        ties[own:, own] = 1.0
        return ties, own

    def trends(self, rows: Rows) -> Matrix:
        """Log times at each source and as predicted, each from about 0 to 1 over the space."""
        low, span = self._range
        predicted = (self.predicted(rows) - low) / span if span else np.zeros(len(rows))
        return np.column_stack([self._source_times[rows], predicted])

    @cached_property
    def has_trends(self) -> bool:
        """Whether any source or the prediction tells configs apart."""
        return self._source_times.shape[1] > 0 or self._range[1] > 0

    @cached_property
    def _range(self) -> tuple[float, float]:
        predicted = self.predicted(self._sample)
        return (float(predicted.min()), float(np.ptp(predicted))) if len(predicted) else (0.0, 0.0)

    def predicted(self, rows: Rows) -> Matrix:
        """The analytic model's log time of rows."""
        for row in rows[np.isnan(self._predicted[rows])]:
            self._predicted[row] = self._inputs.prediction(self._history.configs[row])
        return self._predicted[rows]

    def failing(self, rows: Rows) -> Matrix:
        """The inputs of the feasibility classifier: parameters and features."""
        return np.hstack([self._codes[rows], self._figures(rows)]).astype(np.float32)

    def _figures(self, rows: Rows) -> Matrix:
        for row in rows[~self._has[rows]]:
            values = self._inputs.features(self._history.configs[row])
            if self._features is None:
                self._features = np.zeros((len(self._codes), max(len(values), 1)))
            self._features[row, : len(values)] = values
        self._has[rows] = True
        return np.zeros((len(rows), 1)) if self._features is None else self._features[rows]


def _sources(inputs: SearchInputs, history: SearchHistory) -> list[PriorTimes]:
    """The nearest sources of those that have any config of this space."""
    useful = [known for known in inputs.known if any(history.row(config) is not None for config in known.seconds)]
    return sorted(useful, key=lambda known: known.distance)[:_SOURCES]


def _source_times(
    sources: Sequence[PriorTimes], configs: Sequence[Config], seen: Matrix, random: np.random.Generator
) -> Matrix:
    """Log seconds of each config at each source, imputed for configs not measured there."""
    columns = np.zeros((len(configs), len(sources)))
    for place, known in enumerate(sources):
        logs = np.log(np.array([known.seconds.get(config, np.nan) for config in configs]))
        missing = np.flatnonzero(np.isnan(logs))
        if len(missing):
            lessons = _training_subset(logs, random)
            logs[missing] = imputed(seen[lessons], logs[lessons], seen[missing], int(random.integers(2**31)))
        columns[:, place] = logs
    return columns


def _training_subset(logs: Matrix, random: np.random.Generator) -> Rows:
    order = np.argsort(logs, kind="stable")[: np.count_nonzero(~np.isnan(logs))]
    fastest, others = order[: _LESSONS // 2], order[_LESSONS // 2 :]
    return np.concatenate([fastest, random.permutation(others)[: _LESSONS // 2]])
