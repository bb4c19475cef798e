"""ChildRunner: whatever a candidate does to the trial child is a value, and what kind of fault it was is known."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import cast

import pytest

from app.devices.fleet import Unit, open_fleet
from app.devices.process import NEVER, CallLimit
from app.errors import ChildDied, ChildTimedOut, CompileFailed, DeviceError, LaunchFailed, WrongResult
from app.observability.job_traces import JobTraces, chrome_trace
from app.observability.request_context import entered
from app.services.tuning import trial_runner
from app.services.tuning.trial_runner import Interrupted, TrialRunner, kind_of
from app.tuning.outcome import Measured, Outcome, Rejected
from app.worker.measuring.trial import FixtureKey
from kernels.problem import Problem
from kernels.space import Config
from tests.support.services.faulty_kernels import ENDLESS, RIGHT, WILD, naive
from tests.support.waiting import until

PROBLEM = Problem(64, 48, 80)


@pytest.fixture(scope="module")
def unit(binaries: Path) -> Iterator[Unit]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet.unit()


class Room:
    """A runner, with a switch that interrupts it and a list of the phases that it said begin."""

    def __init__(self, unit: Unit, interrupted: Callable[[], bool] | None = None) -> None:
        self.stopped = threading.Event()
        self.phases: list[str] = []
        self.unit = unit
        bench = FixtureKey("0123abcd", PROBLEM, 7)
        self.runner = TrialRunner(unit, bench, interrupted or self.stopped.is_set, self.phases.append)

    def attempt(self, body: str) -> Outcome:
        return self.runner.attempt(naive(self.unit, PROBLEM, body), None)

    def kind(self, body: str) -> tuple[str, str | None]:
        """The stage at which a body is rejected, and what kind of fault that is; the next candidate is well."""
        outcome = self.attempt(body)
        assert isinstance(outcome, Rejected), outcome
        kind = self.runner.kind(outcome)
        assert isinstance(self.attempt(RIGHT), Measured)
        return outcome.stage, kind


@pytest.fixture
def room(unit: Unit) -> Room:
    return Room(unit)


@pytest.mark.rotating
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("body", "stage", "kind"),
    [
        ("nonsense here;", "compile", "compile"),
        ("c[row * n + col] = sum * 1.01f;", "verify", "wrong"),
        pytest.param(RIGHT + "if (k > 1 && row == 0) c[m * n + col] = 1;", "verify", "wrong", marks=pytest.mark.slow),
        (ENDLESS, "launch", "timeout"),
        (WILD, "launch", "died"),
    ],
)
def test_a_faulty_kernel_costs_one_trial_and_its_kind_is_known(room: Room, body: str, stage: str, kind: str) -> None:
    assert room.kind(body) == (stage, kind)


def test_what_compilers_build_ahead_is_a_lane_of_the_jobs_trace(room: Room) -> None:
    """PoCL compiles in the device's own process, so that the future is ours here, as it is the compilers' of CUDA."""
    future, traces = Future[None](), JobTraces()
    ahead = cast("Unit", SimpleNamespace(width=8, ahead=lambda _: future))
    runner = TrialRunner(ahead, FixtureKey("job", PROBLEM, 7), lambda: False, lambda _: None)
    launch = naive(room.unit, PROBLEM, RIGHT)
    with entered(traces.recording("job", None)):
        runner.prepare(launch)
    assert not runner.is_built(launch)
    future.set_result(None)
    assert runner.is_built(launch)
    trace = traces.get("job")
    assert trace is not None
    (built,) = trace.work
    assert (built.name, built.lane, built.attributes["tilewise.kernel"]) == ("compile ahead", "compilers", "naive")
    names = [one["args"]["name"] for one in chrome_trace(trace, "title")["traceEvents"] if one["name"] == "thread_name"]
    assert "compilers" in {name.split(" ")[0] for name in names}


def test_a_build_that_ends_first_is_waited_for_and_an_interrupted_tune_waits_for_none(room: Room) -> None:
    futures = [Future[None](), Future[None]()]
    waiting, stopped = iter(futures), threading.Event()
    ahead = cast("Unit", SimpleNamespace(width=8, ahead=lambda _: next(waiting)))
    runner = TrialRunner(
        ahead,
        FixtureKey("job", PROBLEM, 7),
        stopped.is_set,
        lambda _: None,
        lambda: CallLimit(0.0) if stopped.is_set() else NEVER,
    )
    launches = [naive(room.unit, PROBLEM, body) for body in (RIGHT, ENDLESS)]
    for launch in launches:
        runner.prepare(launch)
    threading.Timer(0.05, futures[1].set_result, (None,)).start()
    runner.await_build(launches)
    assert [runner.is_built(launch) for launch in launches] == [False, True]
    threading.Timer(0.05, stopped.set).start()
    with pytest.raises(Interrupted):
        runner.await_build(launches[:1])


@pytest.mark.rotating
def test_a_child_that_we_kill_costs_one_trial(room: Room) -> None:
    assert isinstance(room.attempt(RIGHT), Measured)
    killer = threading.Timer(0.5, room.unit.trials.kill)
    killer.start()
    _, kind = room.kind(ENDLESS)
    assert kind == "died"
    killer.join()


def kill_outside(pid: int, delay: float) -> threading.Timer:
    """Have a process killed as the system does where it is out of memory."""
    timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


@pytest.mark.rotating
def test_child_killed_from_outside_is_not_held_against_the_config(room: Room) -> None:
    assert isinstance(room.attempt(RIGHT), Measured)
    pid = room.unit.trials.pid
    assert pid is not None
    # A device that takes long to compile something new: the child is killed in the middle of the attempt.
    killer = kill_outside(pid, 0.02)
    outcome = room.attempt(f"const int never_compiled_before_{pid} = 1; " + RIGHT)
    killer.join()
    assert room.unit.trials.pid != pid
    assert isinstance(outcome, Measured), outcome


@pytest.mark.rotating
def test_child_killed_from_outside_again_costs_one_trial_and_is_no_fault(room: Room) -> None:
    assert isinstance(room.attempt(RIGHT), Measured)
    pids: list[int] = []

    def new_pid() -> int:
        pid = room.unit.trials.pid
        is_new = pid not in pids and room.unit.trials.generation > len(pids) + before
        return pid if pid is not None and is_new else 0

    def kill_each() -> None:
        for _ in range(2):
            pids.append(until(new_pid, each=0.01))
            sleep(0.2)
            os.kill(pids[-1], signal.SIGKILL)

    before = room.unit.trials.generation - 1
    killer = threading.Thread(target=kill_each)
    killer.start()
    _, kind = room.kind(ENDLESS)
    killer.join()
    assert kind is None
    assert len(pids) == 2


def test_the_seconds_in_the_child_are_added_up(room: Room) -> None:
    began = monotonic()
    room.attempt(RIGHT)
    room.attempt("nonsense here;")
    assert 0 < room.runner.inside <= monotonic() - began


def test_the_vendors_library_is_attempted_as_a_contender(room: Room) -> None:
    outcome = room.runner.attempt(PROBLEM, None)
    assert isinstance(outcome, Measured)
    assert (outcome.kernel, outcome.config) == ("vendor", Config(()))


@pytest.mark.rotating
def test_a_kernel_that_is_right_on_plain_operands_only_is_found_out(room: Room) -> None:
    plain = "c[row * n + col] = sum != sum ? 0 : sum;"  # it swallows NaN
    launch = naive(room.unit, PROBLEM, plain)
    assert isinstance(room.runner.attempt(launch, None), Measured)
    found = room.runner.stress_verify(launch)
    assert found is not None
    assert (found.stage, room.runner.kind(found)) == ("verify", "wrong")
    assert room.runner.stress_verify(naive(room.unit, PROBLEM)) is None


def test_contenders_are_sampled_in_turn_with_phases_told_once(room: Room) -> None:
    launch = naive(room.unit, PROBLEM)
    room.runner.attempt(launch, None)
    assert room.phases == ["preparing", "search"]
    room.runner.stress_verify(launch)
    room.runner.finals()
    room.runner.finals()
    sample_interleaved = room.runner.sample([launch, PROBLEM], 4)
    assert [len(seconds) for seconds in sample_interleaved.seconds] == [4, 4]
    assert all(second > 0 for seconds in sample_interleaved.seconds for second in seconds)
    assert room.phases == ["preparing", "search", "finals"]


def test_long_rounds_are_asked_for_a_few_at_a_time_and_interrupted_between(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, is_whole = list[int](), True

    def interrupted() -> bool:
        looks.append(1)
        return not is_whole and len(looks) > 2

    room, launch = Room(unit, interrupted), naive(unit, PROBLEM)
    outcome = room.runner.attempt(launch, None)
    assert isinstance(outcome, Measured)
    monkeypatch.setattr(trial_runner, "_PATIENCE", 2.5 * outcome.timing.median_ms / 1e3)  # seconds of two rounds
    whole = room.runner.sample([launch], 5)
    assert [len(seconds) for seconds in whole.seconds] == [5]
    looks.clear()
    is_whole = False
    with pytest.raises(Interrupted):
        room.runner.sample([launch], 5)
    assert len(looks) == 3


def test_nothing_begins_once_the_tune_is_interrupted(room: Room) -> None:
    room.stopped.set()
    launch = naive(room.unit, PROBLEM, ENDLESS)
    for begin in (
        lambda: room.runner.attempt(launch, None),
        lambda: room.runner.stress_verify(launch),
        lambda: room.runner.sample([launch], 1),
    ):
        with pytest.raises(Interrupted):
            begin()
    assert room.runner.inside == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CompileFailed("no such type"), "compile"),
        (LaunchFailed("CL_OUT_OF_HOST_MEMORY"), "memory"),
        (LaunchFailed("cudaErrorMemoryAllocation: out of memory"), "memory"),
        (LaunchFailed("an illegal memory access was encountered"), "launch"),
        (ChildTimedOut("compile took more than 60 s", stage="compile"), "timeout"),
        (ChildDied("died during verify", stage="verify"), "died"),
        (ChildDied("died during start", stage="start"), None),
        (ChildTimedOut("start took more than 60 s", stage="start"), None),
        (WrongResult("the reference is off"), None),
        (DeviceError("failed: Traceback"), None),
    ],
)
def test_error_is_held_against_a_config_that_may_cause_it(error: DeviceError, kind: str | None) -> None:
    assert kind_of(error) == kind
