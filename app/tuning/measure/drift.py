"""Drift detection: whether the device is disturbed or throttled, from a reference kernel timed between trials."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Final

_SLOWDOWN: Final = math.log(1.10)  # what must not be missed
_STEP: Final = _SLOWDOWN / 2  # above the level: as far from the quiet device as from the slow one
_DEVIATIONS: Final = 3.5  # of a check's own noise: below that nothing is refused
_FALSE: Final = 0.002  # the chance that a check of a quiet device is over the step, by which its size is chosen
_SIZES: Final = (1, 3, 5, 7, 9)  # reference samples of a check
_LEVEL: Final = 15  # checks whose median is the level: it follows a drift over minutes
_SCALE: Final = 64  # checks from which their own noise is known, and how much of it lasts from one to the next
_SAMPLES: Final = 256  # from which it is known how often one is over the step
_PATIENCE: Final = 8  # refusals in a row after which the new level is the device's
_LOWER: Final = 4  # checks in a row so far below the level that the device has become faster
_MAD: Final = 1.4826  # the median absolute deviation, as a standard deviation of normal noise


class DriftDetector:
    """The reference kernel's level and noise, learnt from check to check; it lives as long as its device's child.

    A check is the median of 1 to 9 samples, as many as bring the chance that half of them lie 5 % over the level below
    0.2 %, from how often single ones did. It is refused where it is over what was expected by 5 % and by 3.5
    deviations of checks; what is expected is the median of 15 checks, and of the last one's deviation from it as much
    as usually lasts. Refusals in a row are at most 7: then the slow-down is the device's own level, and `moved` counts
    one up. A machine that is noisy throughout is not refused: its noise is its own.
    """

    def __init__(self) -> None:
        self.moved = 0
        self._checks: deque[float] = deque(maxlen=_SCALE)
        self._steps: deque[float] = deque([0.0], maxlen=_SCALE)
        self._over: deque[bool] = deque(maxlen=_SAMPLES)
        self._refused: list[float] = []
        self._lower: list[float] = []

    @property
    def level(self) -> float | None:
        """The seconds that the reference kernel takes on the device undisturbed; None before the first check."""
        return math.exp(self._level()) if self._checks else None

    def disturbed(self, take: Callable[[], float]) -> bool:
        """Time the reference kernel, `take()` seconds each, and say whether the samples beside it are to be redone."""
        samples = [math.log(max(take(), 1e-9)) for _ in range(self._size())]
        check = median(samples)
        expected = self._expected() if self._checks else check
        step, bound = check - expected, self._bound()
        if not self._refused:  # what lasts is counted once
            self._over.extend(sample - expected > _STEP for sample in samples)
            self._steps.append(step)
        if step <= bound:
            self._accept(check, lower=step < -bound)
            return False
        self._refused.append(check)
        if len(self._refused) < _PATIENCE:
            return True
        self._move(self._refused)
        self.moved += 1
        return False

    def _size(self) -> int:
        """Samples of the next check; nine of the first, which sets the level."""
        share = (sum(self._over) + 0.5) / (len(self._over) + 1)
        return next((size for size in _SIZES if _most_over(share, size) <= _FALSE), _SIZES[-1])

    def _level(self) -> float:
        return median(list(self._checks)[-_LEVEL:])

    def _expected(self) -> float:
        """The level, and of the last check's deviation what is left after the checks refused since."""
        middle = median(self._checks)
        deviations = [check - middle for check in self._checks]
        total = sum(one**2 for one in deviations)
        lasting = sum(one * two for one, two in pairwise(deviations)) / total if total else 0.0
        level = self._level()
        return level + max(0.0, lasting) ** (1 + len(self._refused)) * (self._checks[-1] - level)

    def _bound(self) -> float:
        return max(_STEP, _DEVIATIONS * _MAD * median(map(abs, self._steps)))

    def _accept(self, check: float, *, lower: bool) -> None:
        self._refused = []
        self._checks.append(check)
        self._lower = [*self._lower, check] if lower else []
        if len(self._lower) >= _LOWER:
            self._move(self._lower)

    def _move(self, checks: list[float]) -> None:
        self._checks = deque(checks, maxlen=_SCALE)
        self._refused, self._lower = [], []


def _most_over(share: float, size: int) -> float:
    """The chance that the median of `size` samples is over what one is with the chance `share`."""
    return sum(
        math.comb(size, over) * share**over * (1 - share) ** (size - over) for over in range(size // 2 + 1, size + 1)
    )
