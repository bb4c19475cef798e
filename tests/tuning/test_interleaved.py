"""Heats: every contender once a round in random order, disturbed rounds taken again, and never for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from secrets import randbits

import numpy as np
import pytest

from app.tuning.measure.drift import DriftDetector
from app.tuning.measure.racing import sample_interleaved
from tests.support.tuning.synthetic_noise import Machine, slower

TRUTH = (1e-3, 1.5e-3, 2e-3)


def machine(scale: float = 0.005) -> Machine:
    seed = randbits(32)
    print(f"seed {seed}")
    return Machine(np.random.default_rng(seed), scale)


def run(
    device: Machine, rounds: int, watch: DriftDetector | None = None, order: list[int] | None = None
) -> tuple[tuple[tuple[float, ...], ...], int]:
    noted: list[int] = [] if order is None else order

    def noting(number: int) -> Callable[[], float]:
        def take() -> float:
            noted.append(number)
            return device.launch(TRUTH[number])

        return take

    takes = [noting(number) for number in range(len(TRUTH))]
    rng = random.Random(int(device.generator.integers(2**32)))  # noqa: S311  no secret
    return sample_interleaved(takes, device.kernel(1e-3), watch or DriftDetector(), rounds, rng)


def test_every_contender_has_a_sample_a_round() -> None:
    seconds, retaken = run(machine(), 50)
    assert [len(each) for each in seconds] == [50, 50, 50]
    assert retaken <= 2
    assert [np.median(each) for each in seconds] == pytest.approx(TRUTH, rel=0.01)


def test_a_rounds_order_is_random() -> None:
    order: list[int] = []
    run(machine(), 200, order=order)
    rounds = [tuple(order[at : at + 3]) for at in range(0, 600, 3)]
    counts = {one: rounds.count(one) for one in set(rounds)}
    assert len(counts) == 6
    assert min(counts.values()) > 10


@pytest.mark.parametrize("scale", [0.002, 0.01, 0.02])
def test_rounds_in_a_burst_are_taken_again(scale: float) -> None:
    device, watch = machine(scale), DriftDetector()
    run(device, 20, watch)
    device.slow = slower(device.now + 0.02, device.now + 0.06, 1.3)
    seconds, retaken = run(device, 40, watch)
    assert retaken >= 2
    for samples, truth in zip(seconds, TRUTH, strict=True):
        late = sum(sample > 1.2 * truth for sample in samples)
        assert late <= 1  # the burst's last moment may end before the reference is timed


def test_a_device_that_stays_slow_is_measured_as_it_is() -> None:
    device, watch = machine(), DriftDetector()
    run(device, 20, watch)
    device.slow = slower(device.now, np.inf, 1.2)
    seconds, retaken = run(device, 20, watch)
    assert 1 <= retaken <= 8
    assert watch.moved == 1
    assert np.median(seconds[0]) == pytest.approx(1.2 * TRUTH[0], rel=0.02)


class Always(DriftDetector):
    """A watch that nothing is quiet enough for."""

    def disturbed(self, take: Callable[[], float]) -> bool:
        take()
        return True


def test_a_heat_ends_however_disturbed_the_device_is() -> None:
    seconds, retaken = run(machine(), 5, Always())
    assert [len(each) for each in seconds] == [5, 5, 5]
    assert retaken == 21


def test_one_contender_and_none() -> None:
    device = machine()
    rng = random.Random(1)  # noqa: S311  no secret
    assert len(sample_interleaved([device.kernel(1e-3)], device.kernel(1e-3), DriftDetector(), 3, rng)[0][0]) == 3
    assert sample_interleaved([], device.kernel(1e-3), DriftDetector(), 3, rng) == ((), 0)
