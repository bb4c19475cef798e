"""Products of resident matrices: right for the version that was taken, and copied to a device once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from app.devices.lease import Priority
from app.dtypes import Array
from app.errors import ChildDied, LaunchFailed, MatrixGone, NoRoom, UnknownMatrix
from app.services.best.quarantine import Quarantine
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.resident_matrices import ResidentMatrix
from app.services.matmul.service import MatmulService
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.worker.serving import product
from kernels.problem import Problem
from tests.support.services import scarce_memory
from tests.support.waiting import until

CLOSE = {"float32": 1e-3, "float64": 1e-11}


@pytest.fixture(autouse=True)
def _emptied(service: Service) -> Iterator[None]:
    """No test leaves a matrix, a slab byte or a copy on the device."""
    yield
    for resident, _ in service.matrices.list(ANONYMOUS, limit=1000):
        service.matrices.delete(ANONYMOUS, resident.name)
    assert service.fleet.slab.lent_bytes == 0
    until(lambda: not kept_keys(service), 20, meanwhile=lambda: "copies of matrices that are gone stay on the device")


def kept_keys(service: Service) -> tuple[int, ...]:
    keys: tuple[int, ...] = service.fleet.unit().products.call(product.forget, ())
    return keys


def put(service: Service, name: str, array: Array, *, evictable: bool = False) -> ResidentMatrix:
    with service.matrices.reserve(ANONYMOUS, name, array.dtype.name, array.shape, evictable=evictable) as draft:
        stored(service, draft.resident)[...] = array
        draft.keep()
    return draft.resident


def stored(service: Service, resident: ResidentMatrix) -> Array:
    return np.frombuffer(service.matrices.view(resident), resident.dtype).reshape(resident.shape)


@contextmanager
def used(service: Service, name: str) -> Iterator[ResidentMatrix]:
    with service.matrices.pin(ANONYMOUS, name) as resident:
        yield resident


def made(service: Service, placed: OperandBuffers, matmul: MatmulService | None = None) -> tuple[Array, float]:
    """The product and the seconds of its h2d."""
    placed.c[...] = np.nan
    seconds = (matmul or service.matmul).multiply(placed, kernel="tiled").seconds
    return placed.c.copy(), seconds["h2d"]


def times(service: Service, name: str, b: Array, matmul: MatmulService | None = None) -> tuple[Array, float]:
    """A resident A times a B that is sent."""
    with used(service, name) as a:
        problem = Problem(a.shape[-2], b.shape[-1], b.shape[-2], b.shape[0] if b.ndim > 2 else 1, a.dtype)
        with (matmul or service.matmul).reserve(problem, a) as placed:
            assert placed.a.size == 0
            placed.b[...] = b
            return made(service, placed, matmul)


def loads(service: Service) -> tuple[int, int]:
    return service.matmul.device_cache.loads, service.matmul.device_cache.hits


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_operand_may_be_resident_and_the_result_too(service: Service, stack: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((*stack, 20, 30)).astype(dtype), rng.standard_normal((*stack, 30, 17)).astype(dtype)
    put(service, "a", a)
    put(service, "b", b)
    problem = Problem(20, 17, 30, stack[0] if stack else 1, dtype)
    matrices, matmul = service.matrices, service.matmul
    with used(service, "a") as left, used(service, "b") as right:
        with matmul.reserve(problem, left) as placed:
            placed.b[...] = b
            np.testing.assert_allclose(made(service, placed)[0], a @ b, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        with matmul.reserve(problem, None, right) as placed:
            placed.a[...] = 2 * a
            np.testing.assert_allclose(made(service, placed)[0], 2 * a @ b, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        with (
            matrices.reserve(ANONYMOUS, "c", dtype, (*stack, 20, 17)) as draft,
            matmul.reserve(problem, left, right, draft) as placed,
        ):
            before = loads(service)
            made(service, placed)
            assert loads(service) == (before[0], before[1] + 2)
    with used(service, "c") as c:
        np.testing.assert_allclose(stored(service, c), a @ b, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    assert matmul.device_cache.devices(c.key) == ["opencl:0"]
    before = loads(service)
    again, _ = times(service, "c", np.swapaxes(b, -1, -2).copy())
    np.testing.assert_allclose(again, (a @ b) @ np.swapaxes(b, -1, -2), rtol=CLOSE[dtype], atol=30 * CLOSE[dtype])
    assert loads(service) == (before[0], before[1] + 1), "a result that stays is on the device already"


@pytest.mark.rotating
def test_an_operand_that_is_used_again_is_not_copied_again(service: Service) -> None:
    a, b = np.ones((2048, 2048), np.float32), np.ones((2048, 1), np.float32)
    put(service, "a", a)
    problem, before, plain = Problem(2048, 1, 2048), loads(service), []
    for _ in range(4):
        with service.matmul.reserve(problem) as placed:
            placed.a[...], placed.b[...] = a, b
            plain.append(made(service, placed)[1])
    c, _ = times(service, "a", b)
    again = [times(service, "a", b)[1] for _ in range(4)]
    assert np.array_equal(c, np.full((2048, 1), 2048, np.float32))
    assert loads(service) == (before[0] + 1, before[1] + 4)
    assert min(again) < min(plain) / 2, "16 MiB were copied again"
    with used(service, "a") as left, service.matmul.reserve(Problem(2048, 2048, 2048), left, left) as placed:
        service.matmul.multiply(placed, kernel="vendor")
    assert loads(service) == (before[0] + 1, before[1] + 5)


@pytest.mark.slow
def test_a_killed_child_is_given_its_matrices_again(service: Service) -> None:
    a, b = np.random.default_rng(5).random((64, 64), np.float32), np.eye(64, dtype=np.float32)
    put(service, "a", a)
    times(service, "a", b)
    products = service.fleet.unit().products
    for _ in range(2):
        before = loads(service)
        pid = products.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: products.pid not in {pid, None}, 20)  # type: ignore[misc]
        for _ in range(2):
            np.testing.assert_allclose(times(service, "a", b)[0], a, rtol=1e-6)
        assert products.pid != pid
        assert loads(service) == (before[0] + 1, before[1] + 1)


def test_device_copies_over_the_budget_are_dropped_and_made_again(service: Service) -> None:
    quarantine = Quarantine(service.database)
    small = MatmulService(
        service.fleet,
        service.best,
        quarantine,
        service.misses,
        queue=4,
        max_bytes=2**20,
        vendor=False,
        kept_bytes=2 * 64 * 64 * 4,
    )
    b = np.eye(64, dtype=np.float32)
    arrays = {name: np.random.default_rng(ord(name)).random((64, 64), np.float32) for name in "uvw"}
    residents = {name: put(service, name, array) for name, array in arrays.items()}
    put(service, "large", np.ones((300, 64), np.float32))
    for name in "uvwwuu":
        np.testing.assert_allclose(times(service, name, b, small)[0], arrays[name], rtol=1e-6)
    assert (small.device_cache.loads, small.device_cache.hits) == (4, 2)
    assert set(kept_keys(service)) == {residents["w"].key, residents["u"].key}
    assert small.device_cache.bytes() == {"opencl:0": 2 * 64 * 64 * 4}
    times(service, "large", b, small)
    assert set(kept_keys(service)) == {residents["w"].key, residents["u"].key}, "what cannot stay drops nothing"
    for resident in residents.values():
        small.device_cache.drop(resident.key)


def test_copies_give_way_where_the_device_has_no_memory(service: Service) -> None:
    b = np.eye(16, dtype=np.float32)
    for name in "uv":
        put(service, name, b)
        times(service, name, b)
    unit, problem = service.fleet.unit(), Problem(16, 16, 16)
    with used(service, "v") as a, service.matmul.reserve(problem, a) as placed:
        placed.b[...], placed.c[...] = 2 * b, np.nan
        order = product.MultiplyRequest(problem, None, *placed.offsets, placed.keys, budget=2**20)
        spent = unit.products.call(scarce_memory.multiply, order, 1, priority=Priority.PRODUCT)
        assert (spent.loaded, spent.kept) == (0, (a.key,))
        assert np.array_equal(placed.c, 2 * b)
        with pytest.raises(LaunchFailed, match="out of memory"):
            unit.products.call(scarce_memory.multiply, order, 0, priority=Priority.PRODUCT)


def test_a_product_never_fails_for_the_room_of_what_may_be_evicted(service: Service) -> None:
    """The slab has 64 MiB; what is kept takes 48 of them."""
    for name in "uvw":
        put(service, name, np.zeros((2048, 2048), np.float32), evictable=True)
    put(service, "stays", np.zeros((16, 16), np.float32))
    side = 1500
    with service.matmul.reserve(Problem(side, side, side)) as placed:
        placed.a[...], placed.b[...] = 1, 1
        service.matmul.multiply(placed, kernel="vendor")
        assert np.array_equal(placed.c, np.full((side, side), side, np.float32))
    names = [resident.name for resident, _ in service.matrices.list(ANONYMOUS)]
    assert names in (["stays", "v", "w"], ["stays", "w"]), "the least recently used go, and no more than must"
    with pytest.raises(MatrixGone):
        service.matrices.get(ANONYMOUS, "u")


class Caller(threading.Thread):
    """Puts, deletes and multiplies at random; remembers what it saw, to be judged when all have ended."""

    called = ("p", "q", "r")

    def __init__(self, service: Service, seed: int, until: float, truth: dict[int, Array]) -> None:
        super().__init__()
        self.service, self.until, self.truth = service, until, truth
        self.rng = np.random.default_rng(seed)
        self.seen: list[tuple[int, int | None, Array, Array]] = []
        self.misses = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        acts = (self.put, self.put, self.delete, self.multiply, self.multiply, self.multiply, self.crowd)
        try:
            while time.monotonic() < self.until:
                try:
                    acts[self.rng.integers(len(acts))]()
                except (UnknownMatrix, MatrixGone, NoRoom, ChildDied):
                    self.misses += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def one(self) -> str:
        return self.called[self.rng.integers(len(self.called))]

    def put(self) -> None:
        array = self.rng.random((32, 32), np.float32)
        reserve = self.service.matrices.reserve
        with reserve(ANONYMOUS, self.one(), "float32", (32, 32), evictable=bool(self.rng.integers(2))) as draft:
            stored(self.service, draft.resident)[...] = array
            self.truth[draft.resident.key] = array
            if self.rng.random() < 0.9:
                draft.keep()

    def delete(self) -> None:
        self.service.matrices.delete(ANONYMOUS, self.one())

    def crowd(self) -> None:
        """Want so much of the slab that what may go must."""
        slab = self.service.fleet.slab
        slab.release(slab.lend(slab.nbytes - 2**16))

    def multiply(self) -> None:
        b = self.rng.random((32, 32), np.float32)
        with used(self.service, self.one()) as left, used(self.service, self.one()) as right:
            both = self.rng.random() < 0.5
            with self.service.matmul.reserve(Problem(32, 32, 32), left, right if both else None) as placed:
                if not both:
                    placed.b[...] = b
                c, _ = made(self.service, placed)
                self.seen.append((left.key, right.key if both else None, b, c))


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_products_among_puts_deletions_and_evictions_are_of_one_version(service: Service, deaths: int) -> None:
    """With `deaths`, the serving child is killed so often meanwhile."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    truth: dict[int, Array] = {}
    until = time.monotonic() + 4 * (deaths + 1)
    callers = [Caller(service, seed + number, until, truth) for number in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(deaths):
        time.sleep(4)
        pid = service.fleet.unit().products.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # as somebody else would: nobody's kernel is to blame
    for caller in callers:
        caller.join()
    seen = [each for caller in callers for each in caller.seen]
    assert [caller.failure for caller in callers if caller.failure] == []
    assert len(seen) > 20
    assert any(caller.misses for caller in callers)
    for left, right, sent, c in seen:
        np.testing.assert_allclose(c, truth[left] @ (sent if right is None else truth[right]), rtol=1e-4)
