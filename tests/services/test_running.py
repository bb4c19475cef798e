"""A job under way: what it may spend, that it may be raised until the end, and what it says of the time left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from app.services.tuning.progress import FINALS, JobProgress
from app.tuning.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running(budget: Budget, *expected: int) -> tuple[JobProgress, Clock]:
    clock = Clock()
    return JobProgress(budget, expected, lambda: False, clock), clock


def worked(job: JobProgress, clock: Clock, trials: int, pace: float) -> Iterator[float | None]:
    for _ in range(trials):
        clock.now += pace
        yield job.trial_finished()


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
    job.begin(0)
    assert job.kernel_budget(1).trials == 10
    clock.now += 3
    job.shape_finished()
    assert job.pending_shapes() == [1]
    job.begin(1)
    assert job.increase_budget(Budget(trials=30), [30, 30])
    assert job.kernel_budget(1).trials == 30
    job.shape_finished()
    assert job.pending_shapes() == [0]


def test_a_shape_that_is_taken_up_again_gets_the_seconds_that_are_left() -> None:
    job, clock = running(Budget(seconds=10.0), 10)
    job.begin(0)
    job.kernel_budget(1)
    clock.now += 4
    job.shape_finished()
    assert job.increase_budget(Budget(seconds=25.0), [10])
    job.begin(0)
    assert job.kernel_budget(1).seconds == pytest.approx(21.0)


def test_a_raise_that_the_search_has_not_seen_leaves_its_shape_unsettled() -> None:
    job, _ = running(Budget(trials=10), 10)
    job.begin(0)
    job.kernel_budget(1)
    job.enter(FINALS)
    assert job.increase_budget(Budget(trials=20), [20])
    job.shape_finished()
    assert job.pending_shapes() == [0]


def test_once_nothing_is_left_nothing_can_be_raised() -> None:
    job, _ = running(Budget(trials=10), 10)
    job.begin(0)
    job.kernel_budget(1)
    job.shape_finished()
    assert job.pending_shapes() == []
    assert not job.increase_budget(Budget(trials=20), [20])


def test_the_time_left_is_the_budgets_until_there_is_a_pace() -> None:
    job, clock = running(Budget(trials=100, seconds=500.0), 100)
    job.begin(0)
    assert list(worked(job, clock, 2, 0.5)) == [499.5, 499.0]
    told = job.trial_finished()
    assert told is not None
    assert told < 100


def test_the_time_left_is_never_more_than_the_budgets() -> None:
    job, clock = running(Budget(seconds=10.0), 64, 64)
    job.begin(0)
    for told in worked(job, clock, 12, 1.5):
        assert told is not None
        assert told <= 20 - job.elapsed


def test_what_the_shapes_before_left_is_shared_by_those_to_come() -> None:
    job, clock = running(Budget(seconds=10.0), 5, 5, 5)
    shares = []
    for shape in range(3):
        job.begin(shape)
        shares.append(job.kernel_budget(1).seconds)
        clock.now += 4
        job.shape_finished()
    assert shares == [10.0, 13.0, 22.0]


def test_every_shape_has_what_one_trial_needs_and_an_even_part_of_the_rest() -> None:
    clock = Clock()
    job = JobProgress(Budget(seconds=10.0), [5, 5], lambda: False, clock, needs=[1.0, 15.0])
    shares = []
    for shape in range(2):
        job.begin(shape)
        shares.append(job.kernel_budget(1).seconds)
        clock.now += 5
        job.shape_finished()
    assert shares == [3.0, 15.0]


def test_the_seconds_of_an_earlier_process_count() -> None:
    clock = Clock()
    job = JobProgress(Budget(seconds=10.0), [5], lambda: False, clock, spent=7.0)
    job.begin(0)
    clock.now += 1
    assert (job.kernel_budget(1).seconds, job.elapsed) == (3.0, 8.0)


def test_end_of_budget_asks_then_kills_after_any_interruption() -> None:
    clock, stopped = Clock(), threading.Event()
    job = JobProgress(Budget(seconds=10.0), [5], stopped.is_set, clock, grace=lambda: 2.0)
    job.begin(0)
    assert job.until().ask == 110.0
    assert 110.0 < job.until().kill <= 110.5
    clock.now = 104.0
    stopped.set()
    first = job.until()
    clock.now = 105.0
    assert first == job.until() == (104.0, 106.0)


def test_the_time_left_falls_with_the_trials_and_counts_the_shapes_to_come() -> None:
    job, clock = running(Budget(trials=100, seconds=1000.0), 100, 100)
    job.begin(0)
    told = [seconds for seconds in worked(job, clock, 50, 0.1) if seconds is not None]
    assert told == sorted(told, reverse=True)
    assert told[-1] == pytest.approx(50 * 0.1 + 100 * 0.1 + 2 * (8 * 0.1 + 2.5))
    job.shape_finished()
    job.begin(1)
    assert list(worked(job, clock, 99, 0.1))[-1] == pytest.approx(0.1 + 8 * 0.1 + 2.5)
    assert job.enter(FINALS) == pytest.approx(8 * 0.1 + 2.5)


def test_a_limit_of_seconds_bounds_the_time_left() -> None:
    job, clock = running(Budget(seconds=10.0), 64)
    job.begin(0)
    told = list(worked(job, clock, 4, 1.0))
    assert told[-1] == pytest.approx(10.0 - 4.0)


def test_between_trials_the_time_left_passes() -> None:
    job, clock = running(Budget(trials=10, seconds=1000.0), 10)
    job.begin(0)
    assert job.eta_seconds() == 1000
    told = list(worked(job, clock, 4, 1.0))[-1]
    assert job.eta_seconds() == told
    assert told is not None
    clock.now += 3
    assert job.eta_seconds() == pytest.approx(told - 3)
    clock.now += told
    assert job.eta_seconds() is None


def test_with_a_gain_alone_nobody_can_say_how_long_it_takes() -> None:
    job, clock = running(Budget(gain_percent=1.0), 5000)
    job.begin(0)
    assert set(worked(job, clock, 20, 0.1)) == {None}


def test_trials_of_an_earlier_process_count_as_done() -> None:
    job, clock = running(Budget(trials=100, seconds=1000.0), 100)
    job.begin(0)
    job.resumed(90)
    assert list(worked(job, clock, 5, 1.0))[-1] == pytest.approx(5 * 1.0 + 8 * 1.0 + 5.0)
