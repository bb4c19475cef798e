"""Who comes in: places, bytes and shares, and refusals with their numbers."""

from __future__ import annotations

import random
import threading

import pytest

from app.errors import Busy, NoRoom, OverShare, QueueFull
from app.services.matmul.admission import Admission, AdmissionLimits, AdmissionTicket
from app.services.principal import Principal

ONE, OTHER = Principal("one"), Principal("other")


def admission(queue: int = 4, share: float = 1.0, **devices: int) -> Admission:
    return Admission(AdmissionLimits(queue, 1000, devices or {"d": 500}, share))


def test_full_queue_is_refused_with_its_numbers() -> None:
    inside = admission(queue=2)
    first, _ = inside.admit(10), inside.admit(10)
    with pytest.raises(QueueFull) as refused:
        inside.admit(10)
    assert refused.value.facts == {"limit": 2, "size": 2, "retry_after": 1}
    with pytest.raises(QueueFull):
        inside.expect_place()
    first.leave_queue()
    inside.expect_place()
    inside.admit(10)


def test_bytes_are_held_until_the_end() -> None:
    inside = admission()
    ticket = inside.admit(400)
    ticket.leave_queue()
    assert inside.waiting == 0
    with pytest.raises(NoRoom) as refused:
        inside.admit(101)
    assert refused.value.facts == {"limit": 500, "size": 101, "lent": 400, "retry_after": 1}
    ticket.close()
    ticket.close()
    with inside.admitted(500):
        assert inside.waiting == 1
    assert inside.waiting == 0


def test_a_product_for_any_device_counts_on_the_one_with_the_most_room() -> None:
    inside = admission(queue=9, a=500, b=600)
    assert [inside.admit(200).device for _ in range(4)] == ["b", "a", "b", "a"]
    with pytest.raises(NoRoom):
        inside.admit(301)


def test_caller_holds_no_more_than_its_share() -> None:
    inside = admission(queue=4, share=0.5, d=10_000)
    tickets = [inside.admit(100, principal=ONE) for _ in range(2)]
    with pytest.raises(OverShare) as refused:
        inside.admit(1, principal=ONE)
    assert (refused.value.status, refused.value.facts["limit"], refused.value.facts["size"]) == (429, 2, 2)
    inside.admit(100, principal=OTHER).close()
    for ticket in tickets:
        ticket.leave_queue()
    with pytest.raises(OverShare) as refused:
        inside.admit(301, principal=ONE)
    assert (refused.value.facts["limit"], refused.value.facts["size"]) == (500, 501)
    inside.admit(301, principal=OTHER)


def test_retry_after_is_what_the_queues_pace_says() -> None:
    inside = admission(queue=100, d=10**9)
    for _ in range(10):
        inside.admit(1)
    assert inside.retry_after() == 1
    inside.learn(0.5)
    assert inside.retry_after() == 5
    for _ in range(50):
        inside.learn(30.0)
    assert inside.retry_after() == 60


def test_quiet_counts_from_the_last_product() -> None:
    inside = admission()
    ticket = inside.admit(1)
    assert inside.idle_seconds() == 0.0
    ticket.close()
    assert inside.idle_seconds() > 0.0


def test_whatever_comes_and_goes_the_account_is_even_at_the_end() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    inside, numbered = admission(queue=20, share=0.7, a=900, b=900), list[bool]()

    def storm(seed: int) -> None:
        draw, held = random.Random(seed), list[AdmissionTicket]()  # noqa: S311 - a storm is no secret
        for _ in range(500):
            try:
                held.append(inside.admit(draw.randint(1, 200), draw.choice((None, "a")), draw.choice((ONE, OTHER))))
            except Busy as refused:
                numbered.append({"limit", "size", "retry_after"} <= set(refused.facts))
            if held and draw.random() < 0.6:
                ticket = held.pop(draw.randrange(len(held)))
                draw.choice((ticket.leave_queue, ticket.close))()
                ticket.close()
        for ticket in held:
            ticket.close()

    threads = [threading.Thread(target=storm, args=(seed + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numbered)
    assert numbered
    assert inside.waiting == 0
    assert not any((*inside.slab_bytes.values(), *inside.device_bytes.values()))
