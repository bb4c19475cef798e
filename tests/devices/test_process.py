from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import pytest

from app.devices.lease import Lease, Priority
from app.devices.process.process import WorkerProcess
from app.errors import ChildDied, ChildTimedOut, Closing, InternalError, LaunchFailed, NoDevice, NoRoom
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making
from tests.support.devices.process_lifetimes import alive, end_and_expect_no_children, start_parent
from tests.support.waiting import until


def test_a_call_runs_in_another_process_with_the_state_of_its_setup(make: Making) -> None:
    child = make()
    assert child.call(child_functions.echo, 41) == ("state", 41)
    assert child.call(child_functions.pid) == child.pid != os.getpid()
    assert child.generation == 1


def test_a_child_starts_without_any_device_library(make: Making) -> None:
    modules = make().call(child_functions.imported)
    assert not {"cupy", "pyopencl", "sqlalchemy", "fastapi"} & set(modules)


def test_blas_threads_of_a_child_rest_soon_by_default(make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    assert make(child_functions.hold, "kept").call(child_functions.variable, "OPENBLAS_THREAD_TIMEOUT") == "20"
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "26")
    assert make(child_functions.hold, "kept").call(child_functions.variable, "OPENBLAS_THREAD_TIMEOUT") == "26"


def test_our_errors_travel_with_their_facts_and_the_child_lives_on(make: Making) -> None:
    child = make()
    with pytest.raises(NoRoom, match="no room for that") as refusal:
        child.call(child_functions.refuse_politely)
    assert refusal.value.facts == {"limit": 1, "size": 2}
    child.call(child_functions.echo, 1)
    assert child.generation == 1


def test_an_exception_that_nobody_foresaw_is_logged_and_callers_hear_its_id(
    make: Making, caplog: pytest.LogCaptureFixture
) -> None:
    child = make()
    with pytest.raises(InternalError) as failure:
        child.call(child_functions.break_down)
    number, message = failure.value.facts["id"], failure.value.message
    assert failure.value.facts == {"id": number, "stage": "break_down"}
    assert message.endswith(f"failed during break_down: the log tells of error {number}")
    assert re.search(
        rf"error {number}:\nTraceback(.|\n)*in break_down(.|\n)*ZeroDivisionError: a bug of ours", caplog.text
    )
    with pytest.raises(InternalError) as failure:
        child.call(child_functions.answer_with_the_unspeakable)
    assert "cannot pickle" in str(failure.value.__cause__)
    assert child.call(child_functions.echo, 1) == ("state", 1)
    assert child.generation == 1


def test_a_fatal_error_replaces_the_child(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    with pytest.raises(LaunchFailed) as failure:
        child.call(child_functions.fail_for_good)
    assert failure.value.facts == {"fatal": True, "stage": "fail_for_good"}
    assert child.call(child_functions.pid) != before
    assert child.generation == 2


def test_call_over_its_deadline_is_killed_and_the_next_works(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    with pytest.raises(ChildTimedOut) as failure:
        child.call(child_functions.sleep, 3600, deadline=0.3)
    assert failure.value.facts == {"stage": "sleep", "deadline": 0.3}
    assert not alive(before)
    assert child.call(child_functions.echo, 1) == ("state", 1)


def test_call_ends_when_its_killed_process_is_gone(make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may keep a killed process for long; until then it may touch the memory that the call has lent it."""
    child, gone, wait = make(), threading.Event(), WorkerProcess.wait

    def late(run: WorkerProcess) -> None:
        gone.wait(10)
        wait(run)

    monkeypatch.setattr("app.devices.process.worker._PATIENCE", 0.05)
    child.call(child_functions.echo, 1)  # this process is waited for already
    monkeypatch.setattr(WorkerProcess, "wait", late)
    child.kill()
    child.call(child_functions.echo, 1)
    with ThreadPoolExecutor(1) as pool:
        try:
            called = pool.submit(child.call, child_functions.sleep, 60, deadline=0.1)
            assert not wait_for([called], timeout=0.4).done
        finally:
            gone.set()
        with pytest.raises(ChildTimedOut):
            called.result(10)


def test_the_stage_that_took_too_long_is_named(make: Making) -> None:
    child = make()
    assert child.call(child_functions.two_stages, 0.4, 0.0, deadline=0.2) == "done"
    with pytest.raises(ChildTimedOut, match=r"verify took more than 0\.2 s") as failure:
        child.call(child_functions.two_stages, 0.0, 60, deadline=10)
    assert failure.value.facts["stage"] == "verify"


def test_a_child_that_dies_says_what_of_and_is_replaced(make: Making) -> None:
    child = make()
    with pytest.raises(ChildDied, match="exit status 3") as failure:
        child.call(child_functions.exit_at_once)
    assert failure.value.facts["stage"] == "exit_at_once"
    assert child.call(child_functions.echo, 1) == ("state", 1)


def test_a_child_killed_while_idle_is_replaced_without_a_call(make: Making) -> None:
    child = make()
    child.call(child_functions.echo, 1)
    child.kill()
    until(lambda: child.generation >= 2, 5)
    assert child.call(child_functions.echo, 2) == ("state", 2)


def test_what_the_setup_raises_is_raised_by_the_call_each_time(make: Making) -> None:
    child = make(child_functions.refuse)
    for _ in range(2):
        with pytest.raises(NoDevice, match="nothing is plugged in"):
            child.call(child_functions.echo, 1)
    with pytest.raises(ChildDied, match="exit status 7"):
        make(child_functions.die_at_start).start()


def test_a_setup_that_cannot_travel_is_an_error_and_not_a_wait(make: Making) -> None:
    child = make(lambda: None)
    with pytest.raises(InternalError, match="cannot be set up: the log"):
        child.start()


def test_a_setup_that_hangs_is_killed(make: Making) -> None:
    child = make(child_functions.hang_at_start, starting=0.5)
    with pytest.raises(ChildTimedOut) as failure:
        child.start()
    assert failure.value.facts["stage"] == "start"


@pytest.mark.rotating
def test_a_lease_pauses_the_phase_around_it(make: Making) -> None:
    child = make()
    child.call(child_functions.lease_then_linger, 0.6, 0.1)
    with pytest.raises(ChildTimedOut, match="measure"):
        child.call(child_functions.lease_then_linger, 0.1, 60)


def test_a_lease_is_given_back_when_its_holder_is_killed(make: Making, lease: Lease) -> None:
    child = make()
    with pytest.raises(ChildTimedOut) as failure:
        child.call(child_functions.outlive_the_lease)
    assert failure.value.facts == {"stage": "measure", "deadline": 0.2}
    lease.acquire(Priority.MEASUREMENT, timeout=1)
    lease.release()


def test_waiting_for_the_device_has_no_deadline(make: Making, lease: Lease) -> None:
    child = make()
    child.start()
    lease.acquire(Priority.PRODUCT)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(child.call, child_functions.lease_once, deadline=0.3)
        time.sleep(0.7)
        assert not waiting.done()
        lease.release()
        assert waiting.result(5) > 0.3


def test_a_child_killed_while_it_waits_leaves_the_queue(make: Making, lease: Lease) -> None:
    child = make()
    child.start()
    with lease.held(Priority.PRODUCT), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(child.call, child_functions.lease_once)
        until(lambda: lease.waiting, 10)
        child.kill()
        with pytest.raises(ChildDied):
            waiting.result(5)
        assert lease.waiting == 0


def test_a_device_that_is_free_need_not_be_asked_for(
    make: Making, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = make()
    child.start()
    monkeypatch.setattr(lease, "queue", None)  # whoever asks is told that it cannot be called
    for _ in range(3):
        child.call(child_functions.lease_once, priority=Priority.PRODUCT, leased=True)
        assert lease.try_acquire(Priority.MEASUREMENT) is not None, "the answer gives it back"
        lease.release()


def test_device_given_at_once_is_free_during_a_first_phase(make: Making, lease: Lease) -> None:
    child = make()
    child.start()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(child.call, child_functions.compile_then_lease, 0.6, leased=True)
        time.sleep(0.2)
        with lease.held(Priority.MEASUREMENT):
            assert not work.done(), "the device is free while the child compiles"
        assert work.result(5) == "leased"


def test_taken_device_is_waited_for_by_a_leased_call(make: Making, lease: Lease) -> None:
    child = make()
    child.start()
    with ThreadPoolExecutor(1) as pool:
        with lease.held(Priority.MEASUREMENT):
            work = pool.submit(child.call, child_functions.lease_once, leased=True)
            time.sleep(0.3)
            assert not work.done()
        assert work.result(5) > 0.2


def test_a_lease_inside_a_lease_is_refused(make: Making) -> None:
    with pytest.raises(InternalError) as failure:
        make().call(child_functions.lease_twice)
    assert "leased already" in str(failure.value.__cause__)


@pytest.mark.slow
def test_a_product_waits_for_one_launch_of_a_measurement(make: Making) -> None:
    trials, products = make(), make()
    trials.start()
    products.start()
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(trials.call, child_functions.launch_and_offer, 10, 0.1, 1.0)
        time.sleep(0.25)
        waited = products.call(child_functions.lease_once, 0.3, priority=Priority.PRODUCT)
        assert not trial.done()
        longest_offer = trial.result(10)
    assert waited < 0.3
    assert longest_offer > 0.25, "the trial did not wait for the product"


def test_an_offer_renews_the_deadline(make: Making) -> None:
    assert make().call(child_functions.launch_and_offer, 6, 0.1, 0.4) < 0.1


@pytest.mark.rotating
def test_a_function_is_given_more_whenever_it_asks(make: Making, lease: Lease) -> None:
    child, given = make(), iter([[1, 2], [3], []])
    assert child.call(child_functions.sum_of_more, more=lambda: next(given)) == 6
    assert next(given, None) is None
    assert child.call(child_functions.sum_of_more) == 0, "nothing more is given to a call that has none"
    assert lease.try_acquire(Priority.PRODUCT) is not None


def test_what_fails_to_give_more_ends_the_call(make: Making) -> None:
    child = make()

    def fail() -> None:
        raise LaunchFailed("nothing is left to give")

    with pytest.raises(LaunchFailed, match="nothing is left"):
        child.call(child_functions.sum_of_more, more=fail)
    assert child.call(child_functions.sum_of_more, more=lambda: None) == 0, "it was replaced"


def test_calls_wait_for_each_other_and_the_better_priority_goes_first(make: Making) -> None:
    child = make()
    child.start()
    served: list[str] = []

    def call(name: str, priority: Priority, seconds: float) -> None:
        child.call(child_functions.sleep, seconds, priority=priority)
        served.append(name)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(call, "first", Priority.MEASUREMENT, 0.6)
        time.sleep(0.1)
        pool.submit(call, "measurement", Priority.MEASUREMENT, 0.2)
        until(lambda: child.waiting >= 1, 5, each=0.01)
        pool.submit(call, "product", Priority.PRODUCT, 0.2)
        until(lambda: child.waiting >= 2, 5, each=0.01)
    assert served == ["first", "product", "measurement"]


def test_a_closed_child_is_gone_and_refuses_calls(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(child.call, child_functions.sleep, 60)
        time.sleep(0.2)
        child.close()
        with pytest.raises(Closing):
            running.result(5)
    assert not alive(before)
    with pytest.raises(Closing):
        child.call(child_functions.echo, 1)
    child.close()


def test_what_a_child_prints_goes_to_standard_error(make: Making, capfd: pytest.CaptureFixture[str]) -> None:
    make().call(child_functions.speak, "from the child")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "from the child\n"


@pytest.mark.slow
def test_twenty_kills_leak_neither_a_descriptor_nor_a_process(make: Making) -> None:
    child = make()
    child.call(child_functions.echo, 0)
    before = child_functions.descriptors()
    pids = []
    for number in range(20):
        pids.append(child.call(child_functions.pid))
        child.kill()
        assert child.call(child_functions.echo, number) == ("state", number)
    assert child.generation == 21
    assert child_functions.descriptors() <= before
    assert not any(alive(pid) for pid in pids)
    assert sum(thread.name == "the child supervisor" for thread in threading.enumerate()) == 1


def test_a_terminal_interrupt_does_not_reach_the_child(make: Making) -> None:
    pid = make().call(child_functions.pid)
    assert os.getpgid(pid) == pid != os.getpgid(0)
    assert os.getsid(pid) == pid


PARENT = """
import sys, threading, time
from tests.support.devices import child_functions
from app.devices.process import Worker
child = Worker("the child", child_functions.hold, (None,))
idle = Worker("an idle child", child_functions.hold, (None,))
idle.start()
child.start()
threading.Thread(target=child.call, args=(child_functions.sleep, 60), daemon=True).start()
time.sleep(0.2)
print(child.pid, idle.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.rotating
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_no_child_outlives_its_parent_by_two_seconds(number: signal.Signals) -> None:
    end_and_expect_no_children(start_parent(PARENT), number)
