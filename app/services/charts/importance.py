"""How much each parameter of a kernel matters to its time on a problem: alone, and to a forest that foretells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import NotTuned
from app.services.charts.landscape import fastest_kernel
from app.services.charts.points import ConfigPoint
from app.tuning.search.encoding import codes
from app.tuning.search.posterior import imputed
from kernels.problem import Problem
from kernels.space import Config

FEWEST: Final = 64  # configs that a forest is grown from at least
_MOST: Final = 1000  # and at most: a second or two
_FOLDS: Final = 4
_SHUFFLES: Final = 3
_SEED: Final = 0

Vector = NDArray[np.float64]
Timed = tuple[tuple[Config, float], ...]  # each config and its milliseconds


@dataclass(frozen=True, slots=True)
class ParameterImportance:
    """A parameter's share of the variance of log time: explained by it alone, and lost where its values are shuffled.

    `shuffled` is the rise of a forest's squared error on configs that it has not seen (Breiman, Machine Learning,
    2001), in parts of the variance; None where the configs are too few for one.
    """

    name: str
    alone: float
    shuffled: float | None


@dataclass(frozen=True, slots=True)
class Importance:
    """A kernel's parameters that vary, the one that matters most first; `explained` is what the forest foretells."""

    kernel: str
    measured: int
    explained: float | None
    parameters: tuple[ParameterImportance, ...]


def importance(points: Sequence[ConfigPoint], kernel: str | None, problem: Problem) -> Importance:
    """Of a kernel's measured configs, by default of the fastest config's kernel; raises NotTuned if there are none."""
    name = kernel or fastest_kernel(points)
    timed = tuple((point.config, point.median_ms) for point in points if point.kernel == name and point.median_ms)
    if not timed:
        raise NotTuned(f"no config of {name} has been measured on {problem.key} here: tune it first")
    explained, parameters = _parameters(timed)
    return Importance(name, len(timed), explained, parameters)


@lru_cache(maxsize=32)
def _parameters(timed: Timed) -> tuple[float | None, tuple[ParameterImportance, ...]]:
    configs, logs = [config for config, _ in timed], np.array([log(ms) for _, ms in timed])
    columns = codes(configs)
    names = sorted(name for name in {name for config in configs for name in config} if _varies(configs, name))
    variance = float(logs.var())
    if not variance:
        return None, tuple(ParameterImportance(name, 0.0, None) for name in names)
    alone = [_between(column, logs) / variance for column in columns.T]
    if len(timed) < FEWEST:
        found = [ParameterImportance(name, share, None) for name, share in zip(names, alone, strict=True)]
        return None, tuple(sorted(found, key=lambda one: -one.alone))
    explained, lost = _shuffled(columns, logs)
    found = [ParameterImportance(*one) for one in zip(names, alone, lost, strict=True)]
    return explained, tuple(sorted(found, key=lambda one: -(one.shuffled or 0.0)))


def _varies(configs: Sequence[Config], name: str) -> bool:
    return len({config.get(name, 0) for config in configs}) > 1


def _between(column: Vector, logs: Vector) -> float:
    """The variance of the mean log times of a column's values."""
    means = np.empty(len(logs))
    for value in np.unique(column):
        means[column == value] = logs[column == value].mean()
    return float(means.var())


def _shuffled(columns: Vector, logs: Vector) -> tuple[float, list[float]]:
    """What a forest explains of the variance of configs held out, and what is lost by shuffling each column there."""
    random = np.random.default_rng(_SEED)
    chosen = random.permutation(len(logs))[:_MOST]
    columns, logs = columns[chosen], logs[chosen]
    width = columns.shape[1]
    whole, without = 0.0, np.zeros(width)
    for held in np.array_split(np.arange(len(logs)), _FOLDS):
        learnt = np.setdiff1d(np.arange(len(logs)), held)
        asked = [columns[held]]
        for place in range(width):
            for _ in range(_SHUFFLES):
                mixed = columns[held].copy()
                mixed[:, place] = random.permutation(mixed[:, place])
                asked.append(mixed)
        told = imputed(columns[learnt], logs[learnt], np.concatenate(asked), _SEED).reshape(len(asked), -1)
        errors = ((told - logs[held]) ** 2).sum(axis=1)
        whole += errors[0]
        without += errors[1:].reshape(width, _SHUFFLES).mean(axis=1)
    spread = float(((logs - logs.mean()) ** 2).sum())
    return float(1 - whole / spread), [float(each) for each in (without - whole) / spread]
