"""float16 and bfloat16 over HTTP: as bytes in every form, as JSON numbers only where a caller asks for conversion."""

from __future__ import annotations

import io
import json
import math
import secrets
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.formats import json_matrix as rows_format
from app.api.formats import npy as npy_format
from app.api.formats.operand_spec import ProductOptions
from app.dtypes import Array, numpy_dtype, rounded
from app.errors import InvalidMatrix, Malformed, Unsupported
from tests.api.test_api_products import FORM, JSON, NPY, NPZ, RAW, SENT, TENSORS
from tests.support.api.request_bodies import form, npy, npz, rows, safetensors
from tests.support.pairwise import crossed

HALVES = ("float16", "bfloat16")
INFER = "/v2/models/matmul/infer"
DATATYPES = {"float16": "FP16", "bfloat16": "BF16"}
EVERY = pytest.mark.parametrize("dtype", HALVES)


def integers(dtype: str, *shape: int) -> Array:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(numpy_dtype(dtype))


def exact(a: Array, b: Array) -> Array:
    """A product of small integers, which 16 bits hold."""
    c: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert np.abs(c).max() <= 256
    return c


def product(answer: httpx.Response) -> Array:
    """C in float64, whatever the answer's form, which has to say its dtype."""
    assert answer.status_code == 200, answer.text
    shape, dtype = tuple(map(int, answer.headers["x-shape"].split("x"))), answer.headers["x-dtype"]
    media, kind = answer.headers["content-type"], numpy_dtype(dtype)
    if media == JSON:
        assert answer.json()["dtype"] == dtype
        return np.array(answer.json()["c"], np.float64)
    start = 0
    if media == TENSORS:
        start = 8 + int.from_bytes(answer.content[:8], "little")
        assert json.loads(answer.content[8:start])["c"]["dtype"] == {"float16": "F16", "bfloat16": "BF16"}[dtype]
    if media == NPY:
        return np.asarray(np.load(io.BytesIO(answer.content)).view(kind), np.float64)
    if media == NPZ:
        return np.asarray(np.load(io.BytesIO(answer.content))["c"].view(kind), np.float64)
    return np.frombuffer(answer.content[start:], kind).reshape(shape).astype(np.float64)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@crossed(dtype=HALVES, media=list(SENT), accept=["", JSON, TENSORS])
def test_every_form_carries_16_bits_in_and_out(client: httpx.Client, media: str, dtype: str, accept: str) -> None:
    a, b = integers(dtype, 2, 6, 5), integers(dtype, 2, 5, 4)
    query: dict[str, Any] = {"m": 6, "n": 4, "k": 5, "batch": 2, "dtype": dtype}
    query |= {"convert": "true"} if JSON in {media, accept} else {}
    headers = {"Content-Type": media} | ({"Accept": accept} if accept else {})
    body = SENT[media](*(each.astype(np.float64) for each in (a, b))) if media == JSON else SENT[media](a, b)
    answer = client.post("/matmul", params=query, content=body, headers=headers)
    assert np.array_equal(product(answer), exact(a, b))
    assert answer.headers["x-dtype"] == dtype


@pytest.mark.rotating
@EVERY
def test_a_transposed_product_of_several_tiles_is_within_one_rounding(client: httpx.Client, dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in ((65, 70), (41, 65)))
    query: dict[str, Any] = {"m": 70, "n": 41, "k": 65, "trans_a": "true", "trans_b": "true", "dtype": dtype}
    c = product(client.post("/matmul", params=query, content=a.tobytes() + b.tobytes(), headers={"Content-Type": RAW}))
    reference = a.T.astype(np.float64) @ b.T.astype(np.float64)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    assert (np.abs(c - reference) <= unit * np.abs(reference) + 1e-4).all()
    query["kernel"] = "vendor"
    vendor = client.post("/matmul", params=query, content=a.tobytes() + b.tobytes(), headers={"Content-Type": RAW})
    assert (np.abs(product(vendor) - reference) <= unit * np.abs(reference) + 1e-4).all()


@EVERY
def test_json_of_16_bits_needs_conversion_asked_for(client: httpx.Client, dtype: str) -> None:
    a, b = np.tile([1.0, 2.001, 0.0, 0.0, 0.0], (6, 1)), np.repeat([[1.0], [2.0], [3.0], [4.0], [5.0]], 4, axis=1)
    sizes: dict[str, Any] = {"m": 6, "n": 4, "k": 5, "dtype": dtype}
    raw = np.ones(50, numpy_dtype(dtype)).tobytes()
    refusals = [
        client.post("/matmul", content=rows(a, b, dtype=dtype), headers={"Content-Type": JSON}),
        client.post("/matmul", content=rows(a, b, dtype=dtype, convert=False), headers={"Content-Type": JSON}),
        client.post("/matmul", params=sizes, content=raw, headers={"Content-Type": RAW, "Accept": JSON}),
        client.put("/matrices/half", params={"dtype": dtype}, content=b"[[1,2]]", headers={"Content-Type": JSON}),
    ]
    for refusal in refusals:
        told = refusal.json()
        assert (refusal.status_code, told["code"], told["dtype"]) == (422, "unsupported", dtype)
        assert "convert=true" in told["error"]
    asked = client.post("/matmul", content=rows(a, b, dtype=dtype, convert=True), headers={"Content-Type": JSON})
    two = float(np.float64(2.001).astype(numpy_dtype(dtype)))
    assert asked.json()["c"] == np.full((6, 4), np.float64(1 + 2 * two).astype(numpy_dtype(dtype)), np.float64).tolist()


def test_npy_of_byte_pairs_is_bfloat16_if_the_request_says_so(client: httpx.Client) -> None:
    a, b = integers("bfloat16", 6, 5), integers("bfloat16", 5, 4)
    for media, body in ((f"{FORM}", form(a=npy(a), b=npy(b))), (NPZ, npz(a=a, b=b)), (NPZ, npz(packed=True, a=a, b=b))):
        unsaid = client.post("/matmul", content=body, headers={"Content-Type": media})
        wrong = client.post("/matmul?dtype=float16", content=body, headers={"Content-Type": media})
        for refusal in (unsaid, wrong):
            assert (refusal.status_code, refusal.json()["code"]) == (422, "invalid_matrix")
            assert "say dtype=bfloat16" in refusal.json()["error"]
        said = client.post("/matmul?dtype=bfloat16", content=body, headers={"Content-Type": media})
        assert np.array_equal(product(said), exact(a, b))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("descr", ["<V2", "|V2", "bfloat16"])
def test_a_header_of_bfloat16_is_read_in_every_spelling(descr: str, turned: bool) -> None:
    a = integers("bfloat16", 3, 4)
    data = npy(np.asfortranarray(a) if turned else a).replace(b"'<V2'", f"'{descr}'".encode())
    found, array = npy_format.read("a", _lengthened(data), None if descr == "bfloat16" else "bfloat16")
    assert (found.described.dtype, found.plain) == ("bfloat16", not turned)
    assert np.array_equal(array, a)


def _lengthened(data: bytes) -> memoryview:
    """A .npy whose header's length is what it has become."""
    end = data.index(b"\n")
    return memoryview(data[:8] + (end - 9).to_bytes(2, "little") + data[10:])


@pytest.mark.parametrize("descr", [">V2", "<V4", "V2x", "V"])
def test_other_bytes_of_no_type_are_refused(descr: str) -> None:
    data = npy(np.ones((2, 2), ml_dtypes.bfloat16)).replace(b"'<V2'", f"'{descr}'".encode())
    with pytest.raises((InvalidMatrix, Malformed)):
        npy_format.read("a", _lengthened(data), "bfloat16")


@EVERY
def test_resident_matrices_of_16_bits_are_kept_given_back_and_multiplied(client: httpx.Client, dtype: str) -> None:
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    for media, body in ((NPY, npy(b)), (TENSORS, safetensors(b=b)), (RAW, b.tobytes())):
        query = {"dtype": dtype} | ({"shape": "5x4"} if media == RAW else {})
        kept = client.put("/matrices/halves", params=query, content=body, headers={"Content-Type": media})
        assert kept.json()["dtype"] == dtype, kept.text
        back = client.get("/matrices/halves", headers={"Accept": RAW})
        assert (back.content, back.headers["x-dtype"]) == (b.tobytes(), dtype)
    query = {"b": "halves", "c": "made", "dtype": dtype}
    left = client.post("/matmul", params=query, content=npy(a), headers={"Content-Type": NPY})
    assert (left.status_code, left.json()["dtype"]) == (201, dtype)
    got = client.get("/matrices/made", headers={"Accept": NPY})
    assert np.array_equal(np.load(io.BytesIO(got.content)).view(numpy_dtype(dtype)).astype(np.float64), exact(a, b))
    for name in ("halves", "made"):
        client.delete(f"/matrices/{name}")


@EVERY
def test_a_job_keeps_16_bits_and_gives_json_by_conversion_alone(client: httpx.Client, dtype: str) -> None:
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    sizes: dict[str, Any] = {"m": 6, "n": 4, "k": 5, "dtype": dtype}
    body, headers = a.tobytes() + b.tobytes(), {"Content-Type": RAW, "Prefer": "wait=20"}
    early = client.post("/matmul", params=sizes, content=body, headers=headers | {"Accept": JSON})
    assert (early.status_code, early.json()["code"]) == (422, "unsupported")
    made = client.post("/matmul", params=sizes, content=body, headers=headers | {"Accept": RAW})
    assert np.array_equal(product(made), exact(a, b))
    result = f"{made.headers['location']}/result"
    assert client.get(result, headers={"Accept": JSON}).json()["code"] == "unsupported"
    assert client.get(result, headers={"Accept": JSON}, params={"convert": "true"}).json()["c"] == exact(a, b).tolist()
    assert np.array_equal(product(client.get(result)), exact(a, b))


def inference(a: Array, b: Array, dtype: str, *, binary: bool, **parameters: Any) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": each.shape, "datatype": DATATYPES[dtype]}
        | ({"parameters": {"binary_data_size": each.nbytes}} if binary else {"data": each.astype(float).tolist()})
        for name, each in (("A", a), ("B", b))
    ]
    return {"inputs": inputs, "parameters": parameters}


@EVERY
def test_an_inference_has_16_bits_as_bytes_and_as_numbers_by_conversion(client: httpx.Client, dtype: str) -> None:
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    text = json.dumps(inference(a, b, dtype, binary=True, binary_data_output=True)).encode()
    length = {"Inference-Header-Content-Length": str(len(text))}
    answer = client.post(INFER, content=text + a.tobytes() + b.tobytes(), headers=length)
    front = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.content[:front])["outputs"]
    assert (output["datatype"], output["shape"]) == (DATATYPES[dtype], [6, 4])
    c = np.frombuffer(answer.content[front:], numpy_dtype(dtype)).astype(np.float64)
    assert np.array_equal(c.reshape(6, 4), exact(a, b))
    for members in (inference(a, b, dtype, binary=False), inference(a, b, dtype, binary=False, convert=False)):
        assert client.post(INFER, json=members).json()["code"] == "unsupported"
    asked = client.post(INFER, json=inference(a, b, dtype, binary=False, convert=True))
    assert asked.json()["outputs"][0]["data"] == exact(a, b).ravel().tolist()


@EVERY
def test_triton_clients_speak_16_bits(client: httpx.Client, dtype: str) -> None:
    http = pytest.importorskip("tritonclient.http")
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    inputs = [http.InferInput(name, list(each.shape), DATATYPES[dtype]) for name, each in (("A", a), ("B", b))]
    for tensor, each in zip(inputs, (a, b), strict=True):
        tensor.set_data_from_numpy(each)
    with http.InferenceServerClient(str(client.base_url).removeprefix("http://").rstrip("/")) as triton:
        answer = triton.infer("matmul", inputs, outputs=[http.InferRequestedOutput("C", binary_data=True)])
    assert np.array_equal(answer.as_numpy("C").astype(np.float64), exact(a, b))


@pytest.mark.slow
def test_a_tune_of_float16_finds_a_best_of_its_own_class(client: httpx.Client) -> None:
    order = {"shapes": [{"m": 24, "n": 24, "k": 24}], "dtype": "float16", "kernels": ["tiled"], "budget": {"trials": 1}}
    job = client.post("/tune", json=order, headers={"Prefer": "wait=60"}).json()
    assert job["state"] == "succeeded", job
    best = client.get("/best-config?m=24&n=24&k=24&dtype=float16&match=exact").json()
    assert (best["match"], best["problem"]["dtype"]) == ("exact", "float16")
    assert 0 < best["error"]["relative_l2"] < 2.0**-11
    assert best["baselines"]["vendor"]["timing"]["median_ms"] > 0
    other = client.get("/best-config?m=24&n=24&k=24&dtype=bfloat16").json()
    assert (other["match"], other["problem"]["dtype"]) == ("default", "bfloat16")


@settings(max_examples=300, deadline=None)
@given(st.floats(width=64))
def test_a_double_becomes_the_nearest_bfloat16(number: float) -> None:
    (found,) = rounded(np.array([number]), numpy_dtype("bfloat16")).astype(np.float64).tolist()
    assert found == nearest(number) or (math.isnan(found) and math.isnan(number))


@pytest.mark.parametrize("beyond", [0.0, 2.0**-40, -(2.0**-40)])
@pytest.mark.parametrize("place", range(4))
def test_a_double_just_beside_a_tie_is_rounded_once(place: int, beyond: float) -> None:
    number = 1 + (place + 0.5) * 2.0**-7 + beyond
    for sign in (1, -1):
        (found,) = rounded(np.array([sign * number]), numpy_dtype("bfloat16")).astype(np.float64).tolist()
        assert found == sign * nearest(number)


def nearest(number: float) -> float:
    """The nearest of eight bits, the even one of two, with bfloat16's range."""
    if not math.isfinite(number) or number == 0:
        return number
    exponent = max(math.frexp(number)[1] - 8, -133)
    whole = number / 2.0**exponent if exponent > -1000 else 0.0
    found = round(whole) * 2.0**exponent
    return math.copysign(math.inf, number) if abs(found) > (2 - 2.0**-7) * 2.0**127 else found


def test_numbers_of_16_bits_are_written_exactly() -> None:
    for dtype in HALVES:
        everything = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(numpy_dtype(dtype)).reshape(256, 256)
        text = b"".join(rows_format.write(everything, {"dtype": dtype}))
        special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
        back = np.array(
            [[special.get(x, x) if isinstance(x, str) else x for x in row] for row in json.loads(text)["c"]]
        )
        with np.errstate(invalid="ignore"):
            assert np.array_equal(
                back.astype(numpy_dtype(dtype)).astype(float), everything.astype(float), equal_nan=True
            )


def test_json_without_conversion_is_refused_before_it_is_read() -> None:
    with pytest.raises(Unsupported, match="convert=true"):
        rows_format.load(memoryview(b'{"a":[["x"]],"b":[[1]],"dtype":"float16"}'), ProductOptions())
