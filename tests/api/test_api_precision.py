"""Every way to ask for a product says in which precision it was made, and why that is not the one asked for."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tilewise import Client

REASON = "emulate"
A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(8, dtype=np.float32).reshape(4, 2)
BODY = {"a": A.tolist(), "b": B.tolist()}


def test_a_strict_product_was_declined_by_nobody(client: httpx.Client) -> None:
    answer = client.post("/matmul", json=BODY)
    assert answer.headers["x-precision"] == answer.json()["precision"] == "strict"
    assert answer.json()["declined"] is None
    assert "x-declined" not in answer.headers


def test_what_cannot_be_emulated_here_is_strict_and_says_why(client: httpx.Client) -> None:
    answer = client.post("/matmul", json=BODY, params={"precision": "emulated"})
    assert answer.json()["c"] == (A @ B).tolist()
    assert answer.headers["x-precision"] == answer.json()["precision"] == "strict"
    assert REASON in answer.json()["declined"]
    assert answer.headers["x-declined"] == answer.json()["declined"]


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kernel", [None, "naive", "tiled", "vendor"])
def test_what_has_no_tf32_here_is_strict_although_it_is_allowed(client: httpx.Client, kernel: str | None) -> None:
    query = {"precision": "tf32"} | ({} if kernel is None else {"kernel": kernel})
    answer = client.post("/matmul", json=BODY, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-precision"] == answer.json()["precision"] == "strict"
    best = client.get("/best-config", params={"m": 3, "n": 2, "k": 4, "precision": "tf32"}).json()
    assert (best["problem"]["precision"], best["precision"]) == ("tf32", "strict")


def test_a_job_and_its_result_say_the_same(client: httpx.Client) -> None:
    job = client.post("/matmul", json=BODY, params={"precision": "emulated"}, headers={"Prefer": "respond-async"})
    assert job.status_code in {200, 202}
    while (now := client.get(f"/jobs/{job.json()['id']}").json())["state"] in {"queued", "running", "cancelling"}:
        pass
    assert now["result"]["precision"] == "strict"
    assert REASON in now["result"]["declined"]
    result = client.get(f"/jobs/{now['id']}/result", headers={"Accept": "application/json"})
    assert result.headers["x-declined"] == result.json()["declined"] == now["result"]["declined"]


def test_the_best_config_of_a_problem_to_be_emulated_is_the_strict_one(client: httpx.Client) -> None:
    sizes = {"m": 40, "n": 50, "k": 300}
    strict = client.get("/best-config", params=sizes).json()
    emulated = client.get("/best-config", params={**sizes, "precision": "emulated"}).json()
    assert (strict["precision"], strict["declined"]) == ("strict", None)
    assert (emulated["kernel"], emulated["config"]) == (strict["kernel"], strict["config"])
    assert (emulated["problem"]["precision"], emulated["precision"]) == ("emulated", "strict")
    assert REASON in emulated["declined"]


def test_an_inference_says_so_among_its_parameters(client: httpx.Client) -> None:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": each.shape, "data": each.ravel().tolist()}
        for name, each in (("A", A), ("B", B))
    ]
    body = {"inputs": inputs, "parameters": {"precision": "emulated"}}
    told = client.post("/v2/models/matmul/infer", json=body).json()["parameters"]
    assert told["precision"] == "strict"
    assert REASON in told["declined"]
    assert "declined" not in client.post("/v2/models/matmul/infer", json={"inputs": inputs}).json()["parameters"]


def test_the_client_has_both_beside_the_product(client: httpx.Client) -> None:
    with Client(str(client.base_url)) as here:
        made = here.product(A, B, precision="emulated")
        best = here.best_config(40, 50, 300, precision="emulated")
    assert (made.precision, best.precision) == ("strict", "strict")
    assert REASON in str(made.declined)
    assert REASON in str(best.declined)
