"""The median's interval holds what it says, and races end when they should: on noise of known truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf, lgamma
from secrets import randbits
from statistics import median

import numpy as np
import pytest

from app.tuning.measure.racing import LOOKS, LOSS, NoiseModel, interval, race, timing

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.normal(1.0, 0.1, shape),
    "skewed": lambda generator, shape: generator.lognormal(0.0, 0.5, shape),
    "heavy": lambda generator, shape: 10 + generator.standard_t(3, shape),
}
MEDIANS = {"normal": 1.0, "skewed": 1.0, "heavy": 10.0}


def seeded() -> np.random.Generator:
    seed = randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


class Launches:
    """Launches of a true length with noise, the first of them boosted: faster than they will stay."""

    def __init__(self, generator: np.random.Generator, noise: Draw, seconds: float = 1e-3, boosted: int = 0) -> None:
        self.taken = 0
        self._generator, self._noise, self._seconds, self._boosted = generator, noise, seconds, boosted

    def take(self, count: int) -> list[float]:
        factors = self._noise(self._generator, (count,))
        self.taken += count
        number = range(self.taken - count, self.taken)
        return [self._seconds * f * (0.88 if n < self._boosted else 1) for n, f in zip(number, factors, strict=True)]


def quiet(scale: float) -> Draw:
    return lambda generator, shape: np.exp(scale * generator.standard_normal(shape))


def tailed(scale: float) -> Draw:
    return lambda generator, shape: np.exp(scale * generator.standard_t(3, shape))


def bursting(scale: float) -> Draw:
    """One launch in a hundred takes twice as long."""
    return lambda generator, shape: quiet(scale)(generator, shape) * (1 + (generator.random(shape) < 0.01))


RACED: dict[str, tuple[Draw, int]] = {
    "0.2 %": (quiet(0.002), 0),
    "1 %": (quiet(0.01), 0),
    "4 %": (quiet(0.04), 0),
    "1 %, heavy": (tailed(0.01), 0),
    "4 %, heavy": (tailed(0.04), 0),
    "1 %, bursts": (bursting(0.01), 0),
    "1 %, boosted": (quiet(0.01), 6),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("size", [10, 15, 30, 60, 200])
def test_the_interval_covers_the_median_in_95_of_100_cases(noise: str, size: int) -> None:
    trials = 4000
    samples = NOISES[noise](seeded(), (trials, size))
    bounds = np.array([interval(row.tolist()) for row in samples])
    covered = np.mean((bounds[:, 0] <= MEDIANS[noise]) & (MEDIANS[noise] <= bounds[:, 1]))
    error = 4 * np.sqrt(0.95 * 0.05 / trials)  # the Monte Carlo's own, at four standard deviations
    assert 0.93 - error <= covered <= 0.97 + error, covered


@pytest.mark.rotating
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_few_samples_of_normal_noise_are_covered_by_students_t(size: int) -> None:
    samples = NOISES["normal"](seeded(), (4000, size))
    bounds = np.array([interval(row.tolist()) for row in samples])
    assert 0.93 < np.mean((bounds[:, 0] <= 1) & (bounds[:, 1] >= 1)) < 0.97


def test_the_interval_holds_the_samples_own_median() -> None:
    generator = seeded()
    for size in range(2, 400):
        samples = NOISES["skewed"](generator, (size,)).tolist()
        low, high = interval(samples)
        assert low <= np.median(samples) <= high, size


def test_six_samples_are_bounded_a_little_inside_their_extremes() -> None:
    # [x1, x6] covers 96.875 %, [x2, x5] 78.125 %: a tenth of the way, and 5 x 0.1 / (1 + 4 x 0.1) of the step.
    assert interval([3.0, 1.0, 6.0, 2.0, 5.0, 4.0]) == pytest.approx((1 + 5 / 14, 6 - 5 / 14))


def test_one_sample_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two samples"):
        interval([1.0])


def test_thousands_of_samples_have_a_narrow_interval() -> None:
    low, high = interval(NOISES["normal"](seeded(), (5000,)).tolist())
    assert 0.99 < low < 1.0 < high < 1.01 or high - low < 0.01


def test_the_looks_spend_what_is_said() -> None:
    """The upper tails of Student's t with 3 k degrees of freedom, integrated, add up to the bound."""

    def upper(bound: float, degrees: int) -> float:
        constant = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / np.sqrt(degrees * np.pi)
        steps = bound * np.exp(np.linspace(0, 12, 200_001))
        heights = constant * (1 + steps**2 / degrees) ** (-(degrees + 1) / 2)
        return float(np.sum((heights[1:] + heights[:-1]) / 2 * np.diff(steps)))

    for look, (bound, chance) in LOOKS.items():
        assert upper(bound, 3 * look) == pytest.approx(chance, rel=0.01)
    assert sum(chance for _, chance in LOOKS.values()) == pytest.approx(LOSS)


def lost(noise: str, races: int) -> float:
    """How often a config that is exactly as fast as the best is dropped, after 30 that were sampled in full."""
    generator, (draw, boosted) = seeded(), RACED[noise]
    known = NoiseModel()
    for _ in range(30):
        race(Launches(generator, draw, boosted=boosted).take, None, inf, known)
    dropped = 0
    for number in range(races):
        best = median(Launches(generator, draw, boosted=boosted).take(10))
        dropped += race(Launches(generator, draw, boosted=boosted * (number % 2)).take, best, inf, known).dropped
    return dropped / races


@pytest.mark.slow
@pytest.mark.parametrize("noise", RACED)
def test_a_config_as_fast_as_the_best_is_hardly_ever_dropped(noise: str) -> None:
    races = 2000
    assert lost(noise, races) <= LOSS + 4 * np.sqrt(LOSS / races)


@pytest.mark.slow
@pytest.mark.parametrize("noise", RACED)
def test_a_winner_is_lost_no_more_often_than_is_said(noise: str) -> None:
    races = 20_000
    assert lost(noise, races) <= LOSS + 4 * np.sqrt(LOSS / races)


@pytest.mark.parametrize("noise", RACED)
def test_what_takes_three_times_as_long_is_dropped_after_few_samples(noise: str) -> None:
    generator, (draw, boosted) = seeded(), RACED[noise]
    known = NoiseModel()
    for _ in range(30):
        race(Launches(generator, draw, boosted=boosted).take, None, inf, known)
    slow = [Launches(generator, draw, 3e-3, boosted) for _ in range(50)]
    dropped = [race(one.take, 1e-3, inf, known).dropped for one in slow]
    assert sum(dropped) >= 48  # heavy tails make one fast now and then
    assert np.mean([one.taken for one in slow]) <= 2.5


def test_the_margin_narrows_with_what_is_known() -> None:
    generator, known = seeded(), NoiseModel()
    wide = [known.margin(look) for look in NoiseModel.looks]
    for _ in range(100):
        race(Launches(generator, quiet(0.002)).take, None, inf, known)
    narrow = [known.margin(look) for look in NoiseModel.looks]
    assert wide == sorted(wide, reverse=True)
    assert narrow == sorted(narrow, reverse=True)
    assert wide[0] > 2
    assert narrow[0] < 1.2
    assert narrow[-1] < 1.05


def test_an_undropped_config_has_ten_samples_in_the_order_they_were_taken() -> None:
    raced = race(iter_take(1e-3 * (1 + number / 1000) for number in range(10)), 1e-3, inf)
    assert raced.seconds == tuple(1e-3 * (1 + number / 1000) for number in range(10))
    assert not raced.dropped


def iter_take(samples: Iterator[float]) -> Callable[[int], list[float]]:
    return lambda count: [next(samples) for _ in range(count)]


def test_the_first_of_all_is_never_dropped() -> None:
    assert not race(Launches(seeded(), tailed(0.5)).take, None, inf).dropped


def test_a_limit_ends_sampling_with_two_samples_at_least() -> None:
    launches = Launches(seeded(), quiet(0.01), 1.0)
    assert len(race(launches.take, 1.0, 0.3).seconds) == 2
    assert len(race(launches.take, 1.0, 2.5).seconds) == 3
    assert race(launches.take, 0.1, 0.3).dropped


def test_a_race_cut_short_teaches_no_noise() -> None:
    known = NoiseModel()
    before = known.margin(1)
    race(Launches(seeded(), quiet(0.2), 1.0).take, None, 0.25, known)
    assert known.margin(1) == before


def test_short_launches_warm_up_and_long_ones_count() -> None:
    short, medium, long = (Launches(seeded(), quiet(0.001), seconds) for seconds in (1e-5, 1e-3, 1e-2))
    for launches in (short, medium, long):
        assert len(race(launches.take, None, inf, warm=5e-3).seconds) == 10
    assert (short.taken, long.taken) == (31, 10)
    assert 15 <= medium.taken <= 16


def test_a_timer_too_coarse_to_see_a_launch_never_reads_nothing() -> None:
    assert min(race(lambda count: [0.0] * count, None, inf).seconds) > 0


def test_a_timing_says_what_its_samples_do() -> None:
    one, many = timing([2e-3], "events"), timing([1e-3] * 9 + [2e-3], "graph")
    assert (one.median_ms, one.ci95_ms, one.samples, one.limited) == (2.0, None, 1, True)
    assert (many.median_ms, many.policy, many.limited) == (1.0, "graph", False)
    dropped = timing([3e-3], "events", dropped=True)
    assert (dropped.dropped, dropped.limited, dropped.half_width) == (True, False, None)
    assert timing([1e-3, 2e-3, 3e-3], "events").half_width == pytest.approx(4.303 / 3**0.5 / 4 + 0.5, rel=1e-3)
