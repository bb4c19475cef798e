"""A product asked for with Prefer is a job: in time or later, in any form, once for a key, cancelled while it waits."""

from __future__ import annotations

import io
import itertools
import json
import resource
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started, started
from app.dtypes import Array
from tests.support.api.http_client import calling
from tests.support.waiting import until

RAW = {"Content-Type": "application/octet-stream"}
SIZES = itertools.count(20)


def operands(m: int, n: int, k: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(m)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def ask(
    client: httpx.Client, m: int, n: int, k: int, prefer: str = "respond-async", **headers: str
) -> tuple[httpx.Response, Array]:
    a, b = operands(m, n, k)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post(
        "/matmul",
        params={"m": m, "n": n, "k": k},
        content=a.tobytes() + b.tobytes(),
        headers=RAW | {"Prefer": prefer} | named,
    )
    return answer, a.astype(np.float64) @ b


def ended(client: httpx.Client, place: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def has_ended() -> bool:
        seen.append(client.get(place).json())
        return seen[-1]["state"] not in {"queued", "running", "cancelling"}

    until(has_ended, 60, meanwhile=lambda: seen[-1])
    return seen[-1]


def close(c: Array, expected: Array) -> bool:
    return bool(np.linalg.norm(c - expected) <= 1e-6 * np.linalg.norm(expected))


@pytest.mark.slow
def test_the_result_of_an_asynchronous_product_comes_in_any_form(client: httpx.Client) -> None:
    answer, expected = ask(client, 30, 20, 10)
    assert answer.status_code == 202
    assert answer.headers["Preference-Applied"] == "respond-async"
    assert int(answer.headers["Retry-After"]) >= 1
    place = answer.headers["Location"]
    job = ended(client, place)
    assert (job["state"], job["kind"]) == ("succeeded", "matmul")

    def result(accept: str) -> httpx.Response:
        found = client.get(place + "/result", headers={"Accept": accept})
        assert found.status_code == 200
        assert (found.headers["X-Shape"], found.headers["X-Dtype"]) == ("30x20", "float32")
        assert "kernel;dur=" in found.headers["Server-Timing"]
        assert found.headers["X-Instructions"] == "fma"
        return found

    assert result("*/*").headers["content-type"] == "application/x-npy"
    assert close(np.load(io.BytesIO(result("*/*").content)), expected)
    plain = result("application/octet-stream").content
    assert close(np.frombuffer(plain, np.float32).reshape(30, 20), expected)
    tensors = result("application/vnd.safetensors").content
    start = 8 + struct.unpack("<Q", tensors[:8])[0]
    assert json.loads(tensors[8:start])["c"]["shape"] == [30, 20]
    assert tensors[start:] == plain
    assert close(np.array(result("application/json").json()["c"]), expected)
    refused = client.get(place + "/result", headers={"Accept": "text/html"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


def test_a_product_that_is_made_in_time_is_the_answer(client: httpx.Client) -> None:
    for prefer in ("respond-async, wait=60", "wait=60"):
        answer, expected = ask(client, 31, 21, 11, prefer)
        assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, prefer)
        assert close(np.frombuffer(answer.content, np.float32).reshape(31, 21), expected)
        job = client.get(answer.headers["Location"]).json()
        assert (job["state"], job["progress"]["done"], job["progress"]["total"]) == ("succeeded", 1, 1)
        assert {"m", "n", "k", "dtype"} < set(job["result"]["problem"])
        assert {"queue", "kernel"} <= set(job["result"]["timing_ms"])
    answer, expected = ask(client, 31, 21, 11, "wait=60", Accept="application/x-npy")
    assert close(np.load(io.BytesIO(answer.content)), expected)


@pytest.mark.parametrize("prefer", [{}, {"Prefer": "wait=60"}])
def test_answer_has_the_form_of_the_request_with_and_without_a_wait(
    client: httpx.Client, prefer: dict[str, str]
) -> None:
    answer = client.post("/matmul", json={"a": [[1, 2], [3, 4]], "b": [[5, 6], [7, 8]]}, headers=prefer)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["c"] == [[19, 22], [43, 50]]
    assert answer.headers["X-Shape"] == "2x2"


def test_a_product_that_is_not_made_in_time_is_a_job(client: httpx.Client) -> None:
    a, b = operands(900, 900, 900)
    for prefer in ("wait=0", "respond-async, wait=0.001"):
        answer = client.post(
            "/matmul?m=900&n=900&k=900&kernel=naive",
            content=a.tobytes() + b.tobytes(),
            headers=RAW | {"Prefer": prefer},
        )
        assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, prefer)
        client.delete(answer.headers["Location"])
        assert ended(client, answer.headers["Location"])["state"] in {"cancelled", "succeeded"}


def test_an_error_within_the_wait_is_the_answer(client: httpx.Client) -> None:
    a, b = operands(300, 300, 300)
    answer = client.post(
        "/matmul?m=300&n=300&k=300&kernel=skinny",
        content=a.tobytes() + b.tobytes(),
        headers=RAW | {"Prefer": "wait=60"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")


def test_what_no_kernel_computes_is_refused_at_once_and_makes_no_job(client: httpx.Client) -> None:
    answer = client.post(
        "/matmul",
        params={"m": 2, "n": 2, "k": 2, "dtype": "float16", "precision": "tf32"},
        content=bytes(16),
        headers=RAW | {"Prefer": "respond-async"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")


def test_a_job_without_a_result_says_so(client: httpx.Client) -> None:
    answer = client.post("/tune", json={"shapes": [{"m": 70, "n": 70, "k": 70}]})
    place = answer.headers["Location"]
    refused = client.get(place + "/result")
    client.delete(place)
    assert refused.status_code == 404
    assert refused.json()["code"] == "no_result"


def slow(client: httpx.Client) -> str:
    """Keep the device busy for a while: the place of the job that does."""
    a, b = operands(1000, 1000, 1000)
    url = "/matmul?m=1000&n=1000&k=1000&kernel=naive"
    answer = client.post(url, content=a.tobytes() + b.tobytes(), headers=RAW | {"Prefer": "respond-async"})
    assert answer.status_code == 202
    place: str = answer.headers["Location"]
    until(lambda: client.get(place).json()["state"] != "queued", 60, each=0.005)
    return place


def waiting(client: httpx.Client) -> int:
    found: int = client.get("/limits").json()["waiting"]
    return found


def test_a_job_that_waits_is_cancelled_at_once(client: httpx.Client) -> None:
    place = slow(client)
    answer, _ = ask(client, 40, 40, 40)
    state = client.delete(answer.headers["Location"]).json()["state"]
    assert state in {"cancelled", "succeeded"}
    result = client.get(answer.headers["Location"] + "/result")
    assert result.status_code == (404 if state == "cancelled" else 200), "what was busy may have ended before"
    client.delete(place)
    assert ended(client, place)["state"] in {"cancelled", "succeeded"}


@pytest.mark.rotating
def test_a_client_that_goes_away_cancels_its_product_that_waits(live: Started, client: httpx.Client) -> None:
    place = slow(client)
    a, b = operands(50, 50, 50)
    address = urlsplit(live.url)
    head = f"POST /matmul?m=50&n=50&k=50 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {RAW['Content-Type']}\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + b"Content-Length: 20000\r\n\r\n" + a.tobytes() + b.tobytes())
        until = time.monotonic() + 10
        while (before := waiting(client)) < 2 and client.get(place).json()["state"] == "running":
            assert time.monotonic() < until
        was = client.get(place).json()["state"]
    while waiting(client) >= max(before, 1) and client.get(place).json()["state"] == "running":
        assert time.monotonic() < until + 30
    now = client.get(place).json()["state"]
    client.delete(place)
    assert ended(client, place)["state"] in {"cancelled", "succeeded"}
    assert before == 2 or was == "succeeded"
    assert now == "running" or was == "succeeded", "it left only once the device was free"


def fifty(live: Started, method: str, path: str, content: bytes, headers: dict[str, str]) -> list[httpx.Response]:
    """The same request fifty times at once, each on a connection of its own."""
    answers: list[httpx.Response] = []
    gate = threading.Barrier(50)

    def fire() -> None:
        with calling(live.url, 120) as client:
            client.get("/health/live")
            gate.wait(60)
            answers.append(client.request(method, path, content=content, headers=headers))

    threads = [threading.Thread(target=fire) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def jobs(client: httpx.Client, kind: str) -> Counter[str]:
    return Counter(job["id"] for job in client.get("/jobs", params={"kind": kind, "limit": 1000}).json()["jobs"])


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["tune", "matmul"])
def test_a_key_fired_fifty_times_at_once_is_one_job(live: Started, client: httpx.Client, kind: str) -> None:
    before, size = jobs(client, kind), next(SIZES)
    if kind == "tune":
        order = {"shapes": [{"m": size, "n": 9, "k": 9}], "budget": {"trials": 1}, "kernels": ["tiled"], "retune": True}
        path, content, headers = "/tune", json.dumps(order).encode(), {"Content-Type": "application/json"}
    else:
        a, b = operands(size, 9, 9)
        path, content, headers = (
            f"/matmul?m={size}&n=9&k=9",
            a.tobytes() + b.tobytes(),
            RAW | {"Prefer": "respond-async"},
        )
    answers = fifty(live, "POST", path, content, headers | {"Idempotency-Key": f'"fifty {kind}"'})
    again = client.post(path, content=content, headers=headers | {"Idempotency-Key": f'"fifty {kind}"'})
    taken = [answer for answer in (*answers, again) if answer.status_code == 202]
    first = [answer for answer in taken if "Idempotent-Replayed" not in answer.headers]
    assert len(jobs(client, kind) - before) == 1
    assert len(first) == 1
    assert len({answer.content for answer in taken}) == 1
    assert len({answer.headers["Location"] for answer in taken}) == 1
    for answer in answers:
        assert answer.status_code in {202, 409}
        if answer.status_code == 409:
            assert (answer.json()["code"], answer.headers["Retry-After"]) == ("key_in_use", "1")
    assert again.headers["Idempotent-Replayed"] == "true"
    client.delete(again.headers["Location"])


def test_a_key_that_comes_with_another_request_is_refused(client: httpx.Client) -> None:
    key = {"Idempotency_Key": '"another request"'}
    first, _ = ask(client, 33, 9, 9, **key)
    assert first.status_code == 202
    other, _ = ask(client, 34, 9, 9, **key)
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    order = {"shapes": [{"m": 9, "n": 9, "k": 9}]}
    tune = client.post("/tune", json=order, headers={"Idempotency-Key": "another request".replace(" ", "-")})
    client.delete(tune.headers["Location"])
    assert tune.status_code == 202, "it is another key"
    assert client.post("/tune", json=order, headers={"Idempotency-Key": '"another request"'}).status_code == 422


@pytest.mark.slow
def test_a_result_is_replayed_as_it_was_first_answered(client: httpx.Client) -> None:
    key = {"Idempotency_Key": '"a result"'}
    first, expected = ask(client, 30, 20, 10, "wait=60", **key)
    again, _ = ask(client, 30, 20, 10, "wait=60", **key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content
    assert close(np.frombuffer(again.content, np.float32).reshape(30, 20), expected)
    assert (again.headers["Location"], again.headers["Idempotent-Replayed"]) == (first.headers["Location"], "true")


def test_the_error_of_a_job_that_fails_within_the_wait_is_replayed(client: httpx.Client) -> None:
    a, b = operands(300, 300, 300)
    before = jobs(client, "matmul")
    first, again = (
        client.post(
            "/matmul?m=300&n=300&k=300&kernel=skinny",
            content=a.tobytes() + b.tobytes(),
            headers=RAW | {"Prefer": "wait=60", "Idempotency-Key": '"it fails"'},
        )
        for _ in range(2)
    )
    assert (first.status_code, first.json()["code"]) == (422, "unsupported")
    assert (again.status_code, again.content) == (422, first.content)
    assert again.headers["Content-Type"] == first.headers["Content-Type"] == "application/problem+json"
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(jobs(client, "matmul") - before) == 1


def test_what_was_refused_may_be_tried_again_with_its_key(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": '"refused first"'}
    order = {"shapes": [{"m": 9, "n": 9, "k": 9}], "kernels": ["tiled"], "budget": {"trials": 1}}
    refused = client.post("/tune", json=order | {"device": "cuda:77"}, headers=headers)
    assert refused.status_code == 404
    assert client.post("/tune", json=order, headers=headers).status_code == 202


@pytest.mark.parametrize(
    "key", ["", '""', '"open', "a b", '"' + "x" * 256 + '"', "\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_what_is_no_key_is_refused(client: httpx.Client, key: str) -> None:
    order = {"shapes": [{"m": 9, "n": 9, "k": 9}]}
    answer = client.post("/tune", json=order, headers={b"Idempotency-Key": key.encode("latin1")})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


@pytest.mark.slow
def test_accepted_products_are_made_without_a_new_thread(tmp_path: Path) -> None:
    """7 MiB of address space are left: a thread's stack takes 8, where nobody says how much."""
    with (
        started(tmp_path, devices="opencl", slab_bytes=str(2**26)) as running,
        calling(running.url) as client,
    ):
        until(lambda: client.get("/health/ready").status_code == 200, 90, each=0.1)
        assert ended(client, ask(client, 20, 20, 20)[0].headers["Location"])["state"] == "succeeded"
        busy, pid = slow(client), running.process.pid
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + 7 * 2**20, resource.RLIM_INFINITY))
        answers = [ask(client, 20, 20, 20)[0] for _ in range(60)]
        assert {answer.status_code for answer in answers} == {202}
        states = [ended(client, each)["state"] for each in (busy, *(one.headers["Location"] for one in answers))]
        assert set(states) == {"succeeded"}
