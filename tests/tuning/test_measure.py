"""The median's interval holds what it says, and sampling ends when it should: on clocks and noise of known truth."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf
from secrets import randbits

import numpy as np
import pytest

from app.tuning.measure import interval, measure

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


class Device:
    """Launches of a given length with noise, on a clock of its own that pauses and launches move on."""

    def __init__(self, seconds: float, noise: float = 0.0, overhead: float = 0.0) -> None:
        self.now, self.launches, self.rounds, self.calls = 0.0, 0, 0, 0
        self._seconds, self._noise, self._overhead = seconds, noise, overhead
        self._generator = seeded()

    def take(self, count: int) -> list[float]:
        taken = [self._seconds * exp(self._noise * self._generator.standard_normal()) for _ in range(count)]
        self.launches += count
        self.calls += 1
        self.now += sum(taken) + self._overhead
        return taken

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.rounds += 1
        self.now += seconds


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("size", [10, 15, 30, 60, 200])
def test_the_interval_covers_the_median_in_95_of_100_cases(noise: str, size: int) -> None:
    trials = 4000
    samples = NOISES[noise](seeded(), (trials, size))
    bounds = np.array([interval(row.tolist()) for row in samples])
    covered = np.mean((bounds[:, 0] <= MEDIANS[noise]) & (MEDIANS[noise] <= bounds[:, 1]))
    error = 4 * np.sqrt(0.95 * 0.05 / trials)  # the Monte Carlo's own, at four standard deviations
    assert 0.93 - error <= covered <= 0.97 + error, covered


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


def test_a_quiet_launch_is_measured_in_three_rounds_apart() -> None:
    device = Device(1e-3, noise=0.002)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert not timing.limited
    assert timing.half_width < 0.02
    assert device.rounds == 2  # the pauses between three rounds
    assert timing.ci95_ms[0] <= timing.median_ms <= timing.ci95_ms[1]
    assert timing.median_ms == pytest.approx(1.0, rel=0.02)


def test_a_noisy_launch_is_sampled_until_its_interval_is_narrow() -> None:
    device = Device(1e-4, noise=0.2)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert not timing.limited
    assert timing.half_width < 0.02
    assert timing.samples > 60


def test_a_launch_too_noisy_for_its_limit_says_so() -> None:
    device = Device(1e-2, noise=1.0)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert timing.limited
    assert timing.half_width >= 0.02
    assert device.now < 4 * 0.25 + 0.5


def test_waiting_for_others_does_not_cut_sampling_short() -> None:
    alone, beside = Device(1e-3, noise=0.05), Device(1e-3, noise=0.05, overhead=0.02)
    samples = [measure(device.take, 0.25, device.clock, device.pause).samples for device in (alone, beside)]
    assert samples[1] > 30


def test_sampling_ends_though_the_device_is_always_lent_to_others() -> None:
    device = Device(1e-3, noise=0.5, overhead=0.3)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert timing.limited
    assert timing.samples >= 3
    assert device.now < 2.5


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.249])
def test_at_least_three_samples_are_taken_below_the_limit(seconds: float) -> None:
    device = Device(seconds)
    assert measure(device.take, 0.25, device.clock, device.pause).samples >= 3


def test_a_launch_longer_than_the_limit_is_launched_twice_in_all() -> None:
    device = Device(3.0, noise=0.1)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert timing.samples == device.launches == 2
    assert timing.limited
    assert timing.ci95_ms[0] >= 0
    assert timing.ci95_ms[1] < inf


def test_short_launches_are_warmed_up_and_taken_in_batches() -> None:
    device = Device(5e-6, noise=0.01)
    timing = measure(device.take, 0.25, device.clock, device.pause)
    assert device.launches > timing.samples  # the warm-up's are no samples
    assert device.launches / device.calls > 10


def test_a_timer_too_coarse_to_see_a_launch_never_reads_nothing() -> None:
    device = Device(0.0)
    assert measure(device.take, 0.25, device.clock, device.pause).median_ms > 0


def test_stopping_when_narrow_still_covers_the_truth() -> None:
    """Looking again and again until the interval is narrow costs coverage: it must stay near what is promised."""
    covered = 0
    for _ in range(400):
        device = Device(1e-3, noise=0.08)
        low, high = measure(device.take, 0.25, device.clock, device.pause).ci95_ms
        covered += low <= 1.0 <= high
    assert covered >= 0.9 * 400, covered
