"""`verify=freivalds` over HTTP, in every form of the answer, and from the clients."""

from __future__ import annotations

import asyncio

import httpx
import numpy as np
import pytest

from tests.support.waiting import until
from tilewise import AsyncClient, Certificate, Client

A = np.random.default_rng(1).standard_normal((200, 96)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((96, 70)).astype(np.float32)
SIZES: dict[str, int | str] = {"m": 200, "n": 70, "k": 96, "verify": "freivalds"}
RAW = {"Content-Type": "application/octet-stream"}


@pytest.mark.slow
def test_the_answer_carries_what_was_found(client: httpx.Client) -> None:
    answer = client.post("/matmul", params=SIZES, content=A.tobytes() + B.tobytes(), headers=RAW)
    assert answer.status_code == 200, answer.text
    method, *members = answer.headers["x-certificate"].split("; ")
    found = dict(member.split("=") for member in members)
    assert method == "freivalds"
    assert float(found["residual"]) < float(found["bound"])
    assert float(found["missed"]) == pytest.approx(2.0 ** -int(found["rounds"]), rel=1e-5)
    assert "verify;dur=" in answer.headers["server-timing"]
    body = {"a": A.tolist(), "b": B.tolist(), "verify": "freivalds"}
    told = client.post("/matmul", json=body).json()["certificate"]
    assert told["method"] == "freivalds"
    assert told["residual"] <= told["bound"]
    assert set(found) <= set(told)


@pytest.mark.slow
def test_what_was_not_asked_for_is_not_there_and_another_method_is_refused(client: httpx.Client) -> None:
    plain = client.post("/matmul", json={"a": [[1.0]], "b": [[2.0]]})
    assert plain.json()["certificate"] is None
    assert "x-certificate" not in plain.headers
    refused = client.post("/matmul", json={"a": [[1.0]], "b": [[2.0]], "verify": "twice"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")


@pytest.mark.slow
def test_a_job_tells_it_with_its_result(client: httpx.Client) -> None:
    asked = {"Prefer": "respond-async", **RAW}
    job = client.post("/matmul", params=SIZES, content=A.tobytes() + B.tobytes(), headers=asked).json()["id"]
    until(lambda: client.get(f"/jobs/{job}").json()["state"] == "succeeded")
    assert client.get(f"/jobs/{job}").json()["result"]["certificate"]["method"] == "freivalds"
    result = client.get(f"/jobs/{job}/result", headers={"Accept": "application/json"})
    assert result.headers["x-certificate"].startswith("freivalds; ")
    assert result.json()["certificate"]["rounds"] == 16


@pytest.mark.slow
def test_clients_ask_for_it_and_read_it(client: httpx.Client) -> None:
    url = str(client.base_url)
    with Client(url) as caller:
        made = caller.product(A, B, verify="freivalds")
        assert isinstance(made.certificate, Certificate)
        assert made.certificate.residual <= made.certificate.bound
        assert caller.product(A, B).certificate is None
        assert np.array_equal(caller.matmul(A, B, verify="freivalds"), made.c)
        large = np.ones((512, 512), np.float32)  # which would go through shared memory
        assert caller.product(large, large, verify="freivalds").certificate is not None
        pending = caller.submit(A, B, verify="freivalds")
        assert np.array_equal(pending.result(60), made.c)
        told = caller.job(str(pending.id)).result
        assert told is not None
        assert told["certificate"]["method"] == "freivalds"

    async def asynchronously() -> None:
        async with AsyncClient(url) as other:
            found = await other.product(A, B, verify="freivalds")
            assert found.certificate is not None
            later = await other.submit(A, B, verify="freivalds")
            assert np.array_equal(await later.result(60), made.c)

    asyncio.run(asynchronously())
