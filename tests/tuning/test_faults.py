"""Whole tunes and faulty kernels on a real device, in its trial child: each fault costs one trial and no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import pytest

from app.devices.fleet import Unit, open_fleet
from app.errors import ChildDied, ChildTimedOut, DeviceError
from app.tuning import trial
from app.tuning.outcome import Measured, Outcome
from app.tuning.tuner import Budget, best_of, tune
from kernels import CATALOGUE
from kernels.kernel import Launch, source
from kernels.problem import Problem

PROBLEM = Problem(64, 48, 80)
LIMIT = 0.05
# Every text does what it does only where k > 1 if the process itself suffers: a device warms up on a single element.
HEAD = """
KERNEL(BN, BM) matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
                      const INDEX m, const INDEX n, const INDEX k)
{
    const INDEX across = (n + BN - 1) / BN;
    const INDEX row = BLOCK / across * BM + THREAD_Y, col = BLOCK % across * BN + THREAD_X;
    if (row >= m || col >= n) return;
    REAL sum = 0;
    for (INDEX i = 0; i < k; i++) sum = FMA(a[row * k + i], b[i * n + col], sum);
"""
RIGHT = "c[row * n + col] = sum;"


@pytest.fixture(scope="module", params=["opencl", pytest.param("cuda", marks=pytest.mark.cuda)])
def unit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    with open_fleet(request.param, tmp_path_factory.mktemp("cache"), 2**24) as fleet:
        yield fleet.unit()


def faulty(unit: Unit, body: str) -> Launch:
    """Naive's default launch with another text: `body` follows the sum that a thread has made of its element."""
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(PROBLEM, unit.device), PROBLEM, unit.device)
    return replace(launch, build=replace(launch.build, text=source("portable.h") + HEAD + body + "}"))


def attempt(unit: Unit, launch: Launch, problem: Problem = PROBLEM) -> Outcome:
    unit.prepare(launch.build)
    outcome: Outcome = unit.trials.call(trial.attempt, launch, trial.Bench("job", problem, 3), LIMIT)
    return outcome


def is_well(unit: Unit) -> bool:
    return isinstance(attempt(unit, faulty(unit, RIGHT)), Measured)


@pytest.mark.parametrize(
    ("body", "stage", "reason"),
    [
        ("", "verify", "left 3072 elements unwritten"),
        ("if (row != 63 || col != 47) " + RIGHT, "verify", "left 1 element unwritten"),
        ("c[row * n + col] = sum * 1.001f;", "verify", "relative L2 error 0.001 exceeds"),
        ("c[row * n + col] = row == 5 && col == 7 ? sum + 0.05f : sum;", "verify", "relative L2 error"),
        (RIGHT + "if (k > 1 && row == 0) c[m * n + col] = 1;", "verify", "wrote outside C: 192 bytes past its end"),
        (RIGHT + "if (k > 1 && row == 0 && col == 0) c[-1] = 1;", "verify", "wrote outside C: 4 bytes before it"),
        ("c[col * m + row] = sum;", "verify", "relative L2 error 1."),
    ],
)
def test_a_wrong_kernel_is_rejected_with_its_reason(unit: Unit, body: str, stage: str, reason: str) -> None:
    outcome = attempt(unit, faulty(unit, body))
    assert not isinstance(outcome, Measured)
    assert outcome.stage == stage
    assert outcome.reason.startswith(reason)
    assert is_well(unit)


def test_a_text_that_does_not_compile_is_told_in_the_compilers_words(unit: Unit) -> None:
    try:
        outcome = attempt(unit, faulty(unit, "nonsense here;"))
        assert not isinstance(outcome, Measured)
        assert outcome.stage == "compile"
        reason = outcome.reason
    except DeviceError as error:  # on CUDA a compiler process says so before any trial
        reason = error.message
    assert "nonsense" in reason
    assert is_well(unit)


def test_a_kernel_that_never_ends_is_killed_at_its_deadline_and_the_next_trial_is_well(unit: Unit) -> None:
    started = monotonic()
    endless = "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum;"
    with pytest.raises(ChildTimedOut) as failure:
        attempt(unit, faulty(unit, endless))
    assert failure.value.facts["stage"] == "launch"
    assert monotonic() - started < 10
    assert is_well(unit)


def test_a_kernel_that_writes_far_outside_costs_one_trial(unit: Unit) -> None:
    wild = "if (k > 1) c[(((INDEX)1) << 44) + col] = sum;"
    with pytest.raises(DeviceError) as failure:
        attempt(unit, faulty(unit, wild))
    assert isinstance(failure.value, ChildDied) or failure.value.facts.get("fatal")
    assert is_well(unit)


def test_a_tune_of_a_small_shape_measures_every_kernel_and_the_vendors_library(unit: Unit) -> None:
    kernels = tuple(CATALOGUE.values())
    outcomes = list(
        tune(kernels, PROBLEM, unit.device, "random", Budget(trials=2), 1, lambda launch: attempt(unit, launch))
    )
    assert [one.kernel for one in outcomes] == [kernel.name for kernel in kernels] * 2
    assert all(isinstance(one, Measured) for one in outcomes), outcomes
    best = best_of(outcomes)
    assert best is not None
    assert best.timing.ci95_ms[0] <= best.timing.median_ms <= best.timing.ci95_ms[1]
    vendor = unit.trials.call(trial.attempt_vendor, PROBLEM, trial.Bench("job", PROBLEM, 3), LIMIT)
    assert isinstance(vendor, Measured) or unit.vendor.name is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "trans_a", "trans_b"),
    [((1, 1, 1, 1), False, False), ((33, 17, 5, 3), True, True), ((7, 65, 40, 2), False, True)],
)
def test_batches_and_transpositions_are_verified_and_measured(
    unit: Unit, dtype: str, shape: tuple[int, int, int, int], trans_a: bool, trans_b: bool
) -> None:
    problem = Problem(*shape, dtype, trans_a=trans_a, trans_b=trans_b)
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(problem, unit.device), problem, unit.device)
    assert isinstance(attempt(unit, launch, problem), Measured)
    vendor = unit.trials.call(trial.attempt_vendor, problem, trial.Bench("job", problem, 3), LIMIT)
    assert isinstance(vendor, Measured) or unit.vendor.name is None
