"""Resident matrices over HTTP: put in every form, named by products, listed, replaced, refused and gone."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from app.dtypes import Array
from tests.support.api.http_client import calling
from tests.support.api.request_bodies import BOUNDARY, MANY, QUOTA, form, npy, npz, safetensors
from tests.support.api.slab_usage import all_given_back, metric
from tests.support.waiting import until

JSON = "application/json"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
NPZ = "application/x-npz"
NPY = "application/x-npy"
RAW = "application/octet-stream"
TENSORS = "application/vnd.safetensors"

# Where it does not matter which kernel multiplies: others take a second to compile for each transposition.
KERNEL = "naive"
Bodies = dict[str, Callable[[Array], bytes]]
PUT: Bodies = {
    JSON: lambda x: json.dumps(x.tolist()).encode(),
    NPY: npy,
    NPZ: lambda x: npz(any_name=x),
    FORM: lambda x: form(any_name=npy(x)),
    TENSORS: lambda x: safetensors(any_name=x),
    RAW: lambda x: x.tobytes(),
}
OTHER: Bodies = {
    JSON: lambda x: json.dumps({"b": x.tolist()}).encode(),
    NPY: npy,
    NPZ: lambda x: npz(b=x),
    FORM: lambda x: form(b=npy(x)),
    TENSORS: lambda x: safetensors(b=x),
    RAW: lambda x: x.tobytes(),
}
A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(20, dtype=np.float32).reshape(4, 5)


@pytest.fixture(autouse=True)
def _emptied(client: httpx.Client) -> Iterator[None]:
    yield
    for matrix in client.get("/matrices?limit=1000").json()["matrices"]:
        assert client.delete(f"/matrices/{matrix['name']}").status_code == 204
    assert all_given_back(client)


def put(client: httpx.Client, name: str, array: Array, media: str = NPY, **query: Any) -> httpx.Response:
    headers = {"content-type": media}
    return client.put(f"/matrices/{name}", params=query, content=PUT[media](array), headers=headers)


def kept(client: httpx.Client, name: str, array: Array, **query: Any) -> dict[str, Any]:
    answer = put(client, name, array, **query)
    assert answer.status_code in {200, 201}, answer.text
    matrix: dict[str, Any] = answer.json()
    return matrix


def multiply(
    client: httpx.Client, array: Array | None = None, media: str = NPY, accept: str = NPY, **query: Any
) -> httpx.Response:
    content = b"" if array is None else OTHER[media](array)
    headers = {"accept": accept} | ({} if array is None else {"content-type": media})
    return client.post("/matmul", params=query, content=content, headers=headers)


def loaded(answer: httpx.Response) -> Array:
    assert answer.status_code == 200, answer.text
    array: Array = np.load(io.BytesIO(answer.content), allow_pickle=False)
    return array


def h2d(answer: httpx.Response) -> float:
    found = re.search(r"h2d;dur=([0-9.]+)", answer.headers["server-timing"])
    assert found
    return float(found[1])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("media", PUT)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (1, 3, 4)])
def test_a_matrix_may_come_in_every_form_and_is_given_back(
    client: httpx.Client, media: str, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    sizes = {"shape": "x".join(map(str, shape))} if media == RAW else {}
    answer = put(client, "w", x, media, **sizes)
    assert (answer.status_code, answer.headers["location"]) == (201, "/matrices/w")
    assert client.get("/matrices/w").json() == answer.json()
    told = {"name": "w", "dtype": "float32", "shape": list(shape), "nbytes": x.nbytes, "evictable": False}
    assert answer.json().items() >= told.items()
    back = client.get("/matrices/w", headers={"accept": NPY})
    np.testing.assert_array_equal(loaded(back), x)
    assert back.headers["x-shape"] == "x".join(map(str, shape))
    assert back.headers["x-version"] == str(answer.json()["version"])
    head = client.head("/matrices/w", headers={"accept": NPY})
    assert (head.content, head.headers["content-length"]) == (b"", back.headers["content-length"])
    raw = client.get("/matrices/w", headers={"accept": RAW})
    assert (raw.content, raw.headers["x-dtype"]) == (x.tobytes(), "float32")
    assert client.get("/matrices/w", headers={"accept": TENSORS}).content.endswith(x.tobytes())


@pytest.mark.drawn(2)
@pytest.mark.parametrize("media", OTHER)
@pytest.mark.parametrize("stack", [(), (1,), (3,)])
def test_a_product_names_one_operand_and_sends_the_other(
    client: httpx.Client, media: str, stack: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((*stack, 6, 7)).astype("f4"), rng.standard_normal((*stack, 7, 5)).astype("f4")
    version = kept(client, "w", a)["version"]
    sizes: dict[str, Any] = {"n": 5} if media == RAW else {}
    answer = multiply(client, b, media, a="w", **sizes)
    np.testing.assert_allclose(loaded(answer), a @ b, rtol=1e-4, atol=1e-5)
    assert (answer.headers["x-a-version"], "x-b-version" in answer.headers) == (str(version), False)


@pytest.mark.rotating
def test_both_operands_may_be_named_transposed_or_the_same(client: httpx.Client) -> None:
    kept(client, "a", A, evictable=True)
    kept(client, "b", B)
    np.testing.assert_allclose(loaded(multiply(client, a="a", b="b")), A @ B)
    np.testing.assert_allclose(loaded(multiply(client, a="a", b="a", trans_b=True, kernel=KERNEL)), A @ A.T)
    turned = multiply(client, a="b", b="a", trans_a=True, trans_b=True, kernel=KERNEL)
    np.testing.assert_allclose(loaded(turned), B.T @ A.T)
    np.testing.assert_allclose(loaded(multiply(client, np.asfortranarray(A.T), a="a")), A @ A.T)
    answer = client.post("/matmul?a=a&b=b")
    assert (answer.status_code, answer.headers["content-type"]) == (200, NPY)
    answer = client.post("/matmul?a=a&b=b", headers={"accept": JSON})
    assert answer.json()["c"] == (A @ B).tolist()
    answer = client.post("/matmul?b=b", content=json.dumps({"a": A.tolist()}), headers={"content-type": JSON})
    assert answer.json()["c"] == (A @ B).tolist()


@pytest.mark.slow
def test_a_result_may_be_left_resident(client: httpx.Client) -> None:
    kept(client, "a", A)
    answer = multiply(client, B, a="a", c="c", accept="*/*", evictable=True)
    assert (answer.status_code, answer.headers["location"]) == (201, "/matrices/c")
    assert answer.headers["x-c-version"] == str(answer.json()["version"])
    assert answer.headers["x-kernel"]
    assert answer.json().items() >= {"shape": [3, 5], "evictable": True, "devices": ["opencl:0"]}.items()
    np.testing.assert_allclose(loaded(client.get("/matrices/c", headers={"accept": NPY})), A @ B)
    again = multiply(client, np.eye(5, dtype="f4"), a="c", c="c")
    np.testing.assert_allclose(loaded(again), A @ B)
    assert again.headers["x-c-version"] == str(client.get("/matrices/c").json()["version"])
    assert again.headers["x-a-version"] == answer.headers["x-c-version"]
    job = client.post("/matmul?a=a&b=c&trans_a=true&c=later", headers={"prefer": "respond-async"})
    assert job.status_code == 202
    under_way = {"queued", "running", "cancelling"}
    until(lambda: client.get(job.headers["location"]).json()["state"] not in under_way, 20, each=0.05)
    np.testing.assert_allclose(loaded(client.get("/matrices/later", headers={"accept": NPY})), A.T @ (A @ B))


@pytest.mark.slow
def test_an_operand_that_is_named_again_is_not_copied_again(client: httpx.Client) -> None:
    a, b = np.ones((1024, 1900), np.float32), np.ones((1900, 1), np.float32)
    kept(client, "w", a)
    assert client.get("/matrices/w").json()["devices"] == []
    sent = [multiply_raw(client, a, b) for _ in range(4)]
    loads, hits = metric(client, "tilewise_resident_loads"), metric(client, "tilewise_resident_hits")
    first = multiply(client, b, a="w")
    again = [multiply(client, b, a="w") for _ in range(4)]
    assert all(np.array_equal(loaded(each), np.full((1024, 1), 1900)) for each in (first, *again))
    assert metric(client, "tilewise_resident_loads") == loads + 1
    assert metric(client, "tilewise_resident_hits") == hits + 4
    assert min(map(h2d, again)) < min(map(h2d, sent)) / 2
    kept(client, "v", b)
    assert min(h2d(multiply(client, a="w", b="v")) for _ in range(4)) < 0.1
    assert client.get("/matrices/w").json()["devices"] == ["opencl:0"]
    assert (
        metric(client, "tilewise_resident_device_bytes")
        == metric(client, "tilewise_resident_bytes")
        == a.nbytes + b.nbytes
    )


def multiply_raw(client: httpx.Client, a: Array, b: Array, **named: str) -> httpx.Response:
    query = {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1], **named}
    return client.post("/matmul", params=query, content=a.tobytes() + b.tobytes(), headers={"content-type": RAW})


def test_matrices_are_listed_in_pages_by_name(client: httpx.Client) -> None:
    for name in ("beta", "Alpha", "gamma.1", "_"):
        kept(client, name, A)
    first = client.get("/matrices?limit=3").json()
    rest = client.get("/matrices", params={"limit": 3, "cursor": first["next"]}).json()
    assert [each["name"] for each in first["matrices"] + rest["matrices"]] == ["Alpha", "_", "beta", "gamma.1"]
    assert (bool(first["next"]), rest["next"]) == (True, None)


def test_a_matrix_is_replaced_and_deleted(client: httpx.Client) -> None:
    first = kept(client, "w", A)
    second = put(client, "w", B)
    assert second.status_code == 200
    assert second.json()["version"] > first["version"]
    assert client.delete("/matrices/w").status_code == 204
    for answer in (client.delete("/matrices/w"), client.get("/matrices/w"), multiply(client, B, a="w")):
        assert code(answer) == (404, "unknown_matrix")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("query", "media", "body", "expected"),
    [
        ({}, RAW, b"", (422, "invalid")),
        ({"rows": 2}, RAW, b"1234", (422, "invalid")),
        ({"shape": "2x2"}, RAW, b"1234", (422, "invalid_matrix")),
        ({"shape": "2x2"}, NPY, npy(A), (422, "invalid")),
        ({"dtype": "float64"}, NPY, npy(A), (422, "invalid")),
        ({"dtype": "float16"}, JSON, b"[[1,2],[3,4]]", (422, "unsupported")),
        ({}, NPY, npy(np.arange(6)), (422, "invalid_matrix")),
        ({}, NPY, npy(A[0]), (422, "invalid_matrix")),
        ({}, NPY, npy(A)[:-1], (422, "invalid_matrix")),
        ({}, NPY, npy(A) + b"x", (422, "invalid_matrix")),
        ({}, NPY, npy(A.T)[:-1], (422, "invalid_matrix")),
        ({}, NPY, npy(A)[:50], (400, "malformed")),
        ({}, NPY, b"no", (400, "malformed")),
        ({}, NPY, b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", (400, "malformed")),
        ({}, NPZ, npz(a=A, b=B), (422, "invalid_matrix")),
        ({}, FORM, form(a=npy(A), b=npy(B)), (422, "invalid_matrix")),
        ({}, TENSORS, safetensors(a=A, b=B), (422, "invalid_matrix")),
        ({}, JSON, b"{}", (422, "invalid_matrix")),
        ({}, JSON, b"[[1,2],[3]]", (422, "invalid_matrix")),
        ({}, JSON, b"[[", (400, "malformed")),
        ({}, "text/plain", b"1", (415, "unsupported_media_type")),
        ({"m": 3}, NPY, npy(A), (422, "invalid")),
    ],
)
def test_what_is_no_matrix_is_refused_and_nothing_is_kept(
    client: httpx.Client, query: dict[str, Any], media: str, body: bytes, expected: tuple[int, str]
) -> None:
    answer = client.put("/matrices/w", params=query, content=body, headers={"content-type": media})
    assert code(answer) == expected, answer.text
    assert client.get("/matrices").json()["matrices"] == []


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "%2E%2E", "x" * 101, "%C3%A4", "a%0A"])
def test_a_name_that_is_none_is_refused(client: httpx.Client, name: str) -> None:
    answer = client.put(f"/matrices/{name}", content=npy(A), headers={"content-type": NPY})
    assert answer.status_code in {404, 422}, answer.text
    assert client.get(f"/matrices/{name}").status_code == 404


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"a": "nothing"}, (404, "unknown_matrix")),
        ({"a": "w", "b": "w"}, (422, "invalid_matrix")),
        ({"a": "w", "m": 9}, (422, "invalid")),
        ({"a": "w", "batch": 2}, (422, "invalid")),
        ({"a": "w", "dtype": "float64"}, (422, "invalid")),
        ({"a": "w", "b": "b"}, (422, "invalid_matrix")),
        ({"a": "w", "c": ".."}, (422, "invalid")),
        ({"a": "w", "c": "a b"}, (422, "invalid")),
        ({"a": "w", "evictable": True}, (422, "invalid")),
        ({}, (415, "unsupported_media_type")),
    ],
)
def test_a_product_whose_names_do_not_fit_is_refused(
    client: httpx.Client, query: dict[str, Any], expected: tuple[int, str]
) -> None:
    kept(client, "w", A)
    kept(client, "b", B)
    assert code(multiply(client, B, **query)) == expected
    assert [each["name"] for each in client.get("/matrices").json()["matrices"]] == ["b", "w"]


def test_an_operand_is_named_or_sent_not_both(client: httpx.Client) -> None:
    kept(client, "w", A)
    both = client.post(
        "/matmul?a=w", content=json.dumps({"a": A.tolist(), "b": B.tolist()}), headers={"content-type": JSON}
    )
    assert code(both) == (422, "invalid")
    for media, body in ((NPZ, npz(a=A, b=B)), (FORM, form(a=npy(A), b=npy(B))), (TENSORS, safetensors(a=A, b=B))):
        answer = client.post("/matmul?a=w", content=body, headers={"content-type": media})
        assert code(answer) == (422, "invalid_matrix")
    raw = client.post("/matmul?a=w", content=B.tobytes(), headers={"content-type": RAW})
    assert code(raw) == (422, "invalid")
    assert "needs n in the query" in raw.json()["error"]


def test_quotas_are_of_bytes_and_of_matrices(client: httpx.Client) -> None:
    large = np.zeros((1024, 1024), np.float32)
    kept(client, "a", large)
    kept(client, "b", large[:1000], evictable=True)
    kept(client, "c", large[:900])
    gone = client.get("/matrices/b")
    assert code(gone) == (410, "matrix_gone")
    assert code(multiply(client, large[:, :1], a="b")) == (410, "matrix_gone")
    refused = put(client, "d", large[:900])
    assert code(refused) == (507, "quota_exceeded")
    assert refused.json().items() >= {"limit": QUOTA, "used": 4096 * 1924, "size": 4096 * 900}.items()
    assert code(multiply(client, large, a="a", c="d")) == (507, "quota_exceeded")
    assert code(multiply_raw(client, large[:, :1].repeat(2, 0), large[:1].repeat(2, 1), c="d")) == (422, "too_large")
    kept(client, "b", A)
    for number in range(MANY - 3):
        kept(client, f"n{number}", A)
    assert code(put(client, "more", A)) == (507, "quota_exceeded")
    kept(client, "a", A)


class Caller(threading.Thread):
    """Puts, gets, deletes and multiplies at random; what it saw is judged once all versions are known."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self.rng, self.url = np.random.default_rng(seed), url
        self.truth: dict[str, Array] = {}
        self.seen: list[tuple[list[str | None], Array, Array]] = []
        self.statuses: set[int] = set()

    def run(self) -> None:
        acts = (self.put, self.put, self.get, self.delete, self.multiply, self.multiply, self.chain)
        with calling(self.url) as client:
            for _ in range(25):
                answer = acts[self.rng.integers(len(acts))](client)
                self.statuses.add(answer.status_code)

    def one(self) -> str:
        return "pqr"[self.rng.integers(3)]

    def put(self, client: httpx.Client) -> httpx.Response:
        array = self.rng.random((16, 16), np.float32)
        answer = put(client, self.one(), array, evictable=bool(self.rng.integers(2)))
        if answer.status_code in {200, 201}:
            self.truth[str(answer.json()["version"])] = array
        return answer

    def get(self, client: httpx.Client) -> httpx.Response:
        answer = client.get(f"/matrices/{self.one()}", headers={"accept": NPY})
        if answer.status_code == 200:
            self.seen.append(([answer.headers["x-version"], None], np.eye(16, dtype="f4"), loaded(answer)))
        return answer

    def delete(self, client: httpx.Client) -> httpx.Response:
        return client.delete(f"/matrices/{self.one()}")

    def multiply(self, client: httpx.Client) -> httpx.Response:
        b = self.rng.random((16, 16), np.float32)
        both = bool(self.rng.integers(2))
        named = {"a": self.one(), "b": self.one()} if both else {"a": self.one()}
        answer = multiply(client, None if both else b, kernel=KERNEL, **named)
        if answer.status_code == 200:
            versions = [answer.headers["x-a-version"], answer.headers.get("x-b-version")]
            self.seen.append((versions, b, loaded(answer)))
        return answer

    def chain(self, client: httpx.Client) -> httpx.Response:
        b = self.rng.random((16, 16), np.float32)
        answer = multiply(client, b, a=self.one(), c=self.one(), kernel=KERNEL)
        if answer.status_code == 200:
            self.truth[answer.headers["x-c-version"]] = loaded(answer)
            self.seen.append(([answer.headers["x-a-version"], None], b, loaded(answer)))
        return answer


def test_products_are_of_the_versions_they_name_whatever_others_do(client: httpx.Client, live: Started) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    first = np.ones((16, 16), np.float32)
    version = kept(client, "p", first)["version"]
    multiply(client, first, a="p", kernel=KERNEL)  # what its products need is compiled then
    callers = [Caller(live.url, seed + number) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    truth = {str(version): first} | {version: array for caller in callers for version, array in caller.truth.items()}
    seen = [each for caller in callers for each in caller.seen]
    assert len(seen) > 20
    assert set().union(*(caller.statuses for caller in callers)) <= {200, 201, 204, 404, 410}
    for (left, right), sent, c in seen:
        assert left is not None
        b = sent if right is None else truth[right]
        np.testing.assert_allclose(c, truth[left] @ b, rtol=1e-4)
    assert "Traceback" not in live.log.read_text()


@pytest.mark.rotating
def test_the_openapi_document_tells_of_matrices(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    one, all_ = paths["/matrices/{name}"], paths["/matrices"]
    statuses = {method: set(operation["responses"]) for method, operation in one.items()}
    assert statuses == {
        "put": {"200", "201", "400", "408", "412", "413", "415", "422", "500", "503", "507"},
        "get": {"200", "404", "406", "410", "422", "500"},
        "delete": {"204", "404", "410", "412", "422", "500"},
    }
    assert set(all_["get"]["responses"]) == {"200", "422", "500"}
    assert set(one["put"]["requestBody"]["content"]) == {media.partition(";")[0] for media in PUT}
    matmul = paths["/matmul"]["post"]
    assert {"a", "b", "c", "evictable"} <= {each["name"] for each in matmul["parameters"]}
    assert {"201", "404", "410", "507"} <= set(matmul["responses"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_pages_example_of_a_resident_matrix_works(client: httpx.Client, live: Started, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "http.md").read_text(encoding="utf-8")
    block = next(each for each in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "/matrices/weights" in each)
    np.save(tmp_path / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    script = block.replace("localhost:8000", live.url.removeprefix("http://"))
    ran = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), A @ B)
    np.testing.assert_array_equal(loaded(client.get("/matrices/gram", headers={"accept": NPY})), A @ A.T)
    assert ran.stdout.endswith('"next":null}')
