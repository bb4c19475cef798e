"""What is said of dependent samples is true: coverage, optimism, order and expected loss, on noise of known truth."""

from __future__ import annotations

from secrets import randbits

import numpy as np
import pytest

from app.tuning.measure.statistics import autocorrelated_interval, rank
from tests.support.tuning.synthetic_noise import FAMILIES


def seeded() -> np.random.Generator:
    seed = randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def covered(family: str, size: int, repeats: int, scale: float = 0.01) -> float:
    samples = np.exp(scale * FAMILIES[family](seeded(), repeats, size))
    bounds = np.array([autocorrelated_interval(row.tolist()) for row in samples])
    return float(np.mean((bounds[:, 0] <= 1) & (bounds[:, 1] >= 1)))


@pytest.mark.rotating
@pytest.mark.parametrize("family", ["white", "AR 0.6", "drift, AR 0.5"])
def test_the_interval_covers_the_truth_under_drift_and_autocorrelation(family: str) -> None:
    repeats = 1500
    error = 4 * np.sqrt(0.95 * 0.05 / repeats)
    assert 0.93 - error <= covered(family, 100, repeats) <= 0.97 + error


@pytest.mark.slow
@pytest.mark.parametrize("size", [50, 100, 200])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_noise_is_covered(family: str, size: int) -> None:
    repeats = 5000
    error = 4 * np.sqrt(0.95 * 0.05 / repeats)
    lowest = {50: 0.87, 100: 0.91}.get(size, 0.93) if family == "AR 0.8" else 0.93  # too few to see how long it lasts
    highest = 0.985 if family == "wave" else 0.97  # a wave's whole periods say nothing of the median
    assert lowest - error <= covered(family, size, repeats) <= highest + error


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 16, 25, 39])
def test_the_interval_holds_the_median_of_its_samples(size: int) -> None:
    samples = np.exp(0.5 * seeded().standard_normal(size)).tolist()
    low, high = autocorrelated_interval(samples)
    assert low <= np.median(samples) <= high


def test_correlated_samples_have_the_wider_interval() -> None:
    generator = seeded()
    widths = {}
    for family in ("white", "AR 0.8"):
        rows = np.exp(0.01 * FAMILIES[family](generator, 300, 100))
        bounds = np.array([autocorrelated_interval(row.tolist()) for row in rows])
        widths[family] = np.mean(bounds[:, 1] - bounds[:, 0])
    assert widths["AR 0.8"] > 2 * widths["white"]


def test_one_sample_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two samples"):
        autocorrelated_interval([1.0])


def test_what_a_round_does_to_all_cancels() -> None:
    generator = seeded()
    truth = np.array([1.0, 1.002, 1.004])[:, None]
    common = np.exp(0.05 * generator.standard_normal(20))
    found = rank(truth * common * np.exp(1e-4 * generator.standard_normal((3, 20))))
    assert found.places == (0, 1, 2)
    assert found.regret < 1e-6


def test_a_late_sample_does_not_decide() -> None:
    samples = np.ones((2, 12)) * np.array([[1.0], [1.01]])
    samples[0, ::4] = 3.0
    assert rank(samples).places == (0, 1)


@pytest.mark.rotating
@pytest.mark.parametrize("gap", [0.0, 0.002, 0.005])
@pytest.mark.parametrize("phi", ["white", "AR 0.6"])
def test_the_expected_loss_is_what_the_choice_loses(gap: float, phi: str) -> None:
    """Over many choices the regret that was expected is not under the regret there was."""
    generator, repeats, contenders, rounds = seeded(), 300, 5, 16
    truth = 1 + gap * np.arange(contenders)
    real, expected = [], []
    for _ in range(repeats):
        order = generator.permutation(truth)
        found = rank(order[:, None] * np.exp(0.01 * FAMILIES[phi](generator, contenders, rounds)))
        real.append(order[found.places[0]] - 1)
        expected.append(found.regret)
    print(f"regret {np.mean(real):.5f}, expected {np.mean(expected):.5f}")
    assert np.mean(real) <= 1.1 * np.mean(expected) + 4 * np.std(real) / np.sqrt(repeats)


def test_one_contender_stands_alone() -> None:
    found = rank([[1.0, 1.1, 1.0]])
    assert (found.places, found.regret) == ((0,), 0.0)
