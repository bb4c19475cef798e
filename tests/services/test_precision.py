"""What is to be emulated and cannot be is computed strictly, and every answer says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest

from app.errors import Unsupported
from app.services.matmul.buffers import Product
from app.services.matmul.service import MatmulService
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.worker.serving import batched, product
from kernels import CATALOGUE
from kernels.fp32_emulation import REASONS
from kernels.problem import Problem
from tests.services.test_batching import Eager, busy
from tests.support.services import declining_kernels

STRICT = Problem(256, 256, 256)  # whose kernel is verified when the service starts
PROBLEM = replace(STRICT, precision="emulated")


@pytest.fixture
def emulating(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service whose tiled kernel computes emulated products too, but for k below 256, and declines at times."""
    tiled = CATALOGUE["tiled"]
    monkeypatch.setitem(tiled.__dict__, "precisions", (*tiled.precisions, "emulated"))
    monkeypatch.setitem(tiled.__dict__, "supports", lambda one: one.precision != "emulated" or one.k >= 256)
    monkeypatch.setitem(tiled.__dict__, "shapes", "k of 256 and more")
    monkeypatch.setitem(tiled.__dict__, "classes", (*tiled.classes, ("float32", "emulated")))
    monkeypatch.setitem(tiled.__dict__, "_class_refusals", {})  # what it refused as it is
    monkeypatch.setattr(product, "multiply", declining_kernels.multiply)
    monkeypatch.setattr(batched, "multiply", declining_kernels.multiply_all)
    service.best.changed()
    yield service
    products = service.fleet.unit().products
    products.start()  # killed by the test before, perhaps: one that is killed as it starts fails whoever comes next
    products.kill()
    service.best.changed()


def multiply(matmul: MatmulService, problem: Problem, *, spoilt: bool = False, kernel: str | None = None) -> Product:
    """One product, which has to be right."""
    rng = np.random.default_rng(problem.m)
    with matmul.reserve(problem) as placed:
        placed.a[...] = rng.standard_normal(placed.a.shape)
        placed.b[...] = rng.standard_normal(placed.b.shape)
        if spoilt:
            placed.a.reshape(-1)[0] = declining_kernels.FIRST
        placed.c[...] = np.nan
        made = matmul.multiply(placed, kernel=kernel)
        reference = placed.a.astype(np.float64) @ placed.b.astype(np.float64)
        assert np.linalg.norm(placed.c - reference) <= 1e-6 * np.linalg.norm(reference)
    return made


def test_where_no_kernel_emulates_the_strict_best_answers_and_says_why(service: Service) -> None:
    answer, strict = service.best.answer(PROBLEM), service.best.answer(STRICT)
    assert (answer.kernel, answer.config, answer.match) == (strict.kernel, strict.config, strict.match)
    assert (answer.problem, answer.precision) == (PROBLEM, "strict")
    assert strict.declined is None
    assert "emulate" in str(answer.declined)
    made = multiply(service.matmul, PROBLEM)
    assert (made.precision, made.declined) == ("strict", answer.declined)


def test_emulated_product_can_be_forced_from_a_strict_kernel(service: Service) -> None:
    for kernel in ("naive", "vendor"):
        made = multiply(service.matmul, PROBLEM, kernel=kernel)
        assert (made.kernel, made.precision) == (kernel, "strict")
        assert made.declined


def test_a_shape_that_cannot_be_emulated_is_wanted_strictly_and_not_tuned(service: Service) -> None:
    miss = service.misses.noted(service.best.answer(PROBLEM))
    assert miss is not None
    assert miss.problem == STRICT
    with pytest.raises(Unsupported, match="emulated"):
        service.tuning.submit(TuneSpec((PROBLEM,)), ANONYMOUS)


@pytest.mark.rotating
def test_what_is_emulated_says_so(emulating: Service) -> None:
    answer, made = emulating.best.answer(PROBLEM), multiply(emulating.matmul, PROBLEM)
    assert (answer.kernel, answer.precision, answer.declined) == ("tiled", "emulated", None)
    assert (made.kernel, made.precision, made.declined) == ("tiled", "emulated", None)


@pytest.mark.rotating
def test_a_declined_product_is_made_strictly_and_says_why(emulating: Service) -> None:
    strict = emulating.best.answer(STRICT)
    for kernel in (None, "tiled"):
        made = multiply(emulating.matmul, PROBLEM, spoilt=True, kernel=kernel)
        assert (made.kernel, made.precision, made.declined) == (strict.kernel, "strict", REASONS[4])
    assert multiply(emulating.matmul, PROBLEM).precision == "emulated"
    unit = emulating.fleet.unit()
    assert emulating.quarantine.holds(unit.device, "tiled", emulating.best.answer(PROBLEM).config) is None


@pytest.mark.slow
def test_a_small_product_that_is_declined_is_left_to_be_made_again(emulating: Service) -> None:
    small = replace(PROBLEM, m=8, n=8)
    assert multiply(emulating.matmul, small).precision == "emulated"
    with emulating.matmul.reserve(small) as placed:
        placed.a[...], placed.b[...] = 1, 1
        placed.a[0, 0] = declining_kernels.FIRST
        begun = emulating.matmul.begin(placed, None, perf_counter())
        assert begun is not None
        assert begun.finish() is None
        assert emulating.matmul.multiply(placed).declined == REASONS[4]


def test_too_small_a_k_is_strict_from_the_start(emulating: Service) -> None:
    answer = emulating.best.answer(replace(PROBLEM, k=255))
    assert answer.precision == answer.launch.problem.precision == "strict"
    assert answer.declined == "tiled does not emulate it: it is for k of 256 and more, not for 256 x 256 x 255"


@pytest.mark.rotating
def test_a_declined_product_leaves_no_result_resident(emulating: Service) -> None:
    a, b = np.ones((256, 256), np.float32), np.ones((256, 256), np.float32)
    a[0, 0] = declining_kernels.FIRST
    matrices, matmul = emulating.matrices, emulating.matmul
    coming = matrices.reserve(ANONYMOUS, "kept", "float32", (256, 256), evictable=False)
    with coming as draft, matmul.reserve(PROBLEM, c=draft) as placed:
        placed.a[...], placed.b[...] = a, b
        made = matmul.multiply(placed)
    assert made.precision == "strict"
    resident, _ = matrices.get(ANONYMOUS, "kept")
    c = np.frombuffer(matrices.view(resident), np.float32).reshape(256, 256)
    assert np.allclose(c, a.astype(np.float64) @ b, rtol=1e-5)
    matrices.delete(ANONYMOUS, "kept")


@pytest.mark.rotating
def test_products_made_together_are_made_alone_where_one_is_declined(emulating: Service) -> None:
    parts = emulating.fleet, emulating.best, emulating.quarantine, emulating.misses
    matmul = MatmulService(*parts, queue=99, max_bytes=2**25, vendor=False, max_batch=64, costs=Eager())
    multiply(matmul, PROBLEM)
    made: list[tuple[bool, Product]] = []

    def one(*, spoilt: bool) -> None:
        made.append((spoilt, multiply(matmul, PROBLEM, spoilt=spoilt)))

    threads = [threading.Thread(target=one, kwargs={"spoilt": number == 2}) for number in range(5)]
    with busy(emulating):
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert sorted((spoilt, each.precision) for spoilt, each in made) == [(False, "emulated")] * 4 + [(True, "strict")]
