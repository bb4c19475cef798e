"""Operands that are .npy files in the service's folder, from the clients and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.dtypes import numpy_dtype
from tests.support.api.service_in_process import running
from tilewise import AsyncClient, Client, InvalidMatrix, ServiceFile, UnknownFile

A: NDArray[Any] = np.random.default_rng(1).integers(-8, 9, (60, 40)).astype(np.float32)
B: NDArray[Any] = np.random.default_rng(2).integers(-8, 9, (40, 30)).astype(np.float32)
FILE_A, FILE_B = ServiceFile("a.npy"), ServiceFile("models/b.npy")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("operands")
    (folder / "models").mkdir()
    np.save(folder / "a.npy", A)
    np.save(folder / "models" / "b.npy", B)
    np.save(folder / "turned.npy", B.T.copy())
    np.save(folder / "halves.npy", B.astype(numpy_dtype("bfloat16")))
    np.save(folder / "batch.npy", np.stack([A, 2 * A]))
    with running(tmp_path_factory.mktemp("files"), operand_dir=folder) as service:
        yield f"http://127.0.0.1:{service.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as opened:
        yield opened


@pytest.mark.slow
def test_one_or_both_operands_may_be_files(client: Client) -> None:
    assert np.array_equal(client.matmul(FILE_A, FILE_B), A @ B)
    assert np.array_equal(client.matmul(A, FILE_B), A @ B)
    assert np.array_equal(client.matmul(FILE_A, np.asfortranarray(B)), A @ B)
    made = client.product(FILE_A, FILE_B, verify="freivalds")
    assert made.kernel
    assert made.certificate is not None


@pytest.mark.slow
def test_a_file_may_be_transposed_and_be_a_batch(client: Client) -> None:
    assert np.array_equal(client.matmul(FILE_A, ServiceFile("turned.npy").T), A @ B)
    assert np.array_equal(client.matmul(FILE_A, ServiceFile("turned.npy"), trans_b=True), A @ B)
    assert np.array_equal(client.matmul(FILE_B.T, FILE_A.T), (A @ B).T)
    both = client.matmul(ServiceFile("batch.npy"), np.stack([B, B]))
    assert np.array_equal(both, np.stack([A @ B, 2 * (A @ B)]))


@pytest.mark.slow
def test_one_of_bfloat16_says_so(client: Client) -> None:
    found = client.matmul(A.astype(numpy_dtype("bfloat16")), ServiceFile("halves.npy", "bfloat16"))
    assert found.dtype == numpy_dtype("bfloat16")
    assert np.allclose(found.astype(np.float32), A @ B, rtol=2**-8)


@pytest.mark.slow
def test_c_goes_where_it_is_told_to(client: Client) -> None:
    out = np.empty((60, 30), np.float64)
    assert client.matmul(FILE_A, FILE_B, out) is out
    assert np.array_equal(out, A @ B)
    with pytest.raises(ValueError, match="out has the shape"):
        client.matmul(FILE_A, FILE_B, np.empty((30, 60), np.float32))


@pytest.mark.slow
def test_it_may_stay_with_the_service_and_meet_what_does(client: Client) -> None:
    kept = client.keep("of-files", FILE_A, FILE_B)
    assert kept.shape == (60, 30)
    assert np.array_equal(client.matmul(kept.T, FILE_A), (A @ B).T @ A)


@pytest.mark.slow
def test_a_job_is_made_of_them(client: Client, url: str) -> None:
    pending = client.submit(FILE_A, FILE_B)
    assert pending.shape is None
    assert np.array_equal(pending.result(60), A @ B)

    async def asynchronously() -> None:
        async with AsyncClient(url) as other:
            assert np.array_equal(await other.matmul(FILE_A, B), A @ B)
            assert np.array_equal(await (await other.submit(FILE_A, FILE_B)).result(60), A @ B)

    asyncio.run(asynchronously())


def test_what_is_no_operand_is_refused(client: Client) -> None:
    with pytest.raises(UnknownFile):
        client.matmul(ServiceFile("none.npy"), FILE_B)
    with pytest.raises(InvalidMatrix):
        client.matmul(FILE_A, FILE_A)
    with pytest.raises(ValueError, match="a matrix or a batch"):
        client.matmul(FILE_A, np.ones(40, np.float32))
