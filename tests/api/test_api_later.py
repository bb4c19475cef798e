"""A product asked for with Prefer: respond-async is a job, and its result waits to be fetched."""

from __future__ import annotations

import io
import time

import httpx
import numpy as np


def ask(client: httpx.Client, m: int, n: int, k: int) -> tuple[httpx.Response, np.ndarray[tuple[int, ...], np.dtype]]:
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    answer = client.post(
        "/matmul",
        params={"m": m, "n": n, "k": k},
        content=a.tobytes() + b.tobytes(),
        headers={"Content-Type": "application/octet-stream", "Prefer": "respond-async"},
    )
    return answer, a.astype(np.float64) @ b


def ended(client: httpx.Client, place: str) -> dict[str, object]:
    until = time.monotonic() + 30
    while (job := client.get(place).json())["state"] in {"queued", "running"}:
        assert time.monotonic() < until, job
        time.sleep(0.02)
    found: dict[str, object] = job
    return found


def test_the_result_of_an_asynchronous_product_is_one_npy(client: httpx.Client) -> None:
    answer, expected = ask(client, 30, 20, 10)
    assert answer.status_code == 202
    assert answer.headers["Preference-Applied"] == "respond-async"
    job = ended(client, answer.headers["Location"])
    assert (job["state"], job["kind"]) == ("succeeded", "matmul")
    result = client.get(answer.headers["Location"] + "/result")
    c = np.load(io.BytesIO(result.content))
    assert np.linalg.norm(c - expected) <= 1e-6 * np.linalg.norm(expected)


def test_what_no_kernel_computes_is_refused_at_once_and_makes_no_job(client: httpx.Client) -> None:
    answer = client.post(
        "/matmul",
        params={"m": 2, "n": 2, "k": 2, "dtype": "float16"},
        content=bytes(16),
        headers={"Content-Type": "application/octet-stream", "Prefer": "respond-async"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")


def test_a_job_without_a_result_says_so(client: httpx.Client) -> None:
    answer = client.post("/tune", json={"shapes": [{"m": 70, "n": 70, "k": 70}]})
    place = answer.headers["Location"]
    refused = client.get(place + "/result")
    client.delete(place)
    assert refused.status_code == 404
    assert refused.json()["code"] == "no_result"
