"""What bad input gets: one shape of error, the right status, the figures, and never a 500."""

from __future__ import annotations

import html
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from tests.support.api.request_bodies import BOUNDARY, MAX_BODY, form, npy, npz, rows, safetensors
from tests.support.api.slab_usage import all_given_back

JSON = "application/json"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
NPZ = "application/x-npz"
RAW = "application/octet-stream"
TENSORS = "application/vnd.safetensors"
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(12, dtype=np.float32).reshape(3, 4)


def refused(answer: httpx.Response, status: int, code: str, *words: str) -> dict[str, Any]:
    """The error's body, once its shape is right."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["type"] == f"/errors/{code}"
    assert body["title"]
    assert body["error"] == body["detail"]
    for word in words:
        assert word in body["error"]
    assert "Traceback" not in answer.text
    return body


def test_type_leads_to_the_page_of_the_code(client: httpx.Client) -> None:
    body = client.get("/best-config?m=8&n=8&k=8&device=cuda:9").json()
    page = client.get(body["type"])
    assert page.status_code == 200
    assert page.json() == {
        "code": "unknown_device",
        "status": 404,
        "title": "Not Found",
        "meaning": "No device of that id.",
        "retry_after": None,
    }
    refused(client.get("/errors/magic"), 404, "not_found", "magic", "/errors")


def test_every_code_has_a_page_for_programs_and_for_browsers(client: httpx.Client) -> None:
    pages = client.get("/errors").json()["errors"]
    assert {"queue_full", "malformed", "not_ready", "internal_error"} < {page["code"] for page in pages}
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    index = client.get("/errors", headers=browser)
    for page in pages:
        assert client.get(f"/errors/{page['code']}").json() == page
        shown = client.get(f"/errors/{page['code']}", headers=browser)
        assert shown.headers["content-type"].startswith("text/html")
        assert str(page["status"]) in shown.text
        assert html.escape(page["meaning"]) in shown.text
        assert ("Retry-After" in shown.text) == (page["retry_after"] is not None or "Retry-After" in page["meaning"])
        assert f'href="/errors/{page["code"]}"' in index.text


def test_the_frameworks_own_errors_have_the_one_shape(client: httpx.Client) -> None:
    refused(client.get("/nothing/here"), 404, "not_found", "/nothing/here")
    refused(client.get("/static/nothing.js"), 404, "not_found")
    answer = client.put("/jobs/1")
    refused(answer, 405, "method_not_allowed", "PUT")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"
    assert client.get("/tune").headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("n=1&k=1", ["m is missing"]),
        ("m=0&n=1&k=1", ["m must be", "at least 1", "got 0"]),
        ("m=-3&n=1&k=1", ["m must be", "got -3"]),
        ("m=1.0&n=1&k=1", ["m must be", "integer", "got '1.0'"]),
        ("m=1e3&n=1&k=1", ["m must be", "integer"]),
        ("m=true&n=1&k=1", ["m must be", "integer"]),
        ("m=%201&n=1&k=1", ["m must be", "integer"]),
        ("m=2147483648&n=1&k=1", ["m must be", "at most 2147483647"]),
        ("m=" + "9" * 400 + "&n=1&k=1", ["m must be", "integer"]),
        ("m=1&m=2&n=1&k=1", ["more than once: m"]),
        ("m=1&n=1&k=1&trans_a=1", ["trans_a must be true or false"]),
        ("m=1&n=1&k=1&dtype=float31", ["dtype must be float32, float64"]),
        ("m=1&n=1&k=1&precision=loose", ["precision must be strict, emulated or tf32"]),
        ("m=1&n=1&k=1&match=near", ["match must be exact"]),
        ("m=1&n=1&k=1&tile=16", ["tile is not known here"]),
        ("m=1&n=1&k=1&device=", ["device must be 1 to 200 printable characters"]),
        ("m=1&n=1&k=1&device=%00", ["device must be 1 to 200 printable characters"]),
        ("m=1&n=1&k=%ff", ["cannot be read"]),
    ],
)
def test_a_query_that_means_nothing_is_refused_by_its_member(
    client: httpx.Client, query: str, words: list[str]
) -> None:
    refused(client.get(f"/best-config?{query}"), 422, "invalid", *words)


def test_what_does_not_exist_is_404_with_its_own_code(client: httpx.Client) -> None:
    shape = "m=8&n=8&k=8"
    refused(client.get(f"/best-config?{shape}&device=cuda:9"), 404, "unknown_device", "cuda:9", "opencl:0")
    refused(client.get("/best-config?m=8&n=8&k=999983&match=exact"), 404, "not_tuned")
    refused(client.get("/kernels/magic"), 404, "unknown_kernel", "magic", "tiled")
    refused(client.get("/kernels/magic/source"), 404, "unknown_kernel")
    refused(client.get(f"/analysis?{shape}&tile=16&device=x"), 404, "unknown_device")
    refused(client.get("/trials?device=x"), 404, "unknown_device")
    for method, path in (
        ("GET", "/jobs/1"),
        ("DELETE", "/jobs/1"),
        ("GET", "/jobs/1/events"),
        ("GET", "/jobs/1/result"),
    ):
        refused(client.request(method, path), 404, "unknown_job", "1")
        refused(client.request(method, path.replace("1", "%00")), 404, "unknown_job")
        refused(client.request(method, path.replace("1", "%F0%9F%8D%B5")), 404, "unknown_job")
    body = {"a": [[1]], "b": [[1]]}
    refused(client.post("/matmul?kernel=magic", json=body), 404, "unknown_kernel", "magic")
    refused(client.post("/matmul?device=magic", json=body), 404, "unknown_device", "magic")
    refused(client.post("/matmul", json=body | {"kernel": "magic"}), 404, "unknown_kernel")
    order = {"shapes": [{"m": 8, "n": 8, "k": 8}]}
    refused(client.post("/tune", json=order | {"device": "magic"}), 404, "unknown_device")
    refused(client.post("/tune", json=order | {"kernels": ["magic"]}), 404, "unknown_kernel")


@pytest.mark.parametrize(
    ("order", "where"),
    [
        ({}, "shapes"),
        ({"shapes": []}, "shapes"),
        ({"shapes": [{"m": 8, "n": 8}]}, "shapes.0.k"),
        ({"shapes": [{"m": 0, "n": 8, "k": 8}]}, "shapes.0.m"),
        ({"shapes": [{"m": 8.5, "n": 8, "k": 8}]}, "shapes.0.m"),
        ({"shapes": [{"m": "8", "n": 8, "k": 8}]}, "shapes.0.m"),
        ({"shapes": [{"m": True, "n": 8, "k": 8}]}, "shapes.0.m"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8, "l": 8}]}, "shapes.0.l"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "dtype": "int8"}, "dtype"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "strategy": "magic"}, "strategy"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "budget": {"trials": 0}}, "budget.trials"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "budget": {"seconds": 0}}, "budget.seconds"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "retune": 1}, "retune"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}], "priority": 1}, "priority"),
        ({"shapes": [{"m": 8, "n": 8, "k": 8}] * 257}, "shapes"),
    ],
)
def test_an_order_that_means_nothing_is_refused_by_its_member(
    client: httpx.Client, order: dict[str, Any], where: str
) -> None:
    body = refused(client.post("/tune", json=order), 422, "invalid", where)
    assert body["errors"][0]["where"] == where


def test_orders_that_no_kernel_or_memory_can_meet_are_refused(client: httpx.Client) -> None:
    shape = {"m": 8, "n": 8, "k": 8}
    refused(client.post("/tune", json={"shapes": [shape], "dtype": "float16", "precision": "tf32"}), 422, "unsupported")
    refused(client.post("/tune", json={"shapes": [shape], "dtype": "float64", "precision": "tf32"}), 422, "unsupported")
    huge = {"m": 2**20, "n": 2**20, "k": 8}
    body = refused(client.post("/tune", json={"shapes": [huge]}), 422, "too_large")
    assert body["size"] > body["limit"] > 0


def test_malformed_json_and_wrong_types_of_content_are_told_apart(client: httpx.Client) -> None:
    for path in ("/tune", "/matmul"):
        for text in ("", "{", "[1,", "nul", '{"a": NaN}'):
            refused(client.post(path, content=text, headers={"Content-Type": JSON}), 400, "malformed")
        answer = client.post(path, content="a", headers={"Content-Type": "text/plain"})
        assert JSON in refused(answer, 415, "unsupported_media_type", "text/plain")["accepted"]
        refused(client.post(path, content="a"), 415, "unsupported_media_type")
    for coding in ("br", "zstd", "gzip, gzip", "compress"):
        answer = client.post("/matmul", content=b"x", headers={"Content-Type": JSON, "Content-Encoding": coding})
        assert refused(answer, 415, "unsupported_media_type", coding)["accepted"] == ["gzip", "deflate"]
    answer = client.post("/matmul", json={"a": [[1]], "b": [[1]]}, headers={"Accept": "text/html, image/*"})
    assert JSON in refused(answer, 406, "not_acceptable")["accepted"]


@pytest.mark.parametrize(
    ("media", "query", "body", "status", "code", "words"),
    [
        (JSON, "", b'{"a":[[1,2],[3]],"b":[[1],[2]]}', 422, "invalid_matrix", ["row 1 of a"]),
        (JSON, "", b'{"a":[[1,2]],"b":[[1,2]]}', 422, "invalid_matrix", ["inner dimensions disagree"]),
        (JSON, "", b'{"a":[[1]],"b":[[1]],"dtype":"int8"}', 422, "invalid", ["dtype"]),
        (JSON, "?dtype=float64", rows(A, B, dtype="float32"), 422, "invalid", ["dtype is float64 in the query"]),
        (JSON, "?dtype=float16", rows(A, B), 422, "unsupported", ["float16"]),
        (JSON, "?dtype=bfloat16", rows(A, B), 422, "unsupported", ["bfloat16"]),
        (FORM, "", form(a=npy(A)[:-3], b=npy(B)), 400, "malformed", ["a is truncated"]),
        (FORM, "", form(a=npy(A), b=npy(B))[:-30], 400, "malformed", ["truncated"]),
        (FORM, "", form(a=npy(np.arange(3)), b=npy(B)), 422, "invalid_matrix", ["int64"]),
        (FORM, "", form(a=npy(A.astype("f8")), b=npy(B)), 422, "invalid_matrix", ["float64", "float32"]),
        (FORM, "?precision=tf32", form(a=npy(A.astype("f2")), b=npy(B.astype("f2"))), 422, "unsupported", ["float16"]),
        (FORM, "?dtype=float64", form(a=npy(A), b=npy(B)), 422, "invalid", ["dtype is float32"]),
        ("multipart/form-data", "", form(a=npy(A), b=npy(B)), 400, "malformed", ["boundary"]),
        (NPZ, "", npz(a=A, b=B)[:-40], 400, "malformed", ["archive"]),
        (NPZ, "", npz(a=A), 422, "invalid_matrix", ["a and b"]),
        (RAW, "", b"12345678", 422, "invalid", ["m, n and k"]),
        (RAW, "?m=2&n=4&k=3", b"1" * 71, 422, "invalid_matrix", ["72 bytes", "71"]),
        (RAW, "?m=2&n=4&k=3", b"1" * 73, 422, "invalid_matrix", ["72 bytes", "73"]),
        (RAW, "?m=2&n=4&k=3&dtype=float16&precision=tf32", b"1" * 36, 422, "unsupported", ["float16"]),
        (RAW, "?m=0&n=4&k=3", b"", 422, "invalid", ["m must be at least 1"]),
        (TENSORS, "", safetensors(a=A, b=B)[:-1], 422, "invalid_matrix", ["72 bytes", "71"]),
        (TENSORS, "", safetensors(a=A, b=B)[:50], 400, "malformed", ["truncated"]),
        (TENSORS, "", safetensors(a=A.astype("i4"), b=B), 422, "invalid_matrix", ["I32"]),
        (TENSORS, "", b"\xff" * 100, 400, "malformed", ["header"]),
    ],
)
def test_bodies_that_are_no_product_are_refused(
    client: httpx.Client, media: str, query: str, body: bytes, status: int, code: str, words: list[str]
) -> None:
    answer = client.post(f"/matmul{query}", content=body, headers={"Content-Type": media})
    refused(answer, status, code, *words)


@pytest.mark.parametrize("array", [A.T.copy().T, A.astype(">f4"), A.T.copy().T.astype(">f4", order="F")])
def test_fortran_order_and_foreign_endianness_just_work(client: httpx.Client, array: np.ndarray[Any, Any]) -> None:
    answer = client.post(
        "/matmul",
        content=form(a=npy(array), b=npy(B)),
        headers={"Content-Type": FORM, "Accept": JSON},
    )
    assert answer.json()["c"] == (A @ B).tolist()


def test_an_npz_bomb_is_413(client: httpx.Client) -> None:
    zeros = np.zeros((1500, 1500), np.float32)
    body = npz(packed=True, a=zeros, b=zeros)
    assert len(body) < 200_000
    answer = client.post("/matmul", content=body, headers={"Content-Type": NPZ})
    told = refused(answer, 413, "body_too_large")
    assert told["limit"] == MAX_BODY
    assert told["size"] > 2 * zeros.nbytes


def test_a_config_that_breaks_a_rule_is_refused_by_the_rules_name(client: httpx.Client) -> None:
    answer = client.get("/kernels/naive?m=8&n=8&k=8&config=BM=32,BN=256")
    told = refused(answer, 422, "refused_config", "BM=32,BN=256")
    assert told["rule"] in client.get("/kernels/naive").json()["rules"]
    refused(client.get("/kernels/tiled?m=8&n=8&k=8&config=BM=3,BN=4,BK=4"), 422, "invalid", "BM is one of")
    refused(client.get("/kernels/tiled?m=8&n=8&k=8&config=BM=4"), 422, "invalid", "BM, BN, BK")
    refused(client.get("/kernels/tiled?config=BM=4"), 422, "invalid", "m, n and k")
    refused(client.get("/kernels/tiled?m=4"), 422, "invalid", "all three")


def test_products_that_can_never_fit_are_422_with_limit_and_size(client: httpx.Client) -> None:
    answer = client.post("/matmul?m=1&n=1&k=2000000000", content=b"1", headers={"Content-Type": RAW})
    assert answer.status_code == 422

    def column() -> Iterator[bytes]:
        yield b"\0" * 8

    query = {"m": 20_000, "n": 20_000, "k": 1}
    answer = client.post("/matmul", params=query, content=column(), headers={"Content-Type": RAW})
    told = refused(answer, 422, "too_large")
    assert told["size"] > told["limit"] > 0


def test_a_body_that_never_fits_beside_its_operands_says_which_form_does(client: httpx.Client) -> None:
    tall = np.ones((5790, 2), np.float32)  # C takes nearly the whole slab
    answer = client.post("/matmul", content=npz(a=tall, b=tall.T), headers={"Content-Type": NPZ})
    told = refused(answer, 422, "too_large", RAW)
    assert told["size"] > told["limit"] > 0


def test_a_c_that_is_too_much_json_is_refused_before_it_is_computed(client: httpx.Client) -> None:
    body = {"a": [[1.0]] * 4100, "b": [[1.0] * 4100]}
    told = refused(client.post("/matmul", json=body), 422, "too_large", "application/octet-stream")
    assert told["size"] == 4100**2


def connected(live: Started) -> socket.socket:
    address = urlsplit(live.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def head(path: str, **headers: object) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answered(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


def test_a_body_over_the_limit_is_refused_before_a_byte_of_it_is_read(live: Started) -> None:
    for path in ("/matmul?m=8&n=8&k=8", "/tune"):
        with connected(live) as connection:
            connection.sendall(head(path, Content_Type=RAW, Content_Length=MAX_BODY + 1, Expect="100-continue"))
            status, body = answered(connection)
            assert (status, body["code"]) == (413, "body_too_large")
            assert (body["limit"], body["size"]) == (MAX_BODY, MAX_BODY + 1)


def test_a_chunked_body_is_refused_once_it_is_over_the_limit(live: Started) -> None:
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    query = "/matmul?m=2000&n=2000&k=2000"
    with connected(live) as connection:
        connection.sendall(head(query, Content_Type=RAW, Transfer_Encoding="chunked"))
        for _ in range(MAX_BODY // 2**20 + 1):
            connection.sendall(chunk)
        status, body = answered(connection)
    assert (status, body["code"]) == (413, "body_too_large")
    assert body["limit"] == MAX_BODY < body["size"]


def test_a_json_order_may_not_be_long(live: Started) -> None:
    with connected(live) as connection:
        connection.sendall(head("/tune", Content_Type=JSON, Content_Length=2**20 + 1))
        assert answered(connection)[0] == 413


def test_a_client_that_goes_away_costs_nothing_but_its_own_request(live: Started, client: httpx.Client) -> None:
    for media in (RAW, NPZ, FORM, TENSORS):
        with connected(live) as connection:
            connection.sendall(head("/matmul?m=500&n=500&k=500", Content_Type=media, Content_Length=2_000_000))
            connection.sendall(b"\0" * 300_000)
            time.sleep(0.1)
    assert all_given_back(client)
    assert client.post("/matmul", json={"a": [[2]], "b": [[3]]}).json()["c"] == [[6]]
    assert "Traceback" not in live.log.read_text()


def test_at_most_16_errors_are_told_and_none_twice(client: httpx.Client) -> None:
    members = {f"unknown{index}": 1 for index in range(5000)} | {"x" * 10_000: 1}
    body = {"shapes": [[8, 8, 8]], **members}
    answer = client.post("/tune", json=body)
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 16
    assert answer.json()["detail"].endswith("; and 63 more")  # the others were not even looked at
    assert len(answer.content) < 4000
    outputs = client.post("/v2/models/matmul/infer", json={"inputs": [], "outputs": [{}] * 20_000})
    assert outputs.status_code == 422
    assert len(outputs.json()["errors"]) < 8
