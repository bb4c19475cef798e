"""Matrices that the service keeps, products that are fetched later, and what is the same over every way to it."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app import errors as service_errors
from tests.support.client.shared_service import Served
from tilewise import (
    AsyncClient,
    Client,
    ClientError,
    Matrix,
    NotTuned,
    QuotaExceeded,
    TimedOut,
    UnknownJob,
    UnknownMatrix,
    errors,
)
from tilewise._sansio import Flow, Work, awaited
from tilewise.errors import error_of

Array = NDArray[Any]
# Which kernel multiplies is not the client's affair, and each is verified at its first use, which takes a while.
KERNEL = "naive"


@pytest.fixture
def client(service: Served) -> Iterator[Client]:
    with Client(service.unix) as opened:
        yield opened


def numbers(*shape: int, dtype: str = "float64") -> Array:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape) % 7


@pytest.mark.rotating
def test_a_matrix_that_is_kept_is_an_operand_on_either_side(client: Client) -> None:
    w, x = numbers(6, 5), numbers(4, 6)
    kept = client.put("w", w)
    assert (kept.name, kept.shape, kept.dtype, kept.nbytes, kept.evictable) == ("w", (6, 5), "float64", 240, False)
    assert np.array_equal(client.matmul(x, kept, kernel=KERNEL), x @ w)
    assert np.array_equal(client.matmul(kept.T, x.T, kernel=KERNEL), w.T @ x.T)
    assert np.array_equal(client.matmul(kept, kept.T, kernel=KERNEL), w @ w.T)
    assert np.array_equal(client.matmul(x[0], kept, kernel=KERNEL), x[0] @ w)
    assert np.array_equal(client.matmul(numbers(3, 2, 4, 6), kept, kernel=KERNEL), numbers(3, 2, 4, 6) @ w)
    assert np.array_equal(client.matmul(kept, numbers(3, 5, 2), kernel=KERNEL), w @ numbers(3, 5, 2))
    assert np.array_equal(client.get(kept), w)
    assert np.array_equal(client.get(kept.T), w.T)
    client.delete(kept)
    with pytest.raises(UnknownMatrix):
        client.matmul(x, kept, kernel=KERNEL)


def test_any_layout_and_batches_can_be_put_and_come_back(client: Client) -> None:
    for number, array in enumerate(
        (numbers(4, 3).T, numbers(8, 3)[::2], numbers(2, 3, 4), numbers(2, 3, 4, dtype=">f4"))
    ):
        kept = client.put(f"m{number}", array)
        back, room = client.get(f"m{number}"), np.empty(array.shape, array.dtype.newbyteorder("="))
        assert np.array_equal(back, array)
        assert client.get(kept, out=room) is room
        assert np.array_equal(room, array)
        client.delete(f"m{number}")
    stack = client.put("stack", numbers(2, 3, 4))
    assert np.array_equal(client.matmul(stack, numbers(2, 4, 5), kernel=KERNEL), numbers(2, 3, 4) @ numbers(2, 4, 5))
    assert np.array_equal(client.matmul(numbers(5, 3), stack, kernel=KERNEL), numbers(5, 3) @ numbers(2, 3, 4))
    with pytest.raises(ValueError, match="a matrix or a batch"):
        client.put("vector", numbers(3))


def test_a_product_can_stay_with_the_service(client: Client) -> None:
    a, b = numbers(4, 3), numbers(3, 5)
    kept = client.keep("c", a, b, evictable=True, kernel=KERNEL)
    assert (kept.shape, kept.evictable) == ((4, 5), True)
    assert np.array_equal(client.matmul(kept, b.T, kernel=KERNEL), a @ b @ b.T)
    batch = client.keep("c", numbers(2, 4, 3), numbers(2, 3, 5), kernel=KERNEL)
    assert batch.shape == (2, 4, 5)
    assert batch.version > kept.version
    assert np.array_equal(client.get("c"), numbers(2, 4, 3) @ numbers(2, 3, 5))
    assert "c" in [each.name for each in client.matrices()]
    assert client.matrix("c").shape == (2, 4, 5)
    with pytest.raises(ValueError, match="a matrix or a batch"):
        client.keep("c", a[0], b, kernel=KERNEL)


@pytest.mark.rotating
def test_a_submitted_product_is_fetched_when_it_is_wanted(client: Client) -> None:
    a, b = numbers(40, 30), numbers(3, 30, 2)
    waited = [
        client.submit(a, b, kernel=KERNEL),
        client.submit(a[0], a[0], kernel=KERNEL),
        client.submit(a[:0], a.T, kernel=KERNEL),
    ]
    for pending, expected in zip(waited, (a @ b, a[0] @ a[0], a[:0] @ a.T), strict=True):
        c = pending.result(timeout=60)
        assert type(c) is type(expected)
        assert np.array_equal(c, expected)
        assert pending.done()
    assert np.array_equal(waited[0].result(), a @ b)
    failed = client.submit(a, a.T, kernel="vendor", device="opencl:0")
    assert np.allclose(failed.result(), a @ a.T)


@pytest.mark.slow
def test_everything_is_there_for_asyncio_too(service: Served) -> None:
    async def all_of_it() -> None:
        a = numbers(20, 30)
        async with AsyncClient(service.url) as client:
            several = [a[: number % 3 + 1] * number for number in range(20)]
            products = await asyncio.gather(*(client.matmul(each, a.T, kernel=KERNEL) for each in several))
            assert [np.array_equal(c, each @ a.T) for c, each in zip(products, several, strict=True)] == [True] * 20
            kept = await client.put("later", a)
            pending = await client.submit(kept.T, a, kernel=KERNEL)
            assert np.array_equal(await pending.result(), a.T @ a)
            job = await client.tune([24], trials=1, kernels=["naive"])
            names = [event.name async for event in client.events(job.id)]
            assert names[-1] == "end"
            assert (await client.wait(job.id)).state == "succeeded"
            with pytest.raises(NotTuned):
                await client.best_config(91, 92, 93, match="exact")
            await client.delete(kept)

    asyncio.run(all_of_it())


def test_a_cancelled_task_leaves_the_client_usable(service: Served) -> None:
    async def cancelled() -> None:
        a = np.ones((1200, 1200), np.float32)
        async with AsyncClient(service.url) as client:
            task = asyncio.create_task(client.matmul(a, a, kernel="naive"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert np.array_equal(await client.matmul(a[:2, :2], a[:2, :2], kernel=KERNEL), np.full((2, 2), 2.0))

    asyncio.run(cancelled())


def test_a_task_that_is_cancelled_twice_ends_once_its_work_in_a_thread_has() -> None:
    begun, free, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert free.wait(20)
        done.set()

    def flow() -> Flow[None]:
        yield Work(work)

    async def cancelled() -> None:
        task = asyncio.create_task(awaited(flow()))
        await asyncio.to_thread(begun.wait, 20)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    asyncio.run(cancelled())


def test_every_code_of_the_service_has_its_class() -> None:
    kinds = list(service_errors.TilewiseError.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
    told = [kind for kind in kinds if "code" in vars(kind) and not issubclass(kind, service_errors.StartRefused)]
    assert len(told) > 30
    for kind in told:
        found = error_of(kind.status, {"code": kind.code, "error": "no", "limit": 3, "size": 4.5}, "7")
        assert type(found).__name__ in {kind.__name__, "NotFound"}, kind
        assert getattr(errors, type(found).__name__).__doc__
        assert (found.limit, found.size, found.retry_after, found.code) == (3, 4.5, 7.0, kind.code)


@pytest.mark.parametrize("error", [QuotaExceeded("full", 507, "quota_exceeded", {"limit": 1}, 2.0), TimedOut("late")])
def test_errors_can_be_sent_to_another_process(error: ClientError) -> None:
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    assert (type(back), vars(back), str(back)) == (type(error), vars(error), str(error))
    assert isinstance(TimedOut("late"), TimeoutError)


def test_unknown_names_are_errors_of_their_kind(client: Client) -> None:
    with pytest.raises(UnknownJob):
        client.job("no such job")
    with pytest.raises(UnknownMatrix):
        client.matmul(numbers(2, 3), Matrix("nobody", (3, 4), "float64"))
