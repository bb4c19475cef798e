"""A worker that hangs is found by its missing heartbeat and replaced; one that works without a heartbeat is not."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.devices.process import Worker
from app.devices.process.process import WorkerProcess
from app.devices.slab import Slab
from app.errors import ChildDied, ChildLost, ChildTimedOut, NoRoom
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making
from tests.support.waiting import until


def until_echo(child: Worker, limit: float) -> float:
    """Seconds until the child answers again."""
    started = time.monotonic()
    while True:
        try:
            child.call(child_functions.echo, 1, deadline=limit)
        except ChildDied:
            continue
        return time.monotonic() - started


def trouble(child: Worker) -> str | None:
    """Why it cannot begin a call now."""
    return child.trouble


@pytest.mark.rotating
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_stopped_child_is_replaced_within_five_seconds(make: Making, is_idle: bool) -> None:
    child = make()
    before = child.call(child_functions.pid)
    os.kill(before, signal.SIGSTOP)
    if is_idle:
        until(lambda: child.generation >= 2, 5)
    assert until_echo(child, 60) < 5
    assert child.call(child_functions.pid) != before
    assert child.hangs == 1


@pytest.mark.slow
def test_call_in_a_stopped_child_fails_by_a_cause_from_outside(make: Making) -> None:
    child = make()
    with pytest.raises(ChildDied, match="it was stopped for 2 s") as failure:
        child.call(child_functions.stop)
    assert failure.value.facts == {"stage": "stop", "outside": True}


@pytest.mark.slow
def test_a_stopped_child_is_told_of_before_it_is_killed(make: Making) -> None:
    child = make()
    child.call(child_functions.echo, 1)
    assert trouble(child) is None
    os.kill(child.pid or 0, signal.SIGSTOP)
    until(lambda: trouble(child) == "its process does not answer", 1.5, each=0.01)
    told = set[str | None]()

    def is_well() -> bool:
        told.add(trouble(child))
        return None in told

    until(is_well, each=0.001)
    assert told == {"its process does not answer", "its process is being replaced", None}


@pytest.mark.slow
def test_a_child_that_goes_on_in_time_is_not_replaced(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    for _ in range(2):
        os.kill(before, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(before, signal.SIGCONT)
        time.sleep(0.5)
    assert child.call(child_functions.pid) == before


@pytest.mark.slow
def test_a_call_that_sleeps_with_the_lock_is_a_hang(make: Making) -> None:
    child = make()
    child.start()
    started = time.monotonic()
    with pytest.raises(ChildTimedOut, match="it did nothing for") as failure:
        child.call(child_functions.sleep_with_the_lock, 60)
    assert failure.value.facts == {"stage": "sleep_with_the_lock"}
    assert time.monotonic() - started < 5
    assert child.call(child_functions.echo, 1) == ("state", 1)


@pytest.mark.slow
def test_work_that_keeps_the_lock_is_no_hang(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    assert child.call(child_functions.compute_with_the_lock, 3.0) >= 3.0
    assert child.call(child_functions.wait_with_the_lock, 3) == "ended"
    assert child.call(child_functions.pid) == before
    assert child.hangs == 0


@pytest.mark.slow
def test_a_child_that_stops_while_it_starts_is_replaced(make: Making) -> None:
    child = make()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(child.call, child_functions.echo, 1)
        os.kill(until(lambda: child.pid or 0, each=0.001), signal.SIGSTOP)
        assert called.result(10) == ("state", 1)
    assert child.hangs == 1


@pytest.mark.rotating
def test_calls_of_a_child_that_cannot_be_killed_are_refused_at_once(
    make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in an uninterruptible call of a driver: it may end later, and the child is replaced then."""
    child, gone, wait = make(), threading.Event(), WorkerProcess.wait

    def late(run: WorkerProcess) -> None:
        gone.wait(20)
        wait(run)

    child.call(child_functions.echo, 1)
    monkeypatch.setattr(WorkerProcess, "wait", late)
    child.kill()  # the process that is waited for already
    child.call(child_functions.echo, 1)
    monkeypatch.setattr("app.devices.process.worker._LOST", 0.5)
    with ThreadPoolExecutor(2) as pool:
        try:
            running = pool.submit(child.call, child_functions.sleep, 60, deadline=0.1)
            time.sleep(0.3)
            waiting = pool.submit(child.call, child_functions.echo, 2)
            with pytest.raises(ChildTimedOut):
                running.result(5)
            with pytest.raises(ChildLost):
                waiting.result(5)
            assert child.is_lost
            started = time.monotonic()
            with pytest.raises(ChildLost, match="does not end"):
                child.call(child_functions.echo, 3)
            assert time.monotonic() - started < 0.1
        finally:
            gone.set()
    until(lambda: trouble(child) is None, 10, meanwhile=lambda: trouble(child))
    assert child.call(child_functions.echo, 4) == ("state", 4)


def test_memory_that_a_lost_process_may_write_is_not_lent_again_before_its_end() -> None:
    slab, ended = Slab(4 * 4096), threading.Event()
    try:
        lent = slab.lend(2 * 4096)
        slab.hold_back(ended)
        slab.release(lent)
        slab.release(slab.lend(2 * 4096))  # what was free is lent on
        with pytest.raises(NoRoom):
            slab.lend(4 * 4096)
        ended.set()
        assert slab.lend(4 * 4096).nbytes == 4 * 4096
    finally:
        slab.close()
