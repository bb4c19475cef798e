"""The budget of a tune, the forecast of a trial, and the division of seconds between search and finals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

FINALS: Final = (1.0, 5.0)  # seconds of finals at least, where the budget has them, and at most
CLEARLY: Final = 1.5  # times slower than the untuned default is forecast: forecasts are not nearer than this
_SEARCHING: Final = 0.8  # of the seconds: the rest is the finals'
_LATELY: Final = 5  # trials


TRIALS: Final = 64  # of a kernel by default
SECONDS: Final = 20.0  # of a shape by default


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a tune, a shape or a kernel: trials, seconds including the finals, and expected gain in percent.

    The search of a kernel's space ends once its best is expected to be beaten by less than `gain_percent`. None is the
    default of 64 trials a kernel and 20 s a shape; beside a `gain_percent`, and for a kernel, it is no limit.
    """

    trials: int | None = None
    seconds: float | None = None
    gain_percent: float | None = None

    def of_kernel(self, kernels: int) -> Budget:
        """Of a shape's budget, each kernel's: an even share of the trials, at least one; defaults are filled in."""
        limited = self.gain_percent is None
        trials = (TRIALS if limited else None) if self.trials is None else max(1, self.trials // kernels)
        seconds = (SECONDS if limited else None) if self.seconds is None else self.seconds
        return Budget(trials, seconds, self.gain_percent)

    def is_at_least(self, other: Budget, kernels: int) -> bool:
        """Whether a shape's budget is at least as large as another in every limit."""
        mine, theirs = _as_limits(self.of_kernel(kernels)), _as_limits(other.of_kernel(kernels))
        return all(one >= another for one, another in zip(mine, theirs, strict=True))


def _as_limits(budget: Budget) -> tuple[float, float, float]:
    """Trials, seconds and -gain: the larger, the larger the budget."""
    return budget.trials or math.inf, budget.seconds or math.inf, -(budget.gain_percent or 0.0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected seconds of one launch of a contender, and of its compilation; 0: unknown."""

    launch: float = 0.0
    build: float = 0.0

    @property
    def trial(self) -> float:
        """The least seconds of a trial: one launch is verified, one is timed."""
        return self.build + 2 * self.launch


@dataclass(slots=True)
class Deadline:
    """The current budget and the seconds spent of it; `reserve` are the least seconds of the finals.

    `trials` are the seconds that the last trials took.
    """

    budget: Callable[[], Budget]
    spent: Callable[[], float]
    reserve: float = 0.0
    trials: deque[float] = field(default_factory=lambda: deque(maxlen=_LATELY))

    def left(self) -> float:
        """Seconds until the tune must end."""
        seconds = self.budget().seconds
        return math.inf if seconds is None else seconds - self.spent()

    def searching(self) -> float:
        """Seconds until the search must end, with the rest for the finals."""
        seconds = self.budget().seconds
        if seconds is None:
            return math.inf
        return seconds - max((1 - _SEARCHING) * seconds, min(self.reserve, seconds / 2)) - self.spent()

    def has_time(self) -> bool:
        """Whether a trial that takes the median of the last ones ends before the search must."""
        left = self.searching()
        return left > 0 and left >= (median(self.trials) if self.trials else 0.0)

    def finals(self, thorough: bool) -> tuple[float, float]:
        """The seconds of the finals and their maximum, both at most what is left.

        They are a share of the search's and at least one; with `thorough`, the maximum.
        """
        least, most = FINALS
        left = max(0.0, min(most, self.left()))
        if thorough or self.left() == math.inf:
            return left, left
        return min(max(least, self.spent() * (1 / _SEARCHING - 1)), left), left
