"""Many kernels that are asked for at once, none of them built: no product waits for the builds of all others."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.devices.fleet import Unit
from app.services.best.kernel_order import default_launch
from app.services.matmul.device_queue import PendingBuilds
from app.services.matmul.service import MatmulService
from app.services.service import Service
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.services.test_batching import busy, multiply, operands
from tests.support.waiting import until

PROBLEMS = [Problem(m, n, k, trans_b=True) for m in (5, 20, 40) for n in (6, 24, 45) for k in (3, 30)]


@pytest.fixture
def matmul(service: Service) -> MatmulService:
    """Products of a service that knows of no class that is built."""
    parts = service.fleet, service.best, service.quarantine, service.misses
    return MatmulService(*parts, queue=99, max_bytes=2**25, vendor=False)


@pytest.mark.slow
def test_two_classes_are_built_and_the_lowest_kernel_makes_what_comes_meanwhile(
    service: Service, matmul: MatmulService
) -> None:
    ones = [operands(problem, 1, np.random.default_rng(each))[0] for each, problem in enumerate(PROBLEMS)]
    threads = [
        threading.Thread(target=multiply, args=(matmul, problem, one))
        for problem, one in zip(PROBLEMS, ones, strict=True)
    ]
    queue = matmul.batcher.queue(service.fleet.unit())
    with busy(service):
        for thread in threads:
            thread.start()
        until(lambda: len(queue) >= len(threads), 60, each=0.002)
    for thread in threads:
        thread.join(120)
    for one in ones:
        assert one.error is None
        np.testing.assert_allclose(cast("Any", one.c), one.a @ one.b.T, rtol=1e-4, atol=1e-4)
    built = {(one.product.kernel, str(one.product.config)) for one in ones if one.product is not None}
    assert len({config for kernel, config in built if kernel != "naive"}) <= 2
    assert len({config for kernel, config in built if kernel == "naive"}) == 1


def test_a_product_that_comes_alone_is_made_by_its_own_kernel(service: Service, matmul: MatmulService) -> None:
    problem = Problem(256, 256, 256)
    one = operands(problem, 1, np.random.default_rng(0))[0]
    multiply(matmul, problem, one)
    assert one.product is not None
    assert one.product.kernel == service.best.answer(problem, "opencl:0").kernel != "naive"


def test_a_class_that_others_wait_for_has_a_place_and_a_built_one_needs_none(service: Service) -> None:
    unit, builds = service.fleet.unit(), PendingBuilds()
    first, second, third = (
        default_launch(CATALOGUE["naive"], Problem(64, 64, 64, dtype=dtype), unit.device)
        for dtype in ("float32", "float64", "float16")
    )
    with ExitStack() as stack:
        assert stack.enter_context(builds.place(unit, first))
        assert stack.enter_context(builds.place(unit, second))
        assert stack.enter_context(builds.place(unit, first))
        for _ in range(2):
            with builds.place(unit, third) as has_place:
                assert not has_place
        builds.learn(unit, third)
        assert stack.enter_context(builds.place(unit, third))
    with builds.place(unit, first) as has_place:
        assert has_place


def test_a_new_worker_has_built_nothing(service: Service) -> None:
    unit, builds = service.fleet.unit(), PendingBuilds()
    launch = default_launch(CATALOGUE["naive"], Problem(64, 64, 64), unit.device)
    builds.learn(unit, launch)
    assert builds.is_built(unit, launch)
    products = SimpleNamespace(generation=unit.products.generation + 1)
    assert not builds.is_built(cast("Unit", SimpleNamespace(device=unit.device, products=products)), launch)
