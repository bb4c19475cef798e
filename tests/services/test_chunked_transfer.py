"""The device that a large operand goes to while it lands, and the one that its product is made on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.devices.backend import Vendor
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Fleet, Unit
from app.devices.lease import Lease
from app.devices.process import Worker
from app.devices.slab import Slab
from app.errors import ChildDied
from app.main import opened
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.chunked_transfer import LARGE, ChunkedTransfer
from app.services.service import Service
from benchmarks.serving import nulldevice
from kernels.problem import Problem
from tests.support.services import scarce_memory, small_pieces
from tests.support.services.service_settings import settings
from tests.support.services.small_pieces import PIECE
from tests.support.waiting import until

STAMP = 0x1234567812345678
LONG = Problem(LARGE // 4 + 2, 1, 1)  # A and C are large, B is one number


@contextmanager
def two_devices(slab_bytes: int) -> Iterator[Fleet]:
    with ExitStack() as stack:
        slab = Slab(slab_bytes)
        stack.callback(slab.close)
        compilers = Compilers(Path())
        stack.callback(compilers.close)
        units = []
        for number in range(2):
            device, lease = replace(nulldevice.DEVICE, id=f"opencl:{number}"), Lease()
            stack.callback(lease.close)
            arguments = (nulldevice.NullDevice(stamps=True), slab.fd, slab.nbytes)
            child = Worker(device.id, nulldevice.hold, arguments, descriptors=(slab.fd,), lease=lease)
            stack.callback(child.close)
            units.append(Unit(device, Vendor("none"), lease, child, child, compilers))
        yield Fleet(tuple(units), slab)


@pytest.fixture(scope="module", autouse=True)
def _pieces() -> Iterator[None]:
    with small_pieces.used():
        yield


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("two")
    with opened(settings(folder).model_copy(update={"slab_bytes": 2**28}), "the tests", fleets=two_devices) as service:
        yield service


@contextmanager
def landing(service: Service) -> Iterator[tuple[OperandBuffers, ChunkedTransfer]]:
    """A product of which two pieces are on a device."""
    with service.matmul.reserve(LONG) as placed:
        placed.a.reshape(-1).view(np.uint64)[...] = STAMP
        placed.b[...] = 1
        placed.c[...] = 0
        assert placed.transfer is not None
        assert not placed.transfer.is_due
        for nbytes in (PIECE - 1, PIECE, 2 * PIECE):
            placed.transfer.mark_received("a", nbytes)
            placed.transfer.upload_next()
        assert placed.transfer.uploaded_bytes(placed.transfer.unit) == 2 * PIECE
        assert held(service, placed.transfer.unit)
        yield placed, placed.transfer
    assert not any(held(service, unit) for unit in service.fleet.units)


def held(service: Service, unit: Unit) -> tuple[int, ...]:
    """What a device has; after it was told what is gone."""
    until(lambda: not any(thread.name == "forgetting" for thread in threading.enumerate()), each=0.001)
    assert unit in service.fleet.units
    found: tuple[int, ...] = unit.products.call(scarce_memory.passing)
    return found


def whole(placed: OperandBuffers) -> bool:
    return bool((placed.c.reshape(-1).view(np.uint64) == STAMP).all())


def test_few_bytes_of_the_last_operand_are_left_to_the_product(two: Service) -> None:
    with two.matmul.reserve(Problem(2048, 2048, 4104)) as placed:
        transfer, a, b = placed.transfer, placed.a.nbytes, placed.b.nbytes
        assert transfer is not None
        assert transfer.ends("a") == [PIECE, 2 * PIECE, a], "another one is to come"
        transfer.mark_received("a", a)
        *ends, last = transfer.ends("b")
        assert last == b
        for end in ends:
            transfer.mark_received("b", end)
            while transfer.is_due:
                transfer.upload_next()
        assert 0 < a + b - transfer.uploaded_bytes(transfer.unit) < PIECE
        transfer.mark_received("b", b)
        assert not transfer.is_due


@pytest.mark.slow
def test_a_product_is_made_where_its_operands_are(two: Service) -> None:
    with landing(two) as (placed, passage):
        product = two.matmul.multiply(placed)
        assert product.device == passage.unit.device
        assert whole(placed)
        assert not held(two, passage.unit)
        passage.upload_next()
        assert not held(two, passage.unit), "what comes after the product is not copied"


@pytest.mark.slow
def test_a_product_that_another_device_makes_is_copied_to_that(two: Service) -> None:
    with landing(two) as (placed, passage):
        other = next(unit for unit in two.fleet.units if unit is not passage.unit)
        product = two.matmul.multiply(placed, other.device.id)
        assert product.device == other.device
        assert whole(placed)


@pytest.mark.slow
def test_a_product_that_is_never_made_leaves_nothing(two: Service) -> None:
    with landing(two):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_result_that_stays_is_pulled_from_the_device_that_made_it(two: Service, elsewhere: bool) -> None:
    with landing(two) as (placed, passage):
        passage.keep_on_device()
        unit = next(unit for unit in two.fleet.units if (unit is not passage.unit) == elsewhere)
        product = two.matmul.multiply(placed, unit.device.id)
        assert "d2h" not in product.seconds
        first = passage.downloaded_bytes
        assert 0 < first < PIECE, "the first bytes come with the product"
        assert placed.c.reshape(-1)[: first // 4].all()
        assert not placed.c.reshape(-1)[first // 4 :].any(), "nothing else was asked for yet"
        assert passage.pending_result_bytes == LONG.c_bytes
        assert [passage.download_next() for _ in range(2)] == [first + PIECE, LONG.c_bytes]
        assert passage.pending_result_bytes == 0
        assert whole(placed)
        assert not held(two, unit)


@pytest.mark.rotating
def test_a_result_that_nobody_pulls_to_its_end_is_dropped(two: Service) -> None:
    with landing(two) as (placed, passage):
        passage.keep_on_device()
        two.matmul.multiply(placed)
        passage.download_next()


@pytest.mark.slow
def test_a_result_is_gone_with_the_child_that_made_it(two: Service) -> None:
    with landing(two) as (placed, passage):
        passage.keep_on_device()
        two.matmul.multiply(placed, passage.unit.device.id)
        passage.download_next()
        generation = passage.unit.products.generation
        passage.unit.products.kill()
        until(lambda: passage.unit.products.generation != generation, 10, each=0.005)
        with pytest.raises(ChildDied, match="is gone with the process"):
            passage.download_next()


@pytest.mark.parametrize(("m", "k"), [(LARGE // 4 - 1, 1), (100, 100)])
def test_a_small_product_has_no_passage(two: Service, m: int, k: int) -> None:
    with two.matmul.reserve(Problem(m, 1, k)) as placed:
        assert placed.transfer is None
