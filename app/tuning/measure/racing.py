"""Racing: samples in turn, all timed alike, until a config is measured well enough or clearly slower than the best."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import ClassVar, Final

from app.tuning.measure.drift import DriftDetector
from app.tuning.outcome import Timing
from kernels.arithmetic import peak
from kernels.device import Device
from kernels.problem import Problem

EVENTS: Final = "events"  # a pair of the device's events around each launch
GRAPH: Final = "graph"  # the mean over about 2 ms of launches in one graph, their buffers rotating
_SHORT: Final = 50e-6  # seconds: about 1 us of a pair of events is 2 % of this
_LAUNCH: Final = 2e-6  # seconds that the shortest launch takes
_SPARE: Final = 16  # rounds that may be retaken besides one for each that is asked
NARROW: Final = 0.02  # of the median: the half-width that is asked
WARM: Final = 0.005  # seconds of launches before the first sample: clocks rise, caches and tables fill
MOST: Final = 10  # samples of a config in the search
LOSS: Final = 5e-4  # the chance of dropping a config that is as fast as the best, summed over the looks below
# By the number of samples: upper points of Student's t, and the chance to exceed them (see Noise).
LOOKS: Final = {1: (16.326, 2.5e-4), 2: (8.025, 1e-4), 3: (6.594, 5e-5), 5: (5.239, 5e-5), 7: (4.784, 5e-5)}
_UPPER: Final = 1.638  # the 90 % point of Student's t with 3 degrees of freedom
_PRIOR: Final = 0.05  # the noise that is assumed before any was seen
_WEIGHT: Final = 2  # configs' worth of it
_FINEST: Final = 0.005  # the least noise that is believed
_STUDENT: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % points of Student's t, by the number of samples
_TICK: Final = 1e-9  # an event timer's zero is less than this, and no launch takes nothing
_BATCH: Final = 20
_LONG: Final = 4.0  # times the limit: a sample that takes that long is enough by itself


def policy_of(problem: Problem, device: Device) -> str:
    """The policy of a problem on a device: graphs if a good launch takes under about 50 us, else events."""
    if device.platform == "cuda" and floor_seconds(problem, device) < _SHORT:
        return GRAPH
    return EVENTS


def floor_seconds(problem: Problem, device: Device) -> float:
    """Seconds that no launch takes less than: every byte moved once, every product by the fastest units there are."""
    return _LAUNCH + max(problem.bytes / device.limits.bandwidth, problem.flops / peak(problem, device))


def sample_interleaved(
    takes: Sequence[Callable[[], float]],
    reference: Callable[[], float],
    watch: DriftDetector,
    rounds: int,
    rng: random.Random,
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Sample every contender once a round; gives each one's seconds, and how many rounds were retaken.

    A round ends where the watch is disturbed after one of its samples, and is taken again whole, so that its samples
    are of the same moment. At most `rounds` + 16 are; after that, samples count however disturbed the device is.
    """
    seconds: list[list[float]] = [[] for _ in takes]
    retaken = kept = 0
    while kept < rounds:
        taken = _round(takes, reference, watch, rng, patient=retaken < rounds + _SPARE)
        if taken is None:
            retaken += 1
            continue
        kept += 1
        for samples, sample in zip(seconds, taken, strict=True):
            samples.append(sample)
    return tuple(map(tuple, seconds)), retaken


def _round(
    takes: Sequence[Callable[[], float]],
    reference: Callable[[], float],
    watch: DriftDetector,
    rng: random.Random,
    *,
    patient: bool,
) -> list[float] | None:
    """One sample of each contender; None if a sample was disturbed."""
    taken = [0.0] * len(takes)
    for number in rng.sample(range(len(takes)), len(takes)):
        taken[number] = takes[number]()
        if watch.disturbed(reference) and patient:
            return None
    return taken


@dataclass(slots=True)
class NoiseModel:
    """The noise of samples, learnt from the configs of a job that were sampled in full; kept between races.

    A config is judged by its fastest sample so far, since what disturbs a launch makes it slower. After k samples that
    one lies above the config's own median by more than q scales with the chance that Student's t with 3 k degrees of
    freedom exceeds q: a sample's tail falls no slower than with 3 degrees (the variance exists), and the smallest of k
    has k times its exponent. The looks at 1, 2, 3, 5 and 7 samples spend 2.5, 1, 0.5, 0.5 and 0.5 chances in 10,000:
    together the chance that a config as fast as the best is dropped (LOSS). The scale is the upper tenth of samples
    about their config's median. Launches may also be late now and then: a margin is never less than what single
    samples were late by so rarely that k of them are by that look's part of the chance; for the first look that is
    the latest seen until there are thousands. The best's own median may be too low (clocks boosted while it was
    taken): by as much as the lowest twentieth of samples lies below their config's median.
    """

    looks: ClassVar[tuple[int, ...]] = tuple(LOOKS)
    _deviations: list[float] = field(default_factory=list, repr=False)
    _configs: int = 0

    def learn(self, seconds: Sequence[float]) -> None:
        """Take in the samples of one config, in full."""
        middle = median(seconds)
        for sample in seconds:
            insort(self._deviations, math.log(sample / middle))
        self._configs += 1

    def margin(self, samples: int) -> float:
        """The ratio to the best's median above which the fastest of `samples` samples is clearly slower."""
        seen, (bound, chance) = self._deviations, LOOKS[samples]
        scale = low = late = 0.0
        if seen:
            scale, low = seen[int(0.9 * len(seen))] / _UPPER, -seen[len(seen) // 20]
            late = seen[-1 - int(len(seen) * chance ** (1 / samples))]
        variance = (self._configs * scale**2 + _WEIGHT * _PRIOR**2) / (self._configs + _WEIGHT)
        return math.exp(low + max(bound * math.sqrt(variance), bound * _FINEST, late))


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The samples of a race, as they were taken, and whether it ended because the config is clearly slower."""

    seconds: tuple[float, ...]
    dropped: bool


def race(
    take: Callable[[int], list[float]],
    best: float | None,
    limit: float,
    noise: NoiseModel | None = None,
    warm: float = 0.0,
    most: int = MOST,
) -> RaceResult:
    """Sample a config up to `most` times, dropping it as soon as it is clearly slower than the best's median, `best`.

    `take(n)` gives n samples' seconds. Samples of about `warm` seconds, 21 at most, are thrown away first; one that
    takes longer by itself counts. `limit` seconds of two samples or more end the race, and four times that of one. The
    bound on the chance of dropping the winner is `noise`'s, which learns from every race that is run in full.
    """
    noise = NoiseModel() if noise is None else noise
    seconds = _warmed(take, warm)
    for look in (*LOOKS, most):
        if look > len(seconds):
            seconds += _samples(take, min(look, most) - len(seconds))
        if best is not None and look in LOOKS and min(seconds) > best * noise.margin(look):
            return RaceResult(tuple(seconds), dropped=True)
        if len(seconds) >= most or sum(seconds) >= (limit if len(seconds) > 1 else _LONG * limit):
            break
    if len(seconds) >= most:
        noise.learn(seconds)
    return RaceResult(tuple(seconds), dropped=False)


def _warmed(take: Callable[[int], list[float]], warm: float) -> list[float]:
    """Warm up; returns the first sample if it took as long as warming up."""
    if not warm:
        return []
    first = _samples(take, 1)
    if first[0] >= warm:
        return first
    _samples(take, min(_BATCH, math.ceil((warm - first[0]) / first[0])))
    return []


def _samples(take: Callable[[int], list[float]], count: int) -> list[float]:
    return [max(sample, _TICK) for sample in take(count)]


def timing(seconds: Sequence[float], policy: str, *, dropped: bool = False) -> Timing:
    """The samples' median and its 95 % interval in milliseconds; `limited` if neither dropped nor narrow."""
    middle = median(seconds)
    if len(seconds) < 2:  # noqa: PLR2004  one sample says nothing of its spread
        return Timing(1e3 * middle, None, len(seconds), not dropped, dropped, policy)
    low, high = interval(seconds)
    limited = not dropped and not (high - low) / 2 < NARROW * middle
    return Timing(1e3 * middle, (1e3 * max(0.0, low), 1e3 * high), len(seconds), limited, dropped, policy)


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
