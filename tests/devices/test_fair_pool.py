"""Threads whose owners take turns."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait
from functools import partial

import pytest

from app.devices.fair_pool import FairThreadPool


def blocked(pool: FairThreadPool) -> threading.Event:
    """Keep the pool's only thread busy until the event is set."""
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait(20)

    pool.submit("first", work)
    assert begun.wait(20)
    return over


def test_owners_take_turns() -> None:
    pool, order = FairThreadPool(1, "fair"), list[str]()
    over = blocked(pool)
    names = ["a1", "a2", "a3", "b1", "c1", "c2"]
    futures = [pool.submit(name[0], partial(order.append, name)) for name in names]
    over.set()
    wait(futures, 20)
    pool.close()
    pool.join()
    assert order == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_cancelled_task_is_not_run_and_costs_no_other() -> None:
    pool, order = FairThreadPool(1, "fair"), list[str]()
    over = blocked(pool)
    given_up, kept = (pool.submit("a", partial(order.append, name)) for name in "xy")
    assert given_up.cancel()
    over.set()
    kept.result(20)
    assert order == ["y"]
    pool.close()
    pool.join()


def test_an_error_is_the_futures() -> None:
    pool = FairThreadPool(2, "fair")
    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 // 0).result(20)
    assert pool.submit("a", lambda: 3).result(20) == 3
    pool.close()
    pool.join()


def test_what_waits_at_the_end_is_cancelled() -> None:
    pool = FairThreadPool(1, "fair")
    over = blocked(pool)
    waiting = pool.submit("a", lambda: 1)
    pool.close()
    over.set()
    pool.join()
    with pytest.raises(CancelledError):
        waiting.result(20)
    with pytest.raises(RuntimeError):
        pool.submit("a", lambda: 1)
