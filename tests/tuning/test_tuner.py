"""The tuner's loop on a counted clock: what it attempts, in which order, and when it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.tuning.outcome import Accuracy, Measured, Outcome, Rejected, Timing
from app.tuning.tuner import Budget, best_of, tune
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.kernel import Kernel, Launch
from kernels.problem import Problem

PROBLEM = Problem(64, 48, 80)
KERNELS = tuple(CATALOGUE.values())
LIMITS = Limits(threads=256, shared_bytes=2**15, warp=1, sms=2, bandwidth=1e10, peak=1e11, peak64=5e10)
DEVICE = Device("opencl:0", "opencl", "a CPU", "x86", "1", "2", "3", "uuid", 2**33, LIMITS)


def legal(kernel: Kernel) -> int:
    return len(kernel.space.legal(PROBLEM, DEVICE))


class Attempts:
    """Stands for the device: remembers what was attempted; time passes with every attempt."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.launches: list[Launch] = []
        self.now, self._seconds = 0.0, seconds

    def __call__(self, launch: Launch) -> Outcome:
        self.launches.append(launch)
        self.now += self._seconds
        return outcome(launch)

    def clock(self) -> float:
        return self.now


def outcome(launch: Launch) -> Outcome:
    """Every fifth shape of a block is wrong; smaller blocks are faster."""
    if launch.threads % 5 == 1:
        return Rejected(launch.kernel, launch.config, "verify", "relative L2 error 1 exceeds 1e-6")
    milliseconds = 1.0 + launch.threads
    timing = Timing(milliseconds, (milliseconds, milliseconds), 3)
    return Measured(launch.kernel, launch.config, timing, Accuracy(1e-7, 1e-7))


def run(
    attempts: Callable[[Launch], Outcome],
    budget: Budget,
    saved: list[Outcome] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    strategy: str = "auto",
) -> list[Outcome]:
    return list(tune(KERNELS, PROBLEM, DEVICE, strategy, budget, 11, attempts, saved or [], clock))


@pytest.mark.parametrize("strategy", ["auto", "exhaustive", "random"])
def test_without_a_budget_every_legal_config_is_attempted_once(strategy: str) -> None:
    attempts = Attempts()
    outcomes = run(attempts, Budget(), strategy=strategy)
    tried = [(launch.kernel, launch.config) for launch in attempts.launches]
    assert len(tried) == len(set(tried)) == len(outcomes) == sum(map(legal, KERNELS))


def test_every_kernels_default_comes_first_then_the_kernels_take_turns() -> None:
    attempts = Attempts()
    run(attempts, Budget(trials=4))
    assert [launch.config for launch in attempts.launches[:2]] == [
        kernel.default(PROBLEM, DEVICE) for kernel in KERNELS
    ]
    assert [launch.kernel for launch in attempts.launches] == ["naive", "tiled"] * 4


def test_a_budget_of_trials_is_each_kernels_own() -> None:
    outcomes = run(Attempts(), Budget(trials=5))
    assert [len([one for one in outcomes if one.kernel == kernel.name]) for kernel in KERNELS] == [5, 5]


def test_a_kernel_that_is_exhausted_leaves_the_turns_to_the_others() -> None:
    outcomes = run(Attempts(), Budget(trials=legal(KERNELS[0]) + 10))
    counts = [len([one for one in outcomes if one.kernel == kernel.name]) for kernel in KERNELS]
    assert counts == [legal(KERNELS[0]), legal(KERNELS[0]) + 10]


def test_a_budget_of_seconds_covers_all_kernels() -> None:
    attempts = Attempts(seconds=1.0)
    assert len(run(attempts, Budget(seconds=7.0), clock=attempts.clock)) == 7


@pytest.mark.parametrize("budget", [Budget(trials=0), Budget(seconds=0.0), Budget(trials=1, seconds=0.5)])
def test_defaults_are_measured_even_when_the_budget_is_spent(budget: Budget) -> None:
    attempts = Attempts()
    outcomes = run(attempts, budget, clock=attempts.clock)
    assert [one.config for one in outcomes] == [kernel.default(PROBLEM, DEVICE) for kernel in KERNELS]


@pytest.mark.parametrize("done", [0, 1, 2, 3, 9, 20])
@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_a_resumed_tune_does_the_rest_and_nothing_twice(done: int, strategy: str) -> None:
    whole = run(Attempts(), Budget(trials=10), strategy=strategy)
    attempts = Attempts()
    rest = run(attempts, Budget(trials=10), saved=whole[:done], strategy=strategy)
    assert rest == whole[done:]
    assert not {(one.kernel, one.config) for one in whole[:done]} & {
        (launch.kernel, launch.config) for launch in attempts.launches
    }


def test_a_saved_default_is_neither_attempted_nor_yielded() -> None:
    attempts = Attempts()
    first = run(attempts, Budget(trials=1))
    assert run(attempts, Budget(trials=1), saved=first) == []
    assert len(attempts.launches) == len(KERNELS)


def test_a_default_that_the_space_refuses_is_rejected_by_the_rules_name() -> None:
    tiny = Device(
        "opencl:0", "opencl", "a CPU", "x86", "1", "2", "3", "uuid", 2**33, Limits(4, 16, 1, 1, 1.0, 1.0, 1.0)
    )
    attempts = Attempts()
    outcomes = list(tune(KERNELS, PROBLEM, tiny, "auto", Budget(), 1, attempts))
    assert {(one.kernel, getattr(one, "stage", None)) for one in outcomes} == {("naive", "space"), ("tiled", "space")}
    assert all("than the device allows" in getattr(one, "reason", "") for one in outcomes)
    assert not attempts.launches
    assert list(tune(KERNELS, PROBLEM, tiny, "auto", Budget(), 1, attempts, saved=outcomes)) == []


def test_an_outcome_is_yielded_before_the_next_is_attempted() -> None:
    attempts = Attempts()
    outcomes = tune(KERNELS, PROBLEM, DEVICE, "auto", Budget(), 1, attempts)
    for count in range(1, 6):
        next(outcomes)
        assert len(attempts.launches) == count


def test_the_best_is_the_fastest_of_ours_and_never_the_vendors() -> None:
    outcomes = run(Attempts(), Budget(trials=20))
    vendor = Measured("vendor", KERNELS[0].default(PROBLEM, DEVICE), Timing(1e-9, (0.0, 1.0), 3), Accuracy(0.0, 0.0))
    measured = [one for one in outcomes if isinstance(one, Measured)]
    best = best_of([*outcomes, vendor])
    assert best is not None
    assert best.timing.median_ms == min(one.timing.median_ms for one in measured)
    assert best.kernel != "vendor"


def test_where_nothing_was_measured_there_is_no_best() -> None:
    assert best_of([Rejected("naive", KERNELS[0].default(PROBLEM, DEVICE), "compile", "no")]) is None
