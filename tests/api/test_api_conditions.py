"""Preconditions on resident matrices, and what caches are told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from tests.support.api.http_client import calling
from tests.support.api.request_bodies import npy

EYE = np.eye(4, dtype=np.float32)
NPY = {"Content-Type": "application/x-npy"}
PLACE = "/matrices/conditional"


def put(client: httpx.Client, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.put(PLACE, content=npy(EYE), headers=NPY | named)


def refused(answer: httpx.Response) -> Any:
    assert answer.status_code == 412, answer.text
    body = answer.json()
    assert body["code"] == "precondition_failed"
    return body["version"]


def test_a_matrix_is_replaced_only_as_the_version_that_was_named(client: httpx.Client) -> None:
    assert refused(put(client, If_Match="*")) is None
    first = put(client, If_None_Match="*")
    assert first.status_code == 201
    assert refused(put(client, If_None_Match="*")) == first.json()["version"]
    tag = first.headers["ETag"]
    assert client.get(PLACE).headers["ETag"] == client.head(PLACE).headers["ETag"] == tag
    assert client.get(PLACE, headers={"Accept": "application/x-npy"}).headers["ETag"] == tag
    second = put(client, If_Match=f'"another", {tag}')
    assert (second.status_code, second.headers["ETag"] == tag) == (200, False)
    for condition in ({"If_Match": tag}, {"If_Match": f"W/{second.headers['ETag']}"}, {"If_Match": tag + "x"}):
        assert refused(put(client, **condition)) == second.json()["version"]
    assert refused(put(client, If_None_Match=f"W/{second.headers['ETag']}")) == second.json()["version"]
    assert put(client, If_None_Match=tag).status_code == 200
    assert put(client, If_Match="*", If_None_Match="*").status_code == 200, "If-Match goes first"
    now = client.get(PLACE).headers["ETag"]
    refused(client.delete(PLACE, headers={"If-Match": tag}))
    assert client.delete(PLACE, headers={"If-Match": now}).status_code == 204


def test_of_many_that_would_be_first_one_is(live: Started, client: httpx.Client) -> None:
    def once(_: int) -> int:
        with calling(live.url) as other:
            return put(other, If_None_Match="*").status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(once, range(8))) == [201] + [412] * 7
    client.delete(PLACE)


def test_a_result_that_stays_has_its_tag(client: httpx.Client) -> None:
    put(client)
    left = client.post("/matmul?a=conditional&b=conditional&c=conditional")
    assert left.status_code == 201, left.text
    assert client.delete(PLACE, headers={"If-Match": left.headers["ETag"]}).status_code == 204


def test_a_refused_condition_costs_no_body(client: httpx.Client) -> None:
    """It is answered before a byte: the body says nothing of a matrix."""
    answer = client.put(PLACE, content=b"no matrix", headers=NPY | {"If-Match": "*"})
    assert refused(answer) is None


def test_pages_are_asked_for_again_and_not_sent_again(client: httpx.Client) -> None:
    for path in ("/", "/ui/jobs", "/docs", "/static/app.js", "/static/vendor/echarts.js"):
        first = client.get(path)
        assert first.headers["Cache-Control"] == "no-cache"
        again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/devices", "private, no-cache"),
        ("/best-config?m=8&n=8&k=8", "private, no-cache"),
        ("/health/live", "private, no-cache"),
        ("/errors", "no-cache"),
        ("/jobs/none", "no-store"),
        ("/nothing", "no-store"),
    ],
)
def test_what_is_told_to_one_is_kept_for_nobody_else(client: httpx.Client, path: str, told: str) -> None:
    for _ in range(2):  # some answers are kept rendered
        assert client.get(path).headers.get_list("Cache-Control") == [told]


def test_answers_whose_form_is_chosen_say_by_what(client: httpx.Client) -> None:
    put(client)
    product = {"a": EYE.tolist(), "b": EYE.tolist()}
    later = client.post("/matmul", json=product, headers={"Prefer": "respond-async"}).headers["Location"]
    while (job := client.get(later, headers={"Prefer": "wait=30"}).json())["state"] in {"queued", "running"}:
        pass
    assert job["state"] == "succeeded", job
    raw = {"content": EYE.tobytes() * 2, "headers": {"Content-Type": "application/octet-stream"}}
    answers = [
        client.get("/errors/invalid"),
        client.get("/errors/invalid", headers={"Accept": "text/html"}),
        client.get("/errors", headers={"Accept": "text/html"}),
        client.get(PLACE),
        client.get(PLACE, headers={"Accept": "application/x-npy"}),
        client.post("/matmul", json=product),
        client.post("/matmul?m=4&n=4&k=4", **raw),  # type: ignore[arg-type]  # both are what httpx takes
        client.get(f"{later}/result"),
        client.get(f"{later}/result", headers={"Accept": "application/json"}),
    ]
    assert [(one.status_code, one.headers.get("Vary")) for one in answers] == [(200, "Accept")] * len(answers)
    tensors = [{"name": name, "datatype": "FP32", "shape": [4, 4], "data": EYE.ravel().tolist()} for name in "AB"]
    for coding in ("identity", "gzip"):
        answer = client.post("/v2/models/matmul/infer", json={"inputs": tensors}, headers={"Accept-Encoding": coding})
        assert answer.headers.get_list("Vary") == ["Accept-Encoding"]
    client.delete(PLACE)
