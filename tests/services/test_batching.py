"""Small products that wait together are made by one launch, where that is faster: bit for bit what each is alone."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.devices.lease import Priority
from app.devices.process import Worker
from app.dtypes import Array
from app.errors import Cancelled, TilewiseError
from app.services.matmul import batching, device_queue
from app.services.matmul.batching import WAIT, BatchCostModel
from app.services.matmul.buffers import Product
from app.services.matmul.device_queue import CancelToken, DeviceQueue, QueuedProduct
from app.services.matmul.service import MatmulService
from app.services.service import Service
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels import CATALOGUE
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.devices.process_lifetimes import processor_seconds
from tests.support.services import batch_functions
from tests.support.waiting import until

SEED = 20261121


class Eager(BatchCostModel):
    """Takes it for granted that together is faster."""

    def best(self, device: Device, launch: Launch, together: Mapping[int, Launch]) -> int:
        del device, launch
        return max(together, default=1)


@dataclass
class One:
    """A product that is asked for in a thread."""

    a: Array
    b: Array
    claim: CancelToken
    c: Array | None = None
    product: Product | None = None
    error: TilewiseError | None = None


@pytest.fixture
def matmul(service: Service) -> MatmulService:
    parts = service.fleet, service.best, service.quarantine, service.misses
    return MatmulService(*parts, queue=99, max_bytes=2**25, vendor=False, max_batch=64, costs=Eager())


@contextmanager
def busy(service: Service) -> Iterator[None]:
    """The device is at somebody else's work inside the block."""
    entered, leave = threading.Event(), threading.Event()
    worker = service.fleet.unit().products
    assert isinstance(worker, Worker)

    def hold() -> None:
        with worker.calls.held(Priority.PRODUCT):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def operands(problem: Problem, count: int, rng: np.random.Generator) -> list[One]:
    stack = (problem.batch,) if problem.batch > 1 else ()

    def drawn(shape: tuple[int, int]) -> Array:
        return rng.standard_normal((*stack, *shape)).astype(problem.dtype)

    return [One(drawn(problem.a_shape), drawn(problem.b_shape), CancelToken()) for _ in range(count)]


def multiply(matmul: MatmulService, problem: Problem, one: One, kernel: str | None = None) -> None:
    with matmul.reserve(problem) as placed:
        placed.a[...], placed.b[...], placed.c[...] = one.a, one.b, np.nan
        try:
            one.product = matmul.multiply(placed, None, kernel, one.claim)
        except TilewiseError as error:
            one.error = error
        one.c = placed.c.copy()


def at_once(
    service: Service, matmul: MatmulService, problem: Problem, ones: list[One], kernel: str | None = None
) -> None:
    """Ask for all of them while the device is busy: they wait in queue behind a product of another problem."""
    queue = matmul.batcher.queue(service.fleet.unit())
    first = operands(Problem(1, 1, 1), 1, np.random.default_rng(0))[0]
    threads = [threading.Thread(target=multiply, args=(matmul, Problem(1, 1, 1), first))]
    threads += [threading.Thread(target=multiply, args=(matmul, problem, one, kernel)) for one in ones]

    def all_wait() -> bool:
        return len(queue) >= 1 + len([one for one in ones if not one.claim.is_cancelled])

    def none_failed() -> None:
        assert not any(one.error for one in ones if not one.claim.is_cancelled), ones[0].error

    with busy(service):
        for number, thread in enumerate(threads):
            thread.start()
            if number == 0:
                until(lambda: len(queue), 60, each=0.002)
        until(all_wait, 60, each=0.002, meanwhile=none_failed)
    for thread in threads:
        thread.join(120)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("naive", Problem(17, 33, 9)),
        ("tiled", Problem(40, 24, 70, trans_a=True)),
        ("batched", Problem(24, 24, 24)),
        pytest.param("register_tiled", Problem(64, 64, 64), marks=pytest.mark.slow),
        pytest.param(
            "register_tiled", Problem(30, 40, 50, batch=2, dtype="float64", trans_b=True), marks=pytest.mark.slow
        ),
        pytest.param("skinny", Problem(5, 70, 300), marks=pytest.mark.slow),
    ],
)
def test_what_is_made_together_is_bit_for_bit_what_is_made_alone(
    service: Service, matmul: MatmulService, kernel: str, problem: Problem
) -> None:
    print(f"seed {SEED}")
    ones = operands(problem, 5, np.random.default_rng(SEED))
    at_once(service, matmul, problem, ones, kernel)
    counts = [one.product.together for one in ones if one.product]
    assert sorted(counts) == [1, 4, 4, 4, 4], "a power of two is made at once"
    for one in ones:
        together = one.c
        multiply(matmul, problem, one, kernel)
        assert one.product is not None
        assert one.product.together == 1
        assert np.array_equal(together, one.c)  # type: ignore[arg-type]  # it is there
        assert set(one.product.seconds) == {"queue", "h2d", "kernel", "d2h"}


@pytest.mark.slow
def test_a_config_that_its_space_refuses_for_the_batch_makes_each_alone(
    service: Service, matmul: MatmulService
) -> None:
    problem, device = Problem(40, 2100, 30), service.fleet.unit().device
    config = CATALOGUE["tall"].default(problem, device)
    with pytest.raises(ValueError, match="TILES that"):
        CATALOGUE["tall"].launch(config, replace(problem, batch=2), device)
    ones = operands(problem, 2, np.random.default_rng(SEED))
    at_once(service, matmul, problem, ones, "tall")
    assert [one.product.together for one in ones if one.product] == [1, 1]


def test_nan_and_infinity_of_one_never_reach_another(service: Service, matmul: MatmulService) -> None:
    problem = Problem(20, 20, 20)
    ones = operands(problem, 4, np.random.default_rng(SEED))
    ones[1].a[:] = np.nan
    ones[2].b[:] = np.inf
    at_once(service, matmul, problem, ones)
    assert [one.product.together for one in ones if one.product] == [4] * 4
    for number in (0, 3):
        reference = ones[number].a.astype(np.float64) @ ones[number].b
        c = ones[number].c
        assert c is not None
        assert np.linalg.norm(c - reference) < 1e-6 * np.linalg.norm(reference)
    assert np.isnan(ones[1].c).all()  # type: ignore[arg-type]  # it is there
    assert not np.isfinite(ones[2].c).any()  # type: ignore[arg-type]  # it is there


def test_a_claim_is_gone_as_soon_as_nobody_has_it(matmul: MatmulService) -> None:
    """Its place in the queue knows it: pauses to collect what knows each other would be every caller's."""
    one = operands(Problem(3, 4, 5), 1, np.random.default_rng(0))[0]
    multiply(matmul, Problem(3, 4, 5), one)
    claim = weakref.ref(one.claim)
    gc.disable()
    try:
        one.claim = CancelToken()
        assert claim() is None
    finally:
        gc.enable()


def test_different_problems_and_large_ones_are_made_alone(service: Service, matmul: MatmulService) -> None:
    rng = np.random.default_rng(SEED)
    other = operands(Problem(16, 16, 17), 1, rng)[0]
    thread = threading.Thread(target=multiply, args=(matmul, Problem(16, 16, 17), other, "naive"))
    with busy(service):
        thread.start()
    small = operands(Problem(16, 16, 16), 1, rng)
    large = operands(Problem(400, 400, 400), 2, rng)
    at_once(service, matmul, Problem(16, 16, 16), small, "naive")
    at_once(service, matmul, Problem(400, 400, 400), large, "naive")
    thread.join(60)
    assert [one.product.together for one in (other, *small, *large) if one.product] == [1] * 4


def test_where_together_fails_each_is_made_alone(
    service: Service, matmul: MatmulService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "batched", SimpleNamespace(multiply=batch_functions.fail))
    problem = Problem(20, 21, 22)
    ones = operands(problem, 4, np.random.default_rng(SEED))
    at_once(service, matmul, problem, ones)
    assert [one.product.together for one in ones if one.product] == [1] * 4


def test_who_is_cancelled_leaves_the_queue_and_the_others_are_made(service: Service, matmul: MatmulService) -> None:
    problem = Problem(20, 21, 22)
    ones = operands(problem, 4, np.random.default_rng(SEED))
    ones[2].claim.cancel()
    at_once(service, matmul, problem, ones)
    assert isinstance(ones[2].error, Cancelled)
    assert all(one.product is not None for one in ones if one is not ones[2])
    assert matmul.admission.waiting == 0


def test_who_is_cancelled_while_it_is_given_the_lead_passes_it_on(service: Service) -> None:
    queue, claims = DeviceQueue(service.fleet.unit()), [CancelToken() for _ in range(3)]
    order = MultiplyRequest(Problem(1, 1, 1), None, 0, 0, 0)
    entries = [QueuedProduct(queue, order, claim, False, threading.Event()) for claim in claims]
    queue.join(entries[0])
    with ThreadPoolExecutor(2) as pool:
        cancelled = pool.submit(queue.join, entries[1])
        until(lambda: len(queue) == 2, 10, each=0.002)
        other = pool.submit(queue.join, entries[2])
        until(lambda: len(queue) == 3, 10, each=0.002)
        claims[1].is_cancelled = True  # as cancel begins, before it asks the queue
        queue.finish([])
        other.result(5)
        with pytest.raises(Cancelled):
            cancelled.result(5)
    queue.finish([])
    assert len(queue) == 0


def test_a_worker_is_told_whether_others_wait_for_its_device() -> None:
    told: list[bool] = []
    products = SimpleNamespace(tell_waiting=lambda *, others: told.append(others))
    queue = DeviceQueue(cast("Any", SimpleNamespace(products=products)))
    order = MultiplyRequest(Problem(1, 1, 1), None, 0, 0, 0)
    first, second = (QueuedProduct(queue, order, CancelToken(), False, threading.Event()) for _ in range(2))
    queue.join(first)
    assert told == [False]
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(queue.join, second)
        until(lambda: told == [False, True])
        queue.finish([])
        joining.result(5)
    assert told == [False, True, False]
    queue.finish([])


@pytest.mark.slow
def test_however_products_are_cancelled_the_queue_moves_on(service: Service) -> None:
    rng, queue, latest = np.random.default_rng(SEED), DeviceQueue(service.fleet.unit()), time.monotonic() + 1.5
    order = MultiplyRequest(Problem(1, 1, 1), None, 0, 0, 0)

    def one(claim: CancelToken) -> bool:
        try:
            queue.join(QueuedProduct(queue, order, claim, False, threading.Event()))
        except Cancelled:
            return False
        time.sleep(0.001)
        queue.finish([])
        return True

    with ThreadPoolExecutor(8) as pool:
        while time.monotonic() < latest:
            claims = [CancelToken() for _ in range(8)]
            made = [pool.submit(one, claim) for claim in claims]
            for claim in claims[1:]:
                time.sleep(0.002 * rng.random())
                claim.cancel()
            assert made[0].result(10)
            wait(made, 10)
    assert len(queue) == 0


@pytest.mark.slow
def test_a_long_launch_is_broken_off_and_the_next_child_serves_who_waits(
    service: Service, matmul: MatmulService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_queue, "_GRACE", 0.02)  # however fast the processor is
    problem = Problem(2000, 2000, 2000, trans_a=True, trans_b=True)  # seconds of naive, in 48 MB
    (one,), unit = operands(problem, 1, np.random.default_rng(SEED)), service.fleet.unit()
    first, small = operands(Problem(8, 8, 8, trans_a=True, trans_b=True), 2, np.random.default_rng(SEED))
    multiply(matmul, Problem(8, 8, 8, trans_a=True, trans_b=True), first, "naive")  # compiled and loaded
    generation, pid = unit.products.generation, unit.products.pid
    assert pid is not None
    before, thread = processor_seconds(pid), threading.Thread(target=multiply, args=(matmul, problem, one, "naive"))
    thread.start()
    # Until the launch itself: asked before, it never is.
    until(lambda: processor_seconds(pid) >= before + 0.2 or not thread.is_alive(), each=0.001)
    other = threading.Thread(target=multiply, args=(matmul, Problem(8, 8, 8), small))
    other.start()
    one.claim.cancel(kill=True)
    thread.join(60)
    assert isinstance(one.error, Cancelled)
    other.join(60)
    assert small.error is None
    assert unit.products.generation == generation + 1


def spent(kernel: float, copies: float = 1e-5) -> MultiplyResult:
    return MultiplyResult(copies, kernel, copies)


def launches(device: Device, problem: Problem, *counts: int) -> dict[int, Launch]:
    kernel = CATALOGUE["tiled"]
    config = kernel.default(problem, device)
    sizes = {count: Problem(problem.m, problem.n, problem.k, count) for count in (1, *counts)}
    return {count: kernel.launch(config, each, device) for count, each in sizes.items()}


class TestRates:
    problem = Problem(32, 32, 32)

    def best(self, rates: BatchCostModel, service: Service) -> int:
        device = service.fleet.unit().device
        alone, *others = launches(device, self.problem, 2, 4, 8, 16).items()
        return rates.best(device, alone[1], dict(others))

    def test_before_one_was_made_alone_nothing_is_known(self, service: Service) -> None:
        assert self.best(BatchCostModel(), service) == 1

    def test_where_calls_are_dear_many_are_made_at_once(self, service: Service) -> None:
        rates = BatchCostModel()
        rates.learn("opencl:0", self.problem, 1, spent(2e-5), 5e-4)
        assert self.best(rates, service) == 16

    def test_a_first_call_that_compiled_is_not_taken_for_what_calls_cost(self, service: Service) -> None:
        device, rates, kernel = service.fleet.unit().device, BatchCostModel(), 1e-6
        for seconds in (5.0, 2.1e-5):
            rates.learn(device.id, self.problem, 1, spent(kernel, 1e-5), seconds)
        assert rates.forecast(device, None, self.problem, self.problem.bytes) < kernel + 1e-6

    def test_a_forecast_counts_what_is_to_be_copied(self, service: Service) -> None:
        device, rates = service.fleet.unit().device, BatchCostModel()
        large = Problem(2048, 2048, 2048)
        launch = launches(device, large, 2)[1]
        assert rates.forecast(device, launch, large, large.bytes) < rates.forecast(device, launch, large)
        rates.learn(device.id, large, 1, spent(0.25, 0.5), 1.5)
        assert rates.forecast(device, launch, large) == pytest.approx(1.5)
        assert rates.forecast(device, launch, large, large.bytes) == pytest.approx(0.5)

    def test_slower_batches_are_made_alone_until_retried(self, service: Service) -> None:
        now = [0.0]
        rates = BatchCostModel(lambda: now[0])
        now[0] = 1.0
        rates.learn("opencl:0", self.problem, 1, spent(2e-5), 5e-4)
        for count in (2, 4, 8, 16):
            rates.learn("opencl:0", self.problem, count, spent(count * 1e-3), count * 1e-3)
        assert self.best(rates, service) == 1
        now[0] = 100.0
        assert self.best(rates, service) == 16

    def test_nobody_is_answered_much_later_for_the_others_sake(self, service: Service) -> None:
        rates = BatchCostModel()
        rates.learn("opencl:0", self.problem, 1, spent(1e-5, WAIT / 5), 1.0)
        assert self.best(rates, service) == 2
