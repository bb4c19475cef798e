from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator

import pytest

from app.devices.lease import Lease, Priority
from tests.support.waiting import until


@pytest.fixture
def lease() -> Iterator[Lease]:
    lease = Lease()
    yield lease
    lease.close()


def _wait_until_waiting(lease: Lease, count: int) -> None:
    until(lambda: lease.waiting >= count, 5, each=0.001, meanwhile=lambda: f"{lease.waiting} wait")


def _served_in_order(lease: Lease, priorities: list[Priority]) -> list[int]:
    """Queue one thread after another while the lease is held; gives the order in which they were served."""
    served: list[int] = []

    def work(number: int, priority: Priority) -> None:
        with lease.held(priority):
            served.append(number)

    lease.acquire(Priority.PRODUCT)
    threads = []
    for number, priority in enumerate(priorities):
        threads.append(threading.Thread(target=work, args=(number, priority)))
        threads[-1].start()
        _wait_until_waiting(lease, number + 1)
    lease.release()
    for thread in threads:
        thread.join()
    return served


def test_a_product_goes_before_a_check_and_a_check_before_a_measurement(lease: Lease) -> None:
    order = [Priority.MEASUREMENT, Priority.CHECK, Priority.PRODUCT, Priority.MEASUREMENT, Priority.PRODUCT]
    assert _served_in_order(lease, order) == [2, 4, 1, 0, 3]


def test_within_one_priority_the_first_to_come_is_served_first(lease: Lease) -> None:
    assert _served_in_order(lease, [Priority.MEASUREMENT] * 12) == list(range(12))


def test_the_flag_is_up_exactly_while_a_better_priority_waits(lease: Lease) -> None:
    flag = mmap.mmap(lease.flag_fd, 4096, prot=mmap.PROT_READ)
    assert flag[0] == 0
    with lease.held(Priority.CHECK):
        worse = lease.queue(Priority.MEASUREMENT)
        equal = lease.queue(Priority.CHECK)
        assert flag[0] == 0
        better = lease.queue(Priority.PRODUCT)
        assert flag[0] != 0
        lease.leave(better)
        assert flag[0] == 0
        lease.leave(equal)
    assert worse.granted.is_set()
    assert flag[0] == 0
    lease.leave(worse)


def test_waiting_ends_with_the_timeout_and_leaves_no_place_behind(lease: Lease) -> None:
    with lease.held(Priority.PRODUCT):
        with pytest.raises(TimeoutError):
            lease.acquire(Priority.PRODUCT, timeout=0.05)
        assert lease.waiting == 0
    lease.acquire(Priority.MEASUREMENT, timeout=0.05)
    lease.release()


def test_giving_back_what_nobody_holds_is_an_error(lease: Lease) -> None:
    with pytest.raises(RuntimeError, match="nobody holds"):
        lease.release()


def test_only_one_holds_the_lease_at_a_time(lease: Lease) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lease.held(Priority.MEASUREMENT):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert lease.waiting == 0
