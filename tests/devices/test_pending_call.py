"""Calls that a child is busy with while nobody waits: begun where nothing is in the way, and heard to the end."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest

from app.devices.lease import Lease, Priority
from app.devices.process import PendingCall, Worker
from app.errors import ChildDied, ChildTimedOut, LaunchFailed, NoRoom
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making


def heard(begun: PendingCall[Any], seconds: float = 10.0) -> bool:
    """Whether a child says something within so many seconds."""
    return bool(select.select([begun], [], [], seconds)[0])


def ready(make: Making) -> Worker:
    child = make()
    child.start()
    return child


def test_a_call_is_begun_and_finished_by_one_who_did_not_wait(make: Making) -> None:
    child = ready(make)
    for number in range(3):
        begun = child.begin(child_functions.echo, number)
        assert begun is not None
        assert heard(begun)
        assert begun.is_over()
        assert begun.finish() == ("state", number)


def test_nothing_is_begun_where_there_is_no_child_yet(make: Making) -> None:
    child = make()
    assert child.begin(child_functions.echo, 1) is None
    assert child.call(child_functions.echo, 2) == ("state", 2)
    begun = child.begin(child_functions.echo, 3)
    assert begun is not None
    assert begun.finish() == ("state", 3)


def test_a_call_sees_whether_others_wait_for_it(make: Making) -> None:
    child = ready(make)
    assert child.call(child_functions.until_waited_for, 0.05) is True, "nobody has said that none do"
    child.tell_waiting(others=False)
    for _ in range(2):  # in a process that replaced another, too
        assert child.call(child_functions.until_waited_for, 0.05) is False
        begun = child.begin(child_functions.until_waited_for, 10.0)
        assert begun is not None
        thread = threading.Thread(target=child.call, args=(child_functions.echo, 1))
        thread.start()
        assert begun.finish() is True
        thread.join(10)
        child.kill()
        child.start()
    begun = child.begin(child_functions.until_waited_for, 10.0)
    child.tell_waiting(others=True)
    assert begun is not None
    assert begun.finish() is True


def test_one_call_is_begun_at_a_time_and_others_wait_for_its_end(make: Making) -> None:
    child = ready(make)
    begun = child.begin(child_functions.sleep, 0.3)
    assert begun is not None
    assert child.begin(child_functions.echo, 1) is None
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(child.call(child_functions.echo, 2)))
    thread.start()
    assert heard(begun)
    assert not said
    begun.finish()
    thread.join(10)
    assert said == [("state", 2)]


def test_a_device_that_somebody_has_is_not_waited_for(make: Making, lease: Lease) -> None:
    child = ready(make)
    with lease.held(Priority.MEASUREMENT):
        assert child.begin(child_functions.lease_once, priority=Priority.PRODUCT) is None
    begun = child.begin(child_functions.lease_once, priority=Priority.PRODUCT)
    assert begun is not None
    assert lease.try_acquire(Priority.PRODUCT) is None, "the device is the call's from the start"
    assert begun.finish() < 0.1
    with lease.held(Priority.MEASUREMENT):
        pass


def test_what_names_a_phase_first_is_not_over_and_ends_as_any_call(make: Making) -> None:
    child = ready(make)
    begun = child.begin(child_functions.compile_then_lease, 0.2, priority=Priority.PRODUCT)
    assert begun is not None
    assert heard(begun)
    assert not begun.is_over()
    assert begun.finish() == "leased"
    assert child.call(child_functions.echo, 1) == ("state", 1)


def test_a_refusal_is_heard_at_the_end_and_the_child_lives_on(make: Making) -> None:
    child = ready(make)
    begun = child.begin(child_functions.refuse_politely)
    assert begun is not None
    assert heard(begun)
    assert not begun.is_over(), "only a value is"
    with pytest.raises(NoRoom):
        begun.finish()
    assert child.generation == 1
    assert child.call(child_functions.echo, 1) == ("state", 1)


def test_a_child_that_dies_is_replaced_and_says_what_of(make: Making) -> None:
    child = ready(make)
    for function, error in ((child_functions.exit_at_once, ChildDied), (child_functions.fail_for_good, LaunchFailed)):
        begun = child.begin(function)
        assert begun is not None
        assert heard(begun)
        assert not begun.is_over()
        with pytest.raises(error):
            begun.finish()
        assert child.call(child_functions.echo, 1) == ("state", 1)
    assert child.generation == 3


def test_a_deadline_holds_for_what_was_begun(make: Making) -> None:
    child = ready(make)
    begun = child.begin(child_functions.sleep, 3600, deadline=0.2)
    assert begun is not None
    assert not heard(begun, 0.1)
    with pytest.raises(ChildTimedOut):
        begun.finish()
    assert child.call(child_functions.echo, 1) == ("state", 1)


def test_the_end_is_seen_to_by_whoever_began(make: Making) -> None:
    begun = ready(make).begin(child_functions.echo, 1)
    assert begun is not None
    assert begun.then(lambda finish: [finish()]).then(lambda finish: (finish(), 2)).finish() == ([("state", 1)], 2)
