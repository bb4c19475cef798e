"""How long a launch takes, and how sure that is: samples in rounds until the median's interval is narrow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import Final

from app.tuning.outcome import Timing

NARROW: Final = 0.02  # of the median: the half-width that is asked
_STUDENT: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % points of Student's t, by the number of samples
_WARM: Final = 0.005  # seconds of launches before the first sample: clocks rise, caches and tables fill
_ROUNDS: Final = 10  # into which the limit is divided
_FEWEST_ROUNDS: Final = 3  # so that what passes within a round does not decide alone
_FEWEST: Final = 3
_BATCH: Final = 20
_PAUSE: Final = 0.004  # seconds between rounds
_PATIENCE: Final = 4  # of limits: wall time after which sampling ends even if the device was mostly lent to others
_TICK: Final = 1e-9  # an event timer's zero is less than this, and no launch takes nothing


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of two samples or more, in their unit.

    From six samples on by order statistics, distribution-free but for the interpolation between two of them that
    makes it 95 % and no more (Hettmansperger and Sheather, Statistics and Probability Letters 4, 1986). Below that no
    pair of order statistics reaches 95 %: Student's t about the mean. Raises ValueError below two samples.
    """
    size = len(samples)
    if size < 2:  # noqa: PLR2004  one sample says nothing of its spread
        raise ValueError("an interval takes two samples at least")
    if size in _STUDENT:
        reach = _STUDENT[size] * stdev(samples) / math.sqrt(size)
        return fmean(samples) - reach, fmean(samples) + reach
    rank, share = _ranks(size)
    ordered = sorted(samples)
    low = ordered[rank - 1] + share * (ordered[rank] - ordered[rank - 1])
    high = ordered[size - rank] - share * (ordered[size - rank] - ordered[size - rank - 1])
    return low, high


@lru_cache(maxsize=4096)
def _ranks(size: int) -> tuple[int, float]:
    """The order statistic (from 1) that bounds the interval below, and the share of the step to the next to go."""
    rank, outer, below = 0, 1.0, 0.0
    while True:
        below += math.exp(
            math.lgamma(size + 1) - math.lgamma(rank + 1) - math.lgamma(size - rank + 1) - size * math.log(2)
        )
        inner = 1 - 2 * below  # the coverage of [x_(rank+1), x_(size-rank)]
        if inner < 0.95:  # noqa: PLR2004  the 95 % of the whole module
            break
        rank, outer = rank + 1, inner
    way = (outer - 0.95) / (outer - inner)
    return rank, (size - rank) * way / (rank + (size - 2 * rank) * way)


def measure(
    take: Callable[[int], list[float]],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Timing:
    """Sample launches until the interval's half-width is under 2 % of the median, or `limit` seconds are used.

    `take(n)` launches n times back to back and gives each launch's seconds; batches of up to 20 short launches keep
    the host's own delays between them out of the device's clock. The limit is of launches, so that a device lent to
    others in between does not cut sampling short; four limits of `clock` end it in any case. At least three samples,
    or two where one launch takes longer than the limit (there the warm-up counts: it is a small part of it).
    """
    started = clock()
    first = take(1)[0]
    if first > limit:
        return _timing([first, *take(1)])
    samples: list[float] = []
    rounds, batch = 0, _batch(_warm_up(take, first), limit)
    while True:
        samples += [max(sample, _TICK) for sample in take(batch)]
        rounds += 1
        timing = _timing(samples)
        spent = sum(samples) >= limit or clock() - started >= _PATIENCE * limit
        if len(samples) >= _FEWEST and (spent or (rounds >= _FEWEST_ROUNDS and not timing.limited)):
            return timing
        pause(_PAUSE)


def _warm_up(take: Callable[[int], list[float]], first: float) -> float:
    """Launch for a few milliseconds; gives the last launch's seconds."""
    if first >= _WARM:
        return first
    return take(min(_BATCH, math.ceil(_WARM / max(first, _TICK))))[-1]


def _batch(seconds: float, limit: float) -> int:
    return max(1, min(_BATCH, int(limit / _ROUNDS / max(seconds, _TICK))))


def _timing(samples: Sequence[float]) -> Timing:
    """Milliseconds of the samples' seconds; limited as long as the interval is not narrow."""
    middle = median(samples)
    low, high = interval(samples) if len(samples) > 1 else (0.0, math.inf)
    limited = not (high - low) / 2 < NARROW * middle
    return Timing(1e3 * middle, (1e3 * max(0.0, low), 1e3 * high), len(samples), limited)
