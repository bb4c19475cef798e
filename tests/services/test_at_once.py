"""Small products that wait for nothing are begun without a thread; whatever is in the way leaves them to `multiply`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import pytest

from app.devices.lease import Priority
from app.devices.process import PendingCall, Worker
from app.services.best.quarantine import QuarantinedConfig
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.service import AT_ONCE
from app.services.service import Service
from app.worker.serving import product
from kernels.problem import Problem
from tests.support.services import declining_kernels

SMALL = Problem(7, 9, 11)


@contextmanager
def placed(service: Service, problem: Problem = SMALL) -> Iterator[OperandBuffers]:
    """Ones to be multiplied, and a C that is NaN."""
    with service.matmul.reserve(problem) as placement:
        placement.a[...], placement.b[...], placement.c[...] = 1, 1, np.nan
        yield placement


def begun(service: Service, placement: OperandBuffers) -> PendingCall[Product | None] | None:
    return service.matmul.begin(placement, None, perf_counter())


def forgiven(service: Service) -> QuarantinedConfig:
    """The one config that is quarantined, which is not any more."""
    device = service.fleet.unit().device
    (held,) = service.quarantine.entries(device)
    service.quarantine.release(device, held)
    service.best.changed()
    return held


@pytest.fixture
def known(service: Service) -> Service:
    """The service with SMALL's answer and binary at hand."""
    with placed(service) as placement:
        service.matmul.multiply(placement)
    return service


@pytest.mark.slow
def test_a_product_that_was_made_before_is_begun_and_is_the_same(known: Service) -> None:
    with placed(known) as placement:
        usual = known.matmul.multiply(placement)
    with placed(known) as placement:
        call = begun(known, placement)
        assert call is not None
        made = call.finish()
        assert made is not None
        assert (made.kernel, made.config, made.match) == (usual.kernel, usual.config, usual.match)
        assert set(made.seconds) == {"queue", "h2d", "kernel", "d2h"}
        assert all(seconds >= 0 for seconds in made.seconds.values())
        assert np.array_equal(placement.c, np.full((7, 9), 11, np.float32))
        assert placement.ticket is not None
    assert known.matmul.admission.waiting == 0


def test_what_was_never_answered_is_left_to_a_thread(service: Service) -> None:
    with placed(service, Problem(7, 9, 13)) as placement:
        assert service.matmul.is_small(placement)
        assert begun(service, placement) is None
        assert np.isnan(placement.c).all()


def test_large_products_and_those_of_resident_matrices_are_none_of_these(service: Service) -> None:
    with placed(service, Problem(100, 100, 100)) as placement:
        assert placement.problem.bytes > AT_ONCE
        assert not service.matmul.is_small(placement)
    with service.matmul.reserve(SMALL) as placement:
        assert service.matmul.is_small(placement)


def test_one_is_begun_at_a_time(known: Service) -> None:
    with placed(known) as first, placed(known) as second:
        call = begun(known, first)
        assert call is not None
        assert begun(known, second) is None
        assert call.finish() is not None
        again = begun(known, second)
        assert again is not None
        assert again.finish() is not None


def test_a_device_that_is_busy_otherwise_is_not_waited_for(known: Service) -> None:
    unit = known.fleet.unit()
    with placed(known) as placement:
        with unit.lease.held(Priority.MEASUREMENT):
            assert begun(known, placement) is None
        assert isinstance(unit.products, Worker)
        with unit.products.calls.held(Priority.CHECK):
            assert begun(known, placement) is None
        call = begun(known, placement)
        assert call is not None
        assert call.finish() is not None


def test_it_is_wanted_once_however_often_it_was_tried(known: Service) -> None:
    before = known.misses.total
    with placed(known) as placement:
        with known.fleet.unit().lease.held(Priority.MEASUREMENT):
            assert begun(known, placement) is None
        call = begun(known, placement)
        assert call is not None
        call.finish()
    assert known.misses.total == before + 1


@pytest.mark.slow
def test_a_wrong_answer_is_left_to_be_made_again(known: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with placed(known) as placement:
        with monkeypatch.context() as patch:
            patch.setattr(product, "multiply", declining_kernels.wrong)
            call = begun(known, placement)
            assert call is not None
            assert call.finish() is None
        assert known.matmul.multiply(placement).kernel != forgiven(known).kernel


@pytest.mark.slow
def test_one_that_its_child_dies_of_is_left_to_the_kernel_below(
    known: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with placed(known) as placement:
        with monkeypatch.context() as patch:
            patch.setattr(product, "multiply", declining_kernels.die)
            call = begun(known, placement)
            assert call is not None
            assert call.finish() is None
        made = known.matmul.multiply(placement)
        held = forgiven(known)
        assert (held.stage, held.kernel == made.kernel) == ("died", False)
        assert np.array_equal(placement.c, np.full((7, 9), 11, np.float32))
