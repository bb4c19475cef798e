"""A job under way: what it may spend, that it may be raised until the end, and what it says of the time left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from app.services.tuning.progress import FINALS, JobProgress, ShapeProgress
from app.tuning.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running(budget: Budget, *expected: int) -> tuple[JobProgress, Clock]:
    clock = Clock()
    return JobProgress(budget, expected, lambda: False, clock), clock


def worked(shape: ShapeProgress, clock: Clock, trials: int, pace: float) -> Iterator[float | None]:
    for _ in range(trials):
        clock.now += pace
        yield shape.trial_finished()


def test_a_budget_that_says_nothing_is_the_contracts_default() -> None:
    budget = Budget().of_kernel(3)
    assert (budget.trials, budget.seconds, budget.gain_percent) == (64, 20.0, None)


def test_a_shapes_trials_are_shared_among_its_kernels_at_least_one_each() -> None:
    assert Budget(trials=100).of_kernel(3).trials == 33
    assert Budget(trials=2).of_kernel(3).trials == 1


def test_beside_a_gain_whatever_is_not_said_is_no_limit() -> None:
    budget = Budget(gain_percent=1.0).of_kernel(2)
    assert (budget.trials, budget.seconds, budget.gain_percent) == (None, None, 1.0)
    assert Budget(seconds=5.0, gain_percent=1.0).of_kernel(2).seconds == 5.0


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        (Budget(trials=200, seconds=60.0), Budget(trials=100, seconds=60.0)),
        (Budget(), Budget(trials=64)),
        (Budget(trials=128), Budget()),
        (Budget(gain_percent=1.0), Budget(gain_percent=2.0)),
        (Budget(gain_percent=1.0), Budget(trials=100, gain_percent=1.0)),
        (Budget(trials=10, seconds=5.0), Budget(trials=10, seconds=5.0, gain_percent=1.0)),
    ],
)
def test_more_trials_more_seconds_or_less_gain_is_the_stricter_budget(larger: Budget, smaller: Budget) -> None:
    assert larger.is_at_least(smaller, kernels=2)
    assert not smaller.is_at_least(larger, kernels=2) or larger.of_kernel(2) == smaller.of_kernel(2)


def test_more_of_one_and_less_of_another_covers_nothing() -> None:
    one, other = Budget(trials=200, seconds=5.0), Budget(trials=100, seconds=50.0)
    assert not one.is_at_least(other, kernels=1)
    assert not other.is_at_least(one, kernels=1)


def test_raised_budget_is_read_at_once_by_done_shapes_too() -> None:
    job, clock = running(Budget(trials=10), 10, 10)
    shape = job.begin(0, "cuda:0")
    assert shape.kernel_budget(1).trials == 10
    clock.now += 3
    shape.finish()
    assert job.pending_shapes() == [1]
    shape = job.begin(1, "cuda:0")
    assert job.increase_budget(Budget(trials=30), [30, 30])
    assert shape.kernel_budget(1).trials == 30
    shape.finish()
    assert job.pending_shapes() == [0]


def test_a_shape_that_is_taken_up_again_gets_the_seconds_that_are_left() -> None:
    job, clock = running(Budget(seconds=10.0), 10)
    shape = job.begin(0, "cuda:0")
    shape.kernel_budget(1)
    clock.now += 4
    shape.finish()
    assert job.increase_budget(Budget(seconds=25.0), [10])
    shape = job.begin(0, "cuda:0")
    assert shape.kernel_budget(1).seconds == pytest.approx(21.0)


def test_a_raise_that_the_search_has_not_seen_leaves_its_shape_unsettled() -> None:
    job, _ = running(Budget(trials=10), 10)
    shape = job.begin(0, "cuda:0")
    shape.kernel_budget(1)
    shape.enter(FINALS)
    assert job.increase_budget(Budget(trials=20), [20])
    shape.finish()
    assert job.pending_shapes() == [0]


def test_once_nothing_is_left_nothing_can_be_raised() -> None:
    job, _ = running(Budget(trials=10), 10)
    shape = job.begin(0, "cuda:0")
    shape.kernel_budget(1)
    shape.finish()
    assert job.pending_shapes() == []
    assert not job.increase_budget(Budget(trials=20), [20])


def test_the_time_left_is_the_budgets_until_there_is_a_pace() -> None:
    job, clock = running(Budget(trials=100, seconds=500.0), 100)
    shape = job.begin(0, "cuda:0")
    assert list(worked(shape, clock, 2, 0.5)) == [499.5, 499.0]
    told = shape.trial_finished()
    assert told is not None
    assert told < 100


def test_the_time_left_is_never_more_than_the_budgets() -> None:
    job, clock = running(Budget(seconds=10.0), 64, 64)
    shape = job.begin(0, "cuda:0")
    for told in worked(shape, clock, 12, 1.5):
        assert told is not None
        assert told <= 20 - job.elapsed


def test_what_the_shapes_before_left_is_shared_by_those_to_come() -> None:
    job, clock = running(Budget(seconds=10.0), 5, 5, 5)
    shares = []
    for number in range(3):
        shape = job.begin(number, "cuda:0")
        shares.append(shape.kernel_budget(1).seconds)
        clock.now += 4
        shape.finish()
    assert shares == [10.0, 13.0, 22.0]


def test_every_shape_has_what_one_trial_needs_and_an_even_part_of_the_rest() -> None:
    clock = Clock()
    job = JobProgress(Budget(seconds=10.0), [5, 5], lambda: False, clock, needs=[1.0, 15.0])
    shares = []
    for number in range(2):
        shape = job.begin(number, "cuda:0")
        shares.append(shape.kernel_budget(1).seconds)
        clock.now += 5
        shape.finish()
    assert shares == [3.0, 15.0]


def test_the_seconds_of_an_earlier_process_count() -> None:
    clock = Clock()
    job = JobProgress(Budget(seconds=10.0), [5], lambda: False, clock, spent=7.0)
    shape = job.begin(0, "cuda:0")
    clock.now += 1
    assert (shape.kernel_budget(1).seconds, job.elapsed) == (3.0, 8.0)


def test_end_of_budget_asks_then_kills_after_any_interruption() -> None:
    clock, stopped = Clock(), threading.Event()
    job = JobProgress(Budget(seconds=10.0), [5], stopped.is_set, clock, grace=lambda: 2.0)
    shape = job.begin(0, "cuda:0")
    assert shape.until().ask == 110.0
    assert 110.0 < shape.until().kill <= 110.5
    clock.now = 104.0
    stopped.set()
    first = shape.until()
    clock.now = 105.0
    assert first == shape.until() == (104.0, 106.0)


def test_the_time_left_falls_with_the_trials_and_counts_the_shapes_to_come() -> None:
    job, clock = running(Budget(trials=100, seconds=1000.0), 100, 100)
    shape = job.begin(0, "cuda:0")
    told = [seconds for seconds in worked(shape, clock, 50, 0.1) if seconds is not None]
    assert told == sorted(told, reverse=True)
    assert told[-1] == pytest.approx(50 * 0.1 + 100 * 0.1 + 2 * (8 * 0.1 + 2.5))
    shape.finish()
    shape = job.begin(1, "cuda:0")
    assert list(worked(shape, clock, 99, 0.1))[-1] == pytest.approx(0.1 + 8 * 0.1 + 2.5)
    assert shape.enter(FINALS) == pytest.approx(8 * 0.1 + 2.5)


def test_a_limit_of_seconds_bounds_the_time_left() -> None:
    job, clock = running(Budget(seconds=10.0), 64)
    shape = job.begin(0, "cuda:0")
    told = list(worked(shape, clock, 4, 1.0))
    assert told[-1] == pytest.approx(10.0 - 4.0)


def test_between_trials_the_time_left_passes() -> None:
    job, clock = running(Budget(trials=10, seconds=1000.0), 10)
    shape = job.begin(0, "cuda:0")
    assert job.eta_seconds() == 1000
    told = list(worked(shape, clock, 4, 1.0))[-1]
    assert job.eta_seconds() == told
    assert told is not None
    clock.now += 3
    assert job.eta_seconds() == pytest.approx(told - 3)
    clock.now += told
    assert job.eta_seconds() is None


def test_with_a_gain_alone_nobody_can_say_how_long_it_takes() -> None:
    job, clock = running(Budget(gain_percent=1.0), 5000)
    shape = job.begin(0, "cuda:0")
    assert set(worked(shape, clock, 20, 0.1)) == {None}


def test_trials_of_an_earlier_process_count_as_done() -> None:
    job, clock = running(Budget(trials=100, seconds=1000.0), 100)
    shape = job.begin(0, "cuda:0")
    shape.resumed(90)
    assert list(worked(shape, clock, 5, 1.0))[-1] == pytest.approx(5 * 1.0 + 8 * 1.0 + 5.0)


def test_two_devices_share_what_the_budget_leaves() -> None:
    job, clock = running(Budget(seconds=10.0), 5, 5, 5, 5)
    one, other = job.claim(lambda _: True, "cuda:0"), job.claim(lambda _: True, "cuda:1")
    assert one is not None
    assert other is not None
    assert (one.shape, other.shape) == (0, 1)
    assert (one.kernel_budget(1).seconds, other.kernel_budget(1).seconds) == (10.0, 10.0)
    clock.now += 4
    one.finish()
    assert job.elapsed == 8.0
    third = job.claim(lambda _: True, "cuda:0")
    assert third is not None
    assert third.kernel_budget(1).seconds == pytest.approx((40 - 4 - 10) / 2)
    told = {device.device: device for device in job.times().devices}
    assert (told["cuda:0"].shapes, told["cuda:0"].seconds, told["cuda:1"].seconds) == (1, 4.0, 4.0)


def test_shapes_of_all_devices_take_no_more_than_the_budget() -> None:
    job, clock = running(Budget(seconds=10.0), *[5] * 7)
    rng = np.random.default_rng(seed := int.from_bytes(os.urandom(4)))
    print(f"seed {seed}")
    under_way = dict[str, ShapeProgress]()
    while job.pending_shapes():
        for device in ("cuda:0", "cuda:1", "cuda:2"):
            claimed = None if device in under_way else job.claim(lambda _: True, device)
            if claimed is not None:
                under_way[device] = claimed
                claimed.kernel_budget(1)
        clock.now += rng.uniform(0.1, 3.0)
        for device, shape in list(under_way.items()):
            limit = shape.kernel_budget(1).seconds
            assert limit is not None
            if shape.elapsed >= limit or rng.random() < 0.3:
                shape.finish()
                del under_way[device]
    assert job.elapsed <= 70.0 + 7 * 3.0


def test_a_claimed_shape_is_no_other_devices() -> None:
    job, _ = running(Budget(trials=3), 3, 3)
    first = job.claim(lambda number: number == 1, "cuda:0")
    assert first is not None
    assert first.shape == 1
    assert job.claim(lambda number: number == 1, "cuda:1") is None
    first.give_up()
    again = job.claim(lambda number: number == 1, "cuda:1")
    assert again is not None


def test_a_fault_of_one_device_interrupts_all() -> None:
    job, _ = running(Budget(trials=3), 3, 3)
    shape = job.begin(0, "cuda:0")
    assert not shape.interrupted()
    job.failure = ValueError("a fault")
    assert shape.interrupted()
    assert job.claim(lambda _: True, "cuda:1") is None
