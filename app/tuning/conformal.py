"""Conformal bounds: how far a prediction may be out, by how far those that can be checked were.

Every known value is predicted from the others, and the errors, each over its own spread, bound the next one (Vovk et
al., Algorithmic Learning in a Random World, 2005; Lei et al., JASA 113, 2018), at the rank that also holds for this
very set of values (Vovk, 2012).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log, sqrt
from typing import Final

from app.tuning.kriging import Floats

COVERAGE: Final = 0.95  # of the predictions: how many the bound holds for
CONFIDENCE: Final = 0.8  # that it holds for so many, given the values that happen to be known
FEW: Final = 8  # errors below which they are no ground for a better prediction


def expected_value(value: float, spread: float, errors: Floats) -> float:
    """A prediction, corrected by the mean error of those that were checked."""
    centre = float(errors.mean()) if len(errors) else 0.0
    return value + (centre if len(errors) >= FEW else max(centre, 0.0)) * spread


def upper_bound(value: float, spread: float, errors: Floats, prior: float) -> float:
    """What a value does not exceed in 95 cases of 100; where errors are few it is widened by a share of the prior."""
    return value + (max(_quantile(errors), 0.0) * spread if len(errors) else 0.0) + unsure(len(errors)) * prior


def unsure(number: int) -> float:
    """What so many errors leave of a prior: 1 for none, 0 from 32 on."""
    return max(0.0, 1 - (1 - COVERAGE**number) / CONFIDENCE)


def _quantile(errors: Floats) -> float:
    """The 95 % quantile of errors with 80 % confidence; the largest error if there are too few."""
    rank, share = conformal_rank(len(errors))
    lower = errors[rank - 2] if rank > 1 else errors[rank - 1]
    return float(lower + share * (errors[rank - 1] - lower))


@lru_cache(maxsize=1024)
def conformal_rank(number: int) -> tuple[int, float]:
    """The order statistic (from 1) that reaches the confidence, and the share of the step up to it that is enough."""
    sure = 0.0
    # Twelve deviations below the mean of a binomial there is nothing of it.
    for rank in range(max(0, int(COVERAGE * number - 12 * sqrt(number))) + 1, number + 1):
        # That the share of errors below the rank-th of them is over the coverage: fewer than `rank` of them are.
        step = _chance(rank - 1, number)
        if sure + step >= CONFIDENCE:
            return rank, (CONFIDENCE - sure) / step
        sure += step
    return number, 1.0


def _chance(count: int, number: int) -> float:
    """The binomial probability that exactly `count` errors are covered, by its logarithm."""
    ways = lgamma(number + 1) - lgamma(count + 1) - lgamma(number - count + 1)
    return exp(ways + count * log(COVERAGE) + (number - count) * log(1 - COVERAGE))
