"""Statistics of interleaved samples: medians and their intervals, autocorrelation, ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from app.tuning.measure.racing import interval

_WAVES: Final = 6  # cosines from which the lasting part of the noise is known
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)  # 97.5 % points of Student's t with 1 to 6 degrees
_FEWEST: Final = 6  # samples: below that their dependence cannot be seen
_TRIM: Final = 0.4  # of samples, at each end
_LASTING: Final = 0.9  # the largest correlation from round to round that is believed
_SHARED: Final = 8  # rounds' worth of what all contenders' errors say of each
_INEFFICIENT: Final = 1.5  # the variance of the middle fifth's mean over that of the mean, for normal noise
_NORMAL: Final = NormalDist()

_Floats = npt.NDArray[np.float64]


def autocorrelated_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of two samples or more that were taken in turn and may depend on each other.

    Two order statistics, as far from the middle as the count of samples under the true median wanders. How far that is
    the samples' own signs about their median tell: projected on a few slow cosines, with a straight drift taken out,
    each square is one estimate of the long-run variance, and their number gives Student's t its degrees of freedom
    (Mueller, JBES 32, 2014; Lazarus, Lewis, Stock and Watson, JBES 36, 2018). Independent samples
    give the sign test's interval; correlated ones a wider one. Below six samples that of `measure`. Raises ValueError
    below two.
    """
    size = len(seconds)
    if size < _FEWEST:
        return interval(seconds)
    waves = _waves(size)
    ordered = np.sort(np.asarray(seconds, dtype=np.float64))
    signs = np.sign(np.asarray(seconds, dtype=np.float64) - np.median(ordered))
    variance = float(np.mean((waves @ signs) ** 2))
    reach = _STUDENT[len(waves) - 1] * math.sqrt(size * variance) / 2
    middle = (size - 1) / 2
    places = [max(0.0, middle - reach), min(size - 1.0, middle + reach)]
    low, high = np.interp(places, np.arange(size), ordered)
    return float(low), float(high)


@lru_cache(maxsize=64)
def _waves(size: int) -> _Floats:
    """Orthonormal rows of the slowest cosines, made orthogonal to a constant and a straight line."""
    count = min(_WAVES, size // 2 - 2)
    times = (np.arange(size) + 0.5) / size
    cosines = [np.cos(np.pi * number * times) for number in range(1, count + 2)]
    basis, _ = np.linalg.qr(np.stack([np.ones(size), times - 0.5, *cosines], axis=1))
    return np.ascontiguousarray(basis[:, 2 : 2 + count].T)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The order of contenders, `places` from the fastest, and the expected loss of choosing the first over each.

    `losses[i]` is a fraction of contender i's time; their sum bounds the expected regret of the choice.
    """

    places: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def regret(self) -> float:
        """A bound on the expected loss of the choice against the true best."""
        return sum(self.losses)


def rank(seconds: Sequence[Sequence[float]] | _Floats) -> Ranking:
    """Compare contenders, [contender][round], by samples of the same rounds: at least three.

    The statistic is the mean of the middle fifth of log seconds, less each round's own median. Boosted or throttled
    clocks may hold for a third of the samples of one contender and a tenth of another's, so that it has to be nearly as
    robust as the median; what a round did to all contenders cancels. What the choice loses to another is the mean of
    the positive part of a normal distribution, of the mean and error of their differences round by round. The error is
    of the winsorized samples (Yuen, Biometrika 61, 1974), as if eight more rounds had told of each contender what all
    of them show untrimmed, since a few samples may agree by chance; it grows with the correlation from round to round.
    """
    logs = np.log(np.asarray(seconds, dtype=np.float64))
    middles, _ = _middle(logs - np.median(logs, axis=0))
    places = np.argsort(middles, kind="stable")
    others, errors = _middle(logs - logs[places[0]])
    losses = [
        0.0 if number == places[0] else _loss(*pair) for number, pair in enumerate(zip(others, errors, strict=True))
    ]
    return Ranking(tuple(int(place) for place in places), tuple(losses))


def _middle(rows: _Floats) -> tuple[_Floats, _Floats]:
    """The mean of the middle fifth of each row, and its standard error."""
    size = rows.shape[1]
    cut = max(1, int(_TRIM * size))
    ordered = np.sort(rows, axis=1)
    kept = ordered[:, cut : size - cut]
    held = np.clip(rows, kept[:, :1], kept[:, -1:])
    held = held - held.mean(axis=1, keepdims=True)
    own = (held**2).sum(axis=1) / (size - 1) / size * (size / kept.shape[1]) ** 2
    shared = _INEFFICIENT / size * np.var(rows, axis=1, ddof=1).mean()
    lasting = _lasting(rows)
    variance = ((size - 1) * own + _SHARED * shared) / (size - 1 + _SHARED) * (1 + lasting) / (1 - lasting)
    return kept.mean(axis=1), np.sqrt(variance)


def _lasting(rows: _Floats) -> float:
    """The correlation from sample to sample, of all rows together; corrected for its bias in short ones."""
    size = int(rows.shape[1])
    spread = rows - rows.mean(axis=1, keepdims=True)
    squares = float((spread**2).sum())
    if not squares:
        return 0.0
    found = float((spread[:, 1:] * spread[:, :-1]).sum()) / squares
    unbiased: float = found + (1 + 4 * max(found, 0.0)) / size
    return min(max(unbiased, 0.0), _LASTING)


def _loss(behind: float, error: float) -> float:
    """The expected positive part of the first's time over that of one measured `behind` it, with a standard error."""
    if error <= 0:
        return max(0.0, -behind)
    ratio = behind / error
    return float(error * _NORMAL.pdf(ratio) - behind * _NORMAL.cdf(-ratio))
