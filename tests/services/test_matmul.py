"""Products are right, whatever the form of the operands, and what cannot be served is refused with its reason."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from app.errors import NoRoom, QueueFull, TooLarge, UnknownKernel, Unsupported
from app.services.best.quarantine import Quarantine
from app.services.matmul.buffers import Product
from app.services.matmul.service import MatmulService
from app.services.service import Service
from kernels.problem import Problem


def multiply(service: Service, problem: Problem, **how: str) -> tuple[Product, float]:
    """One product of random operands, and its relative L2 error against float64."""
    rng = np.random.default_rng(problem.m * 1009 + problem.n)
    with service.matmul.reserve(problem) as placed:
        placed.a[...] = rng.standard_normal(placed.a.shape)
        placed.b[...] = rng.standard_normal(placed.b.shape)
        placed.c[...] = np.nan
        product = service.matmul.multiply(placed, how.get("device"), how.get("kernel"))
        a = np.swapaxes(placed.a, -1, -2) if problem.trans_a else placed.a
        b = np.swapaxes(placed.b, -1, -2) if problem.trans_b else placed.b
        reference = a.astype(np.float64) @ b.astype(np.float64)
        return product, float(np.linalg.norm(placed.c - reference) / np.linalg.norm(reference))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("trans_a", "trans_b", "batch"),
    [
        (False, True, 3),
        (True, False, 1),
        pytest.param(False, False, 1, marks=pytest.mark.slow),
        pytest.param(True, True, 3, marks=pytest.mark.slow),
    ],
)
def test_every_transposition_and_batch_is_right(service: Service, trans_a: bool, trans_b: bool, batch: int) -> None:
    _, error = multiply(service, Problem(33, 17, 65, batch, trans_a=trans_a, trans_b=trans_b))
    assert error < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(1, 130, 7), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((1, 1, 1), (64, 64, 64)))]
)
def test_every_shape_is_right_in_float64(service: Service, shape: tuple[int, int, int]) -> None:
    _, error = multiply(service, Problem(*shape, dtype="float64"))
    assert error < 1e-14


@pytest.mark.parametrize("kernel", ["naive", "tiled", "vendor"])
def test_a_kernel_can_be_forced(service: Service, kernel: str) -> None:
    product, error = multiply(service, Problem(40, 50, 60), kernel=kernel)
    assert product.kernel == kernel
    assert error < 1e-6


@pytest.mark.rotating
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("batched", Problem(24, 24, 24, 20)),
        ("skinny", Problem(5, 130, 700)),
        pytest.param("tall", Problem(40, 2100, 30), marks=pytest.mark.slow),
        pytest.param("skinny", Problem(130, 5, 700, dtype="float64", trans_a=True), marks=pytest.mark.slow),
    ],
)
def test_a_kernel_for_some_shapes_makes_their_products(service: Service, kernel: str, problem: Problem) -> None:
    product, error = multiply(service, problem, kernel=kernel)
    assert product.kernel == kernel
    assert error < (1e-6 if problem.dtype == "float32" else 1e-14)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("skinny", "it is for a C with a side of at most 32, not for 140 x 150 x 160"),
        ("batched", "it is for m, n and k of at most 128, not for 140 x 150 x 160"),
        ("pipelined", "it is for cuda, not opencl"),
        ("double_tensor", "it computes float64 (strict), not float32 (strict)"),
    ],
)
def test_a_kernel_that_is_not_for_a_shape_says_what_it_is_for(service: Service, kernel: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(f"{kernel} does not compute 140x150x160 float32")) as e:
        multiply(service, Problem(140, 150, 160), kernel=kernel)
    assert e.value.message.endswith(reason)


def test_what_is_verified_at_the_start_is_what_an_untuned_product_uses(service: Service) -> None:
    """Of a float32 shape that no kernel for some shapes is for, and whose rows are whole 16 bytes."""
    problem = Problem(256, 256, 256)
    answer = service.best.answer(problem)
    assert (answer.kernel, answer.match) == ("tiled", "default")
    service.defaults.verify(service.fleet.unit())
    product, _ = multiply(service, problem, kernel="tiled")
    assert "build" not in product.seconds, "it was compiled or verified again"


@pytest.mark.slow
def test_a_product_says_where_its_time_went(service: Service) -> None:
    problem = Problem(64, 64, 88, trans_a=True)
    product, _ = multiply(service, problem)
    assert set(product.seconds) == {"queue", "build", "h2d", "kernel", "d2h"}
    assert product.seconds["build"] > product.seconds["kernel"]
    product, _ = multiply(service, problem)
    assert set(product.seconds) == {"queue", "h2d", "kernel", "d2h"}
    assert all(seconds >= 0 for seconds in product.seconds.values())


def test_products_from_many_threads_are_all_right(service: Service) -> None:
    errors: list[float] = []

    def one(size: int) -> None:
        errors.append(multiply(service, Problem(size, 20, 30))[1])

    threads = [threading.Thread(target=one, args=(size,)) for size in range(8, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == len(threads)
    assert max(errors) < 1e-6


def test_what_can_never_fit_and_what_cannot_fit_now_are_told_apart(service: Service) -> None:
    with pytest.raises(TooLarge), service.matmul.reserve(Problem(2**14, 2**14, 2**14)):
        pass
    big = Problem(2**11, 2**11, 2**11)
    with service.matmul.reserve(big), pytest.raises(NoRoom) as refused, service.matmul.reserve(big):
        pass
    assert refused.value.retry_after
    assert {"limit", "size"} <= set(refused.value.facts)


def test_an_unknown_kernel_and_an_uncovered_class_are_refused(service: Service) -> None:
    with service.matmul.reserve(Problem(4, 4, 4)) as placed, pytest.raises(UnknownKernel):
        service.matmul.multiply(placed, kernel="magic")
    with pytest.raises(Unsupported), service.matmul.reserve(Problem(4, 4, 4, 1, "float16", "tf32")):
        pass


def test_a_full_queue_is_an_error_not_a_wait(service: Service) -> None:
    quarantine = Quarantine(service.database)
    full = MatmulService(
        service.fleet, service.best, quarantine, service.misses, queue=0, max_bytes=2**20, vendor=False
    )
    with pytest.raises(QueueFull) as refused, full.reserve(Problem(4, 4, 4)):
        pass
    assert {"limit", "size", "retry_after"} <= set(refused.value.facts)


def test_the_slab_is_empty_after_every_product(service: Service) -> None:
    multiply(service, Problem(3, 4, 5))
    assert service.fleet.slab.lent_bytes == 0


def test_a_killed_serving_child_is_replaced_and_serves_again(service: Service) -> None:
    service.fleet.unit().products.kill()
    _, error = multiply(service, Problem(48, 48, 48))
    assert error < 1e-6
