"""POST /matmul in every form, against NumPy."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from app.dtypes import Array
from tests.support.api.request_bodies import BOUNDARY, form, npy, npz, rows, safetensors
from tests.support.api.slab_usage import all_given_back

JSON = "application/json"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
NPZ = "application/x-npz"
NPY = "application/x-npy"
RAW = "application/octet-stream"
TENSORS = "application/vnd.safetensors"
Query = dict[str, str | int]
SENT: dict[str, Callable[[Array, Array], bytes]] = {
    JSON: rows,
    FORM: lambda a, b: form(a=npy(a), b=npy(b)),
    NPZ: lambda a, b: npz(a=a, b=b),
    RAW: lambda a, b: a.tobytes() + b.tobytes(),
    TENSORS: lambda a, b: safetensors(a=a, b=b),
}


def product_of(answer: httpx.Response) -> Array:
    """C, whatever the answer's form."""
    media = answer.headers["content-type"]
    shape = tuple(map(int, answer.headers["x-shape"].split("x")))
    dtype = answer.headers["x-dtype"]
    if media == JSON:
        c = np.array(json.loads(answer.content)["c"], dtype=dtype)
    elif media == NPY:
        c = np.load(io.BytesIO(answer.content), allow_pickle=False)
    elif media == TENSORS:
        length = int.from_bytes(answer.content[:8], "little")
        header = json.loads(answer.content[8 : 8 + length])["c"]
        assert header["data_offsets"] == [0, len(answer.content) - 8 - length]
        assert (8 + length) % 8 == 0
        c = np.frombuffer(answer.content[8 + length :], dtype).reshape(header["shape"])
    else:
        c = np.frombuffer(answer.content, dtype).reshape(shape)
    assert (c.shape, c.dtype.name) == (shape, dtype)
    return c


def operands(
    m: int, n: int, k: int, stack: tuple[int, ...], dtype: str, trans: tuple[bool, bool]
) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + n + k)
    a, b = rng.standard_normal((*stack, m, k)).astype(dtype), rng.standard_normal((*stack, k, n)).astype(dtype)
    a = np.ascontiguousarray(a.swapaxes(-1, -2)) if trans[0] else a
    return a, np.ascontiguousarray(b.swapaxes(-1, -2)) if trans[1] else b


def wanted(a: Array, b: Array, trans: tuple[bool, bool]) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a.swapaxes(-1, -2) if trans[0] else a) @ (b.swapaxes(-1, -2) if trans[1] else b)


def bound(dtype: str) -> float:
    return 1e-4 if dtype == "float32" else 1e-12


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("media", SENT)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stack", [(), (3,)])
def test_every_form_gives_numpys_product(client: httpx.Client, media: str, dtype: str, stack: tuple[int, ...]) -> None:
    m, n, k = 17, 9, 33
    a, b = operands(m, n, k, stack, dtype, (False, False))
    sizes: Query = {"m": m, "n": n, "k": k, "batch": stack[0] if stack else 1} if media == RAW else {}
    answer = client.post(
        "/matmul", params={"dtype": dtype, **sizes}, content=SENT[media](a, b), headers={"Content-Type": media}
    )
    assert answer.status_code == 200, answer.text
    own = {FORM: NPY, NPZ: NPY}.get(media, media)
    assert answer.headers["content-type"] == own
    np.testing.assert_allclose(product_of(answer), wanted(a, b, (False, False)), rtol=bound(dtype), atol=bound(dtype))


@pytest.mark.parametrize("trans", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("media", [FORM, RAW])
def test_transposed_operands_are_multiplied_as_stored(
    client: httpx.Client, media: str, trans: tuple[bool, bool]
) -> None:
    a, b = operands(5, 7, 11, (), "float32", trans)
    # Which kernel multiplies is the service's affair; others take a second to compile for each transposition.
    query: Query = {"m": 5, "n": 7, "k": 11, "kernel": "naive"}
    query |= {"trans_a": str(trans[0]).lower(), "trans_b": str(trans[1]).lower()}
    answer = client.post("/matmul", params=query, content=SENT[media](a, b), headers={"Content-Type": media})
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(product_of(answer), wanted(a, b, trans), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("accept", [JSON, NPY, RAW, TENSORS])
@pytest.mark.parametrize("media", [JSON, NPZ])
def test_accept_chooses_the_form_of_the_answer(client: httpx.Client, media: str, accept: str) -> None:
    a, b = operands(3, 4, 5, (), "float32", (False, False))
    headers = {"Content-Type": media, "Accept": f"text/html, {accept};q=0.5, */*;q=0.1"}
    answer = client.post("/matmul", content=SENT[media](a, b), headers=headers)
    assert answer.headers["content-type"] == accept
    np.testing.assert_allclose(product_of(answer), wanted(a, b, (False, False)), rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_is_answered_as_a_batch(client: httpx.Client) -> None:
    a, b = operands(3, 4, 5, (1,), "float32", (False, False))
    for media in (JSON, FORM, NPZ, TENSORS):
        answer = client.post("/matmul", content=SENT[media](a, b), headers={"Content-Type": media})
        assert product_of(answer).shape == (1, 3, 4)


def test_an_answer_says_what_made_it_and_how_long_each_phase_took(client: httpx.Client) -> None:
    answer = client.post("/matmul", json={"a": [[1, 2], [3, 4]], "b": [[5, 6], [7, 8]], "kernel": "naive"})
    body = answer.json()
    assert body["c"] == [[19, 22], [43, 50]]
    assert body["kernel"] == answer.headers["x-kernel"] == "naive"
    assert answer.headers["x-config"] == ",".join(f"{name}={value}" for name, value in body["config"].items())
    assert body["match"] == answer.headers["x-match"]
    assert body["instructions"] == answer.headers["x-instructions"] == "fma"
    phases = [entry.split(";dur=") for entry in answer.headers["server-timing"].split(", ")]
    names = [name for name, _ in phases if name != "build"]  # that is of a first use alone
    assert names == ["receive", "queue", "h2d", "kernel", "d2h"]
    assert all(float(duration) >= 0 for _, duration in phases)


def test_the_vendors_library_multiplies_where_it_is_asked_to(client: httpx.Client) -> None:
    a, b = operands(8, 8, 8, (), "float64", (False, False))
    query: Query = {"kernel": "vendor", "m": 8, "n": 8, "k": 8, "dtype": "float64"}
    answer = client.post("/matmul", params=query, content=SENT[RAW](a, b), headers={"Content-Type": RAW})
    assert answer.headers["x-kernel"] == "vendor"
    assert answer.headers["x-instructions"] == client.get("/devices").json()["devices"][0]["vendor"]["name"]
    np.testing.assert_allclose(product_of(answer), a @ b, rtol=1e-12)


def test_what_is_not_finite_is_computed_and_its_json_is_valid(client: httpx.Client) -> None:
    body = {"a": [["NaN", 1], ["Infinity", 1], [-1, 1]], "b": [[2, 0], [1, 0]]}
    answer = client.post("/matmul", json=body)
    c = json.loads(answer.content, parse_constant=pytest.fail)["c"]
    assert c == [["NaN", "NaN"], ["Infinity", "NaN"], [-1, 0]]


@pytest.mark.parametrize("media", SENT)
def test_a_body_may_come_in_chunks(client: httpx.Client, media: str) -> None:
    a, b = operands(120, 130, 140, (), "float32", (False, False))
    body = SENT[media](a, b)

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(body), 10_001):
            yield body[at : at + 10_001]

    query = {"m": 120, "n": 130, "k": 140}
    answer = client.post("/matmul", params=query, content=chunks(), headers={"Content-Type": media})
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(product_of(answer), wanted(a, b, (False, False)), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_products_of_many_callers_do_not_mix(client: httpx.Client) -> None:
    shapes = [(8, 9, 10), (9, 9, 10), (11, 8, 12)]  # each is compiled for itself

    def one(number: int) -> bool:
        a, b = operands(*shapes[number % 3], (), "float32", (False, False))
        a *= number + 1
        answer = client.post("/matmul", content=npz(a=a, b=b), headers={"Content-Type": NPZ})
        return bool(np.allclose(product_of(answer), a @ b, rtol=1e-4, atol=1e-4))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(48)))


def test_slab_bytes_are_given_back_whatever_becomes_of_a_request(client: httpx.Client) -> None:
    a, b = operands(64, 64, 64, (), "float32", (False, False))
    query = {"m": 64, "n": 64, "k": 64}
    for media, body in ((RAW, a.tobytes()), (NPZ, b"PK"), (FORM, form(a=npy(a))), (JSON, b"{}"), (TENSORS, b"x" * 99)):
        assert client.post("/matmul", params=query, content=body, headers={"Content-Type": media}).status_code < 500
    for media, write in SENT.items():
        answer = client.post("/matmul", params=query, content=write(a, b), headers={"Content-Type": media})
        assert answer.status_code == 200, answer.text
    assert all_given_back(client)
