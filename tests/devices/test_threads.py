"""Threads of one process that share its cores: who computes, when nobody does, and on which core each stays."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.devices.threads import on_first_core, spread, wait_until_idle, workers


@contextmanager
def computing() -> Iterator[int]:
    """A thread that computes without the interpreter's lock; its id."""
    leave = threading.Event()
    thread = threading.Thread(target=work, args=(leave,))
    thread.start()
    try:
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        leave.set()
        thread.join()


def work(leave: threading.Event) -> None:
    """Compute until it is time to leave."""
    while not leave.is_set():
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)


def test_a_process_is_idle_once_its_other_threads_have_stopped() -> None:
    with computing():
        assert not wait_until_idle(0.02)
    assert wait_until_idle(5.0)


def test_the_workers_of_a_call_are_the_threads_that_compute_meanwhile() -> None:
    with computing() as thread:
        found = workers(lambda: time.sleep(0.1))
    assert thread in found
    assert threading.get_native_id() not in found
    assert thread not in workers(lambda: time.sleep(0.01))


def test_threads_that_are_spread_stay_off_the_first_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with computing() as thread:
        spread([thread])
        assert os.sched_getaffinity(thread) == {cores[1 % len(cores)]}
    spread([thread])  # it has ended, which is no error
    assert os.sched_getaffinity(0) == set(cores)


def test_the_caller_stays_on_the_first_core_inside_the_block_alone() -> None:
    cores = os.sched_getaffinity(0)
    with on_first_core():
        assert os.sched_getaffinity(0) == {min(cores)}
    assert os.sched_getaffinity(0) == cores
