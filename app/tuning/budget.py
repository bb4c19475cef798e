"""What a tune may take, what of it a trial is forecast to take, and how the seconds are shared with the finals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FINALS: Final = (1.0, 5.0)  # seconds of finals at least, where the budget has them, and at most
_SEARCHING: Final = 0.8  # of the seconds: the rest is the finals'


TRIALS: Final = 64  # of a kernel by default
SECONDS: Final = 20.0  # of a shape by default


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a tune may take: trials, seconds with the finals included, and the gain that is not worth a search.

    A job's, a shape's or a kernel's: whoever holds it says which. None is the default of 64 trials a kernel and 20 s a
    shape; beside a `gain_percent`, at which the search of a kernel's space ends once its best is expected to be beaten
    by less, and for a kernel, None is no limit.
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
    """Seconds that one launch of a contender is expected to take, and those until it can be launched; 0: unknown."""

    launch: float = 0.0
    build: float = 0.0

    @property
    def trial(self) -> float:
        """Seconds of a trial at least: one launch is verified, one is timed."""
        return self.build + 2 * self.launch


@dataclass(slots=True)
class Deadline:
    """The budget as it is now, and the seconds spent of it; `reserve` are the least that the finals take."""

    budget: Callable[[], Budget]
    spent: Callable[[], float]
    reserve: float = 0.0

    def left(self) -> float:
        """Seconds until nothing may run any more."""
        seconds = self.budget().seconds
        return math.inf if seconds is None else seconds - self.spent()

    def searching(self) -> float:
        """Seconds until the search is to leave the rest to the finals."""
        seconds = self.budget().seconds
        if seconds is None:
            return math.inf
        return seconds - max((1 - _SEARCHING) * seconds, min(self.reserve, seconds / 2)) - self.spent()

    def finals(self, thorough: bool) -> tuple[float, float]:
        """Seconds of finals, a share of what the search took, one at least; and at most. Never more than are left.

        All that there may be where they are to be `thorough`.
        """
        least, most = FINALS
        left = max(0.0, min(most, self.left()))
        if thorough or self.left() == math.inf:
            return left, left
        return min(max(least, self.spent() * (1 / _SEARCHING - 1)), left), left
