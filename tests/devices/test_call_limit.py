"""A call that is to be over: it ends of itself between two launches, and where it does not its child is killed."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from app.devices.lease import Lease, Priority
from app.devices.process import NEVER, CallLimit, CallStopped
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making

GRACE = 0.5


class Switch:
    """Says that a call is to be over from the moment it is switched, and is killed half a second later."""

    def __init__(self) -> None:
        self.stop = NEVER

    def __call__(self) -> CallLimit:
        return self.stop

    def switch(self) -> None:
        self.stop = CallLimit(monotonic(), monotonic() + GRACE)

    def after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self.switch)
        timer.daemon = True
        timer.start()


def test_function_that_offers_the_device_ends_of_itself(make: Making, lease: Lease) -> None:
    child, switch = make(), Switch()
    before = child.call(child_functions.pid)
    switch.after(0.3)
    began = monotonic()
    with pytest.raises(CallStopped):
        child.call(child_functions.launch_until_told, 0.01, until=switch)
    assert monotonic() - began < 2
    assert child.call(child_functions.pid) == before
    assert lease.try_acquire(Priority.PRODUCT) is not None


@pytest.mark.rotating
def test_function_that_ignores_its_stop_is_killed(make: Making, lease: Lease) -> None:
    child, switch = make(), Switch()
    before = child.call(child_functions.pid)
    switch.after(0.1)
    began = monotonic()
    with pytest.raises(CallStopped):
        child.call(child_functions.sleep, 60.0, until=switch)
    assert monotonic() - began < 3
    assert child.call(child_functions.pid) != before
    assert lease.try_acquire(Priority.PRODUCT) is not None


def test_a_moment_that_is_known_before_ends_the_function_without_a_kill(make: Making) -> None:
    child = make()
    before = child.call(child_functions.pid)
    stop = CallLimit(monotonic() + 0.2, monotonic() + 5)
    with pytest.raises(CallStopped):
        child.call(child_functions.launch_until_told, 0.01, until=lambda: stop)
    assert stop.ask <= monotonic() < stop.kill
    assert child.call(child_functions.pid) == before


def test_a_call_that_waits_for_the_device_is_stopped_and_leaves_the_queue(make: Making, lease: Lease) -> None:
    child, switch = make(), Switch()
    before, held = child.call(child_functions.pid), lease.try_acquire(Priority.PRODUCT)
    assert held is not None
    switch.after(0.2)
    with pytest.raises(CallStopped):
        child.call(child_functions.lease_once, until=switch)
    assert lease.waiting == 0
    lease.leave(held)
    assert child.call(child_functions.lease_once) < GRACE
    assert child.call(child_functions.pid) == before


@pytest.mark.rotating
def test_a_call_that_waits_for_another_is_stopped_before_it_begins(make: Making) -> None:
    child, switch = make(), Switch()
    child.start()
    other = threading.Thread(target=child.call, args=(child_functions.sleep, 1.2))
    other.start()
    switch.after(0.2)
    with pytest.raises(CallStopped):
        child.call(child_functions.echo, 1, until=switch)
    assert other.is_alive()
    other.join()
    assert (child.waiting, child.generation) == (0, 1)


def test_a_call_that_waits_for_its_childs_start_is_stopped(make: Making) -> None:
    child, switch = make(child_functions.hang_at_start, starting=30.0), Switch()
    switch.after(0.2)
    began = monotonic()
    with pytest.raises(CallStopped):
        child.call(child_functions.echo, 1, until=switch)
    assert monotonic() - began < 2


def test_the_next_call_is_not_stopped_by_what_stopped_the_last(make: Making) -> None:
    child, over = make(), CallLimit(0.0, 0.0)
    with pytest.raises(CallStopped):
        child.call(child_functions.lease_once, until=lambda: over)
    assert child.call(child_functions.lease_once) < GRACE


class Deaf(threading.Condition):
    """A condition that is always notified in the instant of its timeout, and then says that it was not."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout) and timeout is None


def test_who_waits_for_a_process_sees_it_though_the_notification_was_lost(
    make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, until = make(), monotonic() + 20
    monkeypatch.setattr(child, "_changed", Deaf())
    assert child.call(child_functions.echo, 1, until=lambda: CallLimit(until, until)) == ("state", 1)
