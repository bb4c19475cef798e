"""Whole tunes and faulty kernels on a real device, in its trial child: each fault costs one trial and no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import cast

import pytest

from app.devices.fleet import Unit, open_fleet
from app.errors import ChildDied, ChildTimedOut, DeviceError
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, Measured, Outcome, Rejected
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring import trial
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.sources import source
from tests.support.tuning import fault_functions

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
def unit(request: pytest.FixtureRequest, binaries: Path) -> Iterator[Unit]:
    with open_fleet(request.param, binaries, 2**24) as fleet:
        yield fleet.unit()


def faulty(unit: Unit, body: str) -> Launch:
    """Naive's default launch with another text: `body` follows the sum that a thread has made of its element."""
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(PROBLEM, unit.device), PROBLEM, unit.device)
    return replace(launch, build=replace(launch.build, text=source("common/portable.h") + HEAD + body + "}"))


def attempt(unit: Unit, launch: Launch, problem: Problem = PROBLEM) -> Outcome:
    unit.prepare(launch.build)
    outcome: Outcome = unit.trials.call(trial.attempt, launch, trial.FixtureKey("job", problem, 3), None, LIMIT)
    return outcome


def vendors(unit: Unit, problem: Problem) -> Outcome:
    outcome: Outcome = unit.trials.call(trial.attempt, problem, trial.FixtureKey("job", problem, 3), None, LIMIT)
    return outcome


def is_well(unit: Unit) -> bool:
    return isinstance(attempt(unit, faulty(unit, RIGHT)), Measured)


@pytest.mark.rotating
@pytest.mark.drawn(2)
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


@pytest.mark.slow
def test_endless_kernel_is_killed_at_its_deadline(unit: Unit) -> None:
    endless = "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum;"
    with pytest.raises(ChildTimedOut) as failure:
        attempt(unit, faulty(unit, endless))
    assert failure.value.facts["stage"] == "launch"
    assert cast("float", failure.value.facts["deadline"]) < 10
    assert is_well(unit)


def test_a_kernel_that_writes_far_outside_costs_one_trial(unit: Unit) -> None:
    wild = "if (k > 1) c[(((INDEX)1) << 44) + col] = sum;"
    with pytest.raises(DeviceError) as failure:
        attempt(unit, faulty(unit, wild))
    assert isinstance(failure.value, ChildDied) or failure.value.facts.get("fatal")
    assert is_well(unit)


SLOW_ON_A_CPU = "".join(f"sum = sum * sum + {number}.0f; sum += a[{number} % k] * sum;" for number in range(20_000))


@pytest.mark.slow
def test_a_compilation_that_takes_too_long_costs_one_trial(unit: Unit) -> None:
    assert is_well(unit)
    before = unit.trials.pid
    with pytest.raises(ChildTimedOut) as failure:
        attempt(unit, faulty(unit, SLOW_ON_A_CPU + RIGHT))
    assert failure.value.facts["stage"] == "compile"
    assert is_well(unit)
    compiles_itself = unit.device.platform == "opencl"  # CUDA's compilers hold no device: the trial child lives on
    assert (unit.trials.pid != before) == compiles_itself


@pytest.mark.rotating
def test_a_shape_that_fits_nowhere_is_rejected_by_its_bytes(unit: Unit) -> None:
    huge = Problem(2**18, 2**18, 2**18)
    kernel = CATALOGUE["naive"]
    outcome = attempt(unit, kernel.launch(kernel.default(huge, unit.device), huge, unit.device), huge)
    assert isinstance(outcome, Rejected)
    assert (outcome.stage, outcome.reason.split(":")[0]) == ("launch", "out of memory")
    assert is_well(unit)


def test_child_without_memory_rejects_and_lives_on(unit: Unit) -> None:
    if unit.device.platform == "cuda":
        pytest.skip("CUDA reserves addresses without end: there a launch itself is made to run out")
    assert is_well(unit)
    large = Problem(4096, 4096, 16)  # a C that no memory which was freed before has room for
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(large, unit.device), large, unit.device)
    # The child has the binary by then: what it may run out of is memory for operands.
    assert isinstance(attempt(unit, kernel.for_problem(launch, PROBLEM), PROBLEM), Measured)
    unit.trials.call(fault_functions.limit_memory, 2**24)
    try:
        outcome = attempt(unit, launch, large)
    finally:
        unit.trials.call(fault_functions.limit_memory, None)
    assert isinstance(outcome, Rejected)
    assert "memory" in outcome.reason.lower() or "alloc" in outcome.reason.lower()
    assert is_well(unit)


@pytest.mark.cuda
@pytest.mark.parametrize("unit", ["cuda"], indirect=True)
def test_a_launch_that_runs_out_of_memory_costs_one_trial(unit: Unit) -> None:
    """Threads ask for half a megabyte each of local memory, while another process has most of the device's."""
    unit.products.call(fault_functions.hold_memory, 2**32)
    try:
        huge = "volatile REAL kept[120000]; for (int i = 0; i < 120000; i++) kept[i] = sum; sum = kept[(int)k];" + RIGHT
        outcome = attempt(unit, faulty(unit, huge))
    finally:
        unit.products.call(fault_functions.hold_memory, None)
    assert isinstance(outcome, Rejected)
    assert outcome.stage in {"compile", "launch"}  # the driver may want the memory when it loads the code
    assert "memory" in outcome.reason.lower() or "resources" in outcome.reason.lower()
    assert is_well(unit)


@pytest.mark.rotating
def test_a_child_that_is_killed_from_outside_costs_one_trial(unit: Unit) -> None:
    assert is_well(unit)
    before = unit.trials.pid
    assert before is not None
    endless = "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum + 1;"
    with ThreadPoolExecutor(1) as pool:
        dying = pool.submit(attempt, unit, faulty(unit, endless))
        sleep(0.5)
        os.kill(before, signal.SIGKILL)
        with pytest.raises(ChildDied, match="SIGKILL"):
            dying.result()
    assert is_well(unit)
    assert unit.trials.pid != before


@pytest.mark.rotating
def test_a_finalist_that_is_wrong_only_on_a_neighbour_is_told_where(unit: Unit) -> None:
    """Right for every k that is a multiple of 8: the others lose the last terms."""
    bench = trial.FixtureKey("job", PROBLEM, 3)
    head = HEAD.replace("i < k; i++", "i < k / 8 * 8; i++")
    right = faulty(unit, RIGHT)
    careless = replace(right, build=replace(right.build, text=source("common/portable.h") + head + RIGHT + "}"))
    assert isinstance(attempt(unit, careless), Measured)
    rejected = unit.trials.call(trial.stress_verify, careless, bench)
    assert isinstance(rejected, Rejected)
    assert rejected.stage == "verify"
    assert rejected.reason.startswith("numbers of 1x64x48x79: relative L2 error")
    batched = faulty(unit, RIGHT)
    assert unit.trials.call(trial.stress_verify, batched, bench) is None


@pytest.mark.slow
def test_small_tune_ends_with_a_best_beside_the_vendor(unit: Unit) -> None:
    kernels = [CATALOGUE["naive"], CATALOGUE["tiled"]]
    runner = TrialRunner(unit, trial.FixtureKey("job", PROBLEM, 3), lambda: False, lambda _: None)
    task = Task(kernels, PROBLEM, unit.device, "random", seed=1)
    *outcomes, final = list(tune(task, runner, lambda: Budget(trials=2, seconds=10)))
    assert [one.kernel for one in outcomes if not isinstance(one, FinalReport)][:3] == ["vendor", "tiled", "naive"]
    assert isinstance(final, FinalReport)
    assert final.best.timing.ci95_ms is not None
    assert final.best.timing.ci95_ms[0] <= final.best.timing.median_ms <= final.best.timing.ci95_ms[1]
    assert isinstance(final.vendor, Measured) or unit.vendor.name is None


@pytest.mark.rotating
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("shape", "trans_a", "trans_b", "dtype"),
    [
        ((33, 17, 5, 3), True, True, "float32"),
        pytest.param((1, 1, 1, 1), False, False, "float32", marks=pytest.mark.slow),
        pytest.param((33, 17, 5, 3), False, False, "float64", marks=pytest.mark.slow),
        ((7, 65, 40, 2), False, True, "float64"),
    ],
)
def test_batches_and_transpositions_are_verified_and_measured(
    unit: Unit, shape: tuple[int, int, int, int], trans_a: bool, trans_b: bool, dtype: str
) -> None:
    problem = Problem(*shape, dtype, trans_a=trans_a, trans_b=trans_b)
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(problem, unit.device), problem, unit.device)
    assert isinstance(attempt(unit, launch, problem), Measured)
    assert isinstance(vendors(unit, problem), Measured) or unit.vendor.name is None
