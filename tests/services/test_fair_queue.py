"""However many products one principal has in a device's queue, another's is made next but one."""

from __future__ import annotations

import random
import secrets
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from app.services.matmul.device_queue import CancelToken, FairQueue, QueuedProduct
from app.services.matmul.service import MatmulService
from app.services.principal import Principal
from app.services.service import Service
from kernels.problem import Problem
from tests.support.waiting import until


def entry(principal: str, queue: Any = None) -> QueuedProduct:
    asked = cast("Any", SimpleNamespace(launch=None))
    return QueuedProduct(queue, asked, CancelToken(), may_batch=False, turn=threading.Event(), principal=principal)


def test_principals_take_turns_and_each_ones_products_keep_their_order() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - for tests
    queue, left = FairQueue(), list[QueuedProduct]()
    for _ in range(2000):
        if draw.random() < 0.55:
            left.append(entry(draw.choice("abc")))
            queue.append(left[-1])
        elif left and draw.random() < 0.2:
            gone = left.pop(draw.randrange(len(left)))
            assert gone in queue
            queue.remove(gone)
            assert gone not in queue
        elif left:
            foreseen = list(queue)
            taken = queue.popleft()
            assert taken is foreseen[0]
            assert taken is next(one for one in left if one.principal == taken.principal)
            left.remove(taken)
        assert len(queue) == len(left) == len(list(queue))


def test_ten_thousand_of_one_delay_anothers_by_one() -> None:
    queue = FairQueue()
    for _ in range(10_000):
        queue.append(entry("many"))
    queue.popleft()
    one = entry("one")
    queue.append(one)
    assert one in (queue.popleft(), queue.popleft())


def test_what_was_taken_back_goes_first() -> None:
    queue = FairQueue()
    first, second = entry("a"), entry("b")
    queue.append(second)
    queue.appendleft(first)
    assert list(queue) == [first, second]


def test_a_full_queue_of_one_principal_lets_anothers_product_through(service: Service) -> None:
    parts = service.fleet, service.best, service.quarantine, service.misses
    matmul = MatmulService(*parts, queue=99, max_bytes=2**25, vendor=False)
    queue = matmul.batcher.queue(service.fleet.unit())
    order: list[str] = []

    def make(principal: Principal) -> None:
        with matmul.reserve(Problem(8, 8, 8), principal=principal) as buffers:
            buffers.a[:], buffers.b[:] = np.eye(8), np.eye(8)
            matmul.multiply(buffers, None, "naive", CancelToken(lambda: order.append(principal.name)))

    assert queue.try_lead(entry("blocker", queue))
    with ThreadPoolExecutor(48) as pool:
        many = [pool.submit(make, Principal("many")) for _ in range(40)]
        until(lambda: len(queue) == 41, 30, each=0.005)
        one = pool.submit(make, Principal("one"))
        until(lambda: len(queue) == 42, 30, each=0.005)
        queue.finish([])
        for each in (*many, one):
            each.result()
    assert Counter(order) == {"many": 40, "one": 1}
    assert order.index("one") <= 2  # launches of another principal that went before it
