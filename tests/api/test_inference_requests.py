"""Inference requests byte by byte: what no client library sends, and what anybody could."""

from __future__ import annotations

import copy
import gzip
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.api.request_bodies import MAX_BODY
from tests.support.api.slab_usage import all_given_back

SEED: Final = int(os.environ.get("TEST_SEED") or secrets.randbits(32))
LENGTH: Final = "Inference-Header-Content-Length"
INFER: Final = "/v2/models/matmul/infer"
A: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
B: Final = np.arange(12, dtype=np.float32).reshape(3, 4)
Document = dict[str, Any]


def tensor(name: str, shape: tuple[int, ...], **rest: Any) -> Document:
    return {"name": name, "shape": list(shape), "datatype": "FP32", **rest}


def listed(**rest: Any) -> Document:
    return {
        "inputs": [tensor("A", A.shape, data=A.ravel().tolist()), tensor("B", B.shape, data=B.tolist())],
        **rest,
    }


def binary(**rest: Any) -> Document:
    sizes = [{"binary_data_size": each.nbytes} for each in (A, B)]
    return {"inputs": [tensor("A", A.shape, parameters=sizes[0]), tensor("B", B.shape, parameters=sizes[1])], **rest}


def framed(document: Document, *tails: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(document).encode()
    return text + b"".join(tails), {LENGTH: str(len(text))} if tails else {}


def product(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "application/json":
        assert LENGTH not in answer.headers
        (output,) = answer.json()["outputs"]
        return np.array(output["data"], np.float32).reshape(output["shape"])
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers[LENGTH])
    (output,) = json.loads(answer.content[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": len(answer.content) - length}
    return np.frombuffer(answer.content[length:], np.float32).reshape(output["shape"])


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    for word in words:
        assert word in answer.json()["error"]


def test_the_answer_is_json_unless_bytes_are_asked_for(client: httpx.Client) -> None:
    asked = {"parameters": {"binary_data_output": True}}
    one, other = ({"outputs": [{"name": "C", "parameters": {"binary_data": wanted}}]} for wanted in (True, False))
    for rest, media in (
        ({}, "application/json"),
        (asked, "application/octet-stream"),
        (one, "application/octet-stream"),
        (asked | other, "application/json"),
        ({"outputs": []}, "application/json"),
    ):
        body, headers = framed(listed(**rest))
        answer = client.post(INFER, content=body, headers=headers)
        assert answer.headers["content-type"] == media
        np.testing.assert_array_equal(product(answer), A @ B)


def test_a_body_may_come_in_chunks_with_and_without_bytes(client: httpx.Client) -> None:
    for body, headers in (framed(listed()), framed(binary(), A.tobytes(), B.tobytes())):

        def chunks(body: bytes = body) -> Iterator[bytes]:
            for at in range(0, len(body), 7):
                yield body[at : at + 7]

        np.testing.assert_array_equal(product(client.post(INFER, content=chunks(), headers=headers)), A @ B)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_compressed_bodies_are_unpacked_whichever_way_they_come(
    client: httpx.Client, pack: Callable[[bytes], bytes]
) -> None:
    coding = {"Content-Encoding": "gzip" if pack is gzip.compress else "deflate"}
    wide = {"description": "x" * 100_000}  # what means nothing makes the text long
    for document in (listed(), listed(**wide)):
        body, headers = framed(document)
        answer = client.post(INFER, content=pack(body), headers=headers | coding)
        np.testing.assert_array_equal(product(answer), A @ B)
    for document in (binary(), binary(**wide)):
        body, headers = framed(document, A.tobytes(), B.tobytes())
        answer = client.post(INFER, content=pack(body), headers=headers | coding)
        np.testing.assert_array_equal(product(answer), A @ B)
        refused(client.post(INFER, content=pack(body)[:-20], headers=headers | coding), 400, "ends within")
        refused(client.post(INFER, content=pack(body + b"x"), headers=headers | coding), 422, "the body has 73 or more")
        refused(client.post(INFER, content=pack(body[:-1]), headers=headers | coding), 422, "the body has 71")
        refused(client.post(INFER, content=body, headers=headers | coding), 400, "is no")


def test_a_gzip_file_may_have_members_and_a_deflate_stream_no_tail(client: httpx.Client) -> None:
    body, headers = framed(binary(), A.tobytes(), B.tobytes())
    parts = gzip.compress(body[:50]) + gzip.compress(body[50:])
    answer = client.post(INFER, content=parts, headers=headers | {"Content-Encoding": "gzip"})
    np.testing.assert_array_equal(product(answer), A @ B)
    answer = client.post(INFER, content=zlib.compress(body) + b"x", headers=headers | {"Content-Encoding": "deflate"})
    refused(answer, 400, "something follows")


@pytest.mark.slow
def test_a_small_body_that_unpacks_to_too_much_is_refused(client: httpx.Client) -> None:
    side = 1448  # 2 x 8 MiB where the limit is 8 MiB
    size = {"binary_data_size": 4 * side * side}
    document = {"inputs": [tensor(name, (side, side), parameters=size) for name in "AB"]}
    sparse = np.zeros(8 * side * side, np.uint8)
    sparse[::64] = np.random.default_rng(0).integers(0, 256, len(sparse[::64]))
    body, headers = framed(document, sparse.tobytes())
    packed = gzip.compress(body)
    assert len(packed) < MAX_BODY / 10
    answer = client.post(INFER, content=packed, headers=headers | {"Content-Encoding": "gzip"})
    refused(answer, 413, f"the limit is {MAX_BODY}")
    assert answer.json()["limit"] == MAX_BODY


def test_a_body_unpacks_to_at_most_100_times_what_was_sent(client: httpx.Client) -> None:
    side = 700  # 2 x 2 MiB of zeros, which gzip makes a thousandth of
    document = {
        "inputs": [tensor(name, (side, side), parameters={"binary_data_size": 4 * side * side}) for name in "AB"]
    }
    body, headers = framed(document, bytes(8 * side * side))
    answer = client.post(INFER, content=gzip.compress(body), headers=headers | {"Content-Encoding": "gzip"})
    refused(answer, 413, "100 times")


def test_codings_that_are_not_known_are_refused_and_listed(client: httpx.Client) -> None:
    body, headers = framed(listed())
    refused(client.post(INFER, content=body, headers=headers | {"Content-Encoding": "br"}), 415, "br", "gzip")
    refused(client.post(INFER, content=body, headers=headers | {"Accept-Encoding": "identity;q=0"}), 406, "gzip")


def test_unacceptable_answer_is_refused_before_the_body_is_read(client: httpx.Client) -> None:
    def body() -> Iterator[bytes]:
        yield b"this is no JSON"

    refused(client.post(INFER, content=body(), headers={"Accept-Encoding": "br, identity;q=0"}), 406, "gzip")


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", None),  # what libraries say by default
        ("identity", None),
        ("*", None),
        ("gzip;q=0", None),
        ("br", None),
        ("deflate, identity;q=0", "deflate"),
        ("*, identity;q=0", "gzip"),
        ("*;q=0, deflate;q=0.5", "deflate"),
    ],
)
def test_an_answer_is_compressed_where_that_alone_is_wanted(
    client: httpx.Client, accept: str, coding: str | None
) -> None:
    for document in (listed(), listed(parameters={"binary_data_output": True})):
        answer = client.post(INFER, content=framed(document)[0], headers={"Accept-Encoding": accept})
        assert answer.headers.get("content-encoding") == coding
        np.testing.assert_array_equal(product(answer), A @ B)


FRAMES: Final[dict[str, tuple[bytes, str | None, int, str]]] = {
    "nothing": (b"", None, 400, "no JSON"),
    "no JSON": (b"{", None, 400, "no JSON"),
    "no object": (b"[]", None, 400, "no JSON object"),
    "NaN alone": (b"NaN", None, 400, "no JSON object"),
    "deep": (b'{"inputs":' * 5000, None, 400, "no JSON"),
    "deep with NaN": (b"[NaN," * 50_000, None, 400, "no JSON"),
    "bytes alone": (bytes(72), "0", 400, "JSON is missing"),
    "a length that is too large": (b"{}", "3", 400, "the body has 2 bytes"),
    "a length of letters": (b"{}", "two", 400, "no number"),
    "a negative length": (b"{}", "-2", 400, "no number"),
    "a length beyond 64 bits": (b"{}", "9" * 30, 400, "no number"),
    "a length in other digits": (b"{}", "\u00b2", 400, "no number"),
    "too few bytes": (json.dumps(binary()).encode() + bytes(71), "full", 422, "take 72 bytes, the body has 71"),
    "too many bytes": (json.dumps(binary()).encode() + bytes(73), "full", 422, "take 72 bytes, the body has 73"),
    "bytes that nobody announced": (json.dumps(listed()).encode() + b"x", "full", 422, "take 0 bytes, the body has 1"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_is_off_is_refused(client: httpx.Client, name: str) -> None:
    body, length, status, words = FRAMES[name]
    if length == "full":
        length = str(body.rindex(b"}") + 1)
    headers = {} if length is None else {LENGTH.encode(): length.encode("latin-1")}
    refused(client.post(INFER, content=body, headers=headers), status, words)


def changed(path: str, value: Any) -> Document:
    document: Any = copy.deepcopy(listed(parameters={}, outputs=[{"name": "C"}]))
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split("."))
    place = document
    for step in steps:
        place = place[step]
    place[last] = value
    return dict(document)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("inputs", [], "inputs"),
        ("inputs.0.name", "D", "inputs.0.name"),
        ("inputs.0.shape", [], "inputs.0.shape"),
        ("inputs.0.shape", [2, -3], "inputs.0.shape.1"),
        ("inputs.0.shape", [2.5, 3.0], "inputs.0.shape.0"),
        ("inputs.0.shape", [2**40, 2**40], "inputs.0.shape.0"),
        ("inputs.0.shape", [6], "dimensions"),
        ("inputs.0.shape", [1, 1, 2, 3], "dimensions"),
        ("inputs.0.shape", [0, 3], "at least 1"),
        ("inputs.0.shape", [1, 2, 3], "batches"),
        ("inputs.0.datatype", "BYTES", "BYTES"),
        ("inputs.0.datatype", None, "inputs.0.datatype"),
        ("inputs.0.data", None, "needs one of data"),
        ("inputs.0.data", [], "has 0 numbers"),
        ("inputs.0.data", [1, 2, 3, 4, 5], "has 5 numbers"),
        ("inputs.0.data", [1, 2, 3, 4, 5, "6"], "element 5 of A is no number"),
        ("inputs.0.data", [1, 2, 3, 4, 5, True], "element 5 of A is no number"),
        ("inputs.0.data", [1, 2, 3, 4, 5, None], "element 5 of A is no number"),
        ("inputs.0.data", [[1, 2, 3], 4, 5, 6], "not nested evenly"),
        ("inputs.0.data", [[[1, 2, 3], [4, 5, 6]]], "the data of A is [1, 2]"),
        ("inputs.0.data", {"0": 1}, "has 1 numbers"),
        ("inputs.0.parameters", {"binary_data_size": 24}, "needs one of data"),
        ("inputs.0.parameters", {"shared_memory_region": "r"}, "without shared_memory_byte_size"),
        ("parameters.trans_a", True, "inner dimensions disagree"),
        ("parameters.trans_a", 1, "parameters.trans_a"),
        ("parameters.precision", "loose", "parameters.precision"),
        ("parameters.device", "cuda:7", "no device cuda:7"),
        ("parameters.kernel", "magic", "no kernel magic"),
        ("outputs.0.name", "D", "outputs.0.name"),
        ("outputs", [{"name": "C"}] * 2, "outputs"),
        ("outputs.0.parameters", {"shared_memory_region": "r", "shared_memory_byte_size": 1}, "has 1"),
        ("id", 7, "id"),
    ],
)
def test_a_member_that_is_off_is_refused_by_its_name(client: httpx.Client, path: str, value: Any, words: str) -> None:
    answer = client.post(INFER, json=changed(path, value))
    assert answer.status_code in {400, 404, 422}, answer.text
    assert words in answer.json()["error"]


def test_overflow_rounds_to_infinity_and_beyond_double_is_refused(client: httpx.Client) -> None:
    document = changed("inputs.0.data", [1e300, 0, 0, 0, 0, 0])
    answer = client.post(INFER, json=document)
    assert product(answer)[0, 1] == np.inf
    text = json.dumps(changed("inputs.0.data", ["X", 0, 0, 0, 0, 0])).replace('"X"', "9" * 400 + ", NaN")
    refused(client.post(INFER, content=text.replace("NaN, 0,", "NaN,")), 400, "beyond every double")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([[0, 1, 2], [3, 4, 5]], "its shape is"),
        ([[0, 1], [2, 3, 4], [5]], "not nested evenly"),
        ([[0], [1], [2], [3], [4], [5]], "its shape is"),
        ([0, 1, 2, 3, 4], "5 numbers"),
        ([[0, 1], [2, 3], [4, "5"]], "no number"),
    ],
)
def test_data_that_contradict_the_shape_are_400(client: httpx.Client, data: list[Any], words: str) -> None:
    document = listed()
    document["inputs"][0] |= {"shape": [3, 2], "data": data}
    document["inputs"][1] |= {"shape": [2, 1], "data": [[1], [1]]}
    refused(client.post(INFER, json=document), 400, words)
    document["inputs"][0]["data"] = [[0, 1], [2, 3], [4, 5]]
    np.testing.assert_array_equal(product(client.post(INFER, json=document)), [[1], [5], [9]])


def test_parameters_that_mean_nothing_here_are_ignored(client: httpx.Client) -> None:
    parameters = {"triton_enable_empty_final_response": True, "mine": {"a": [1]}}
    assert np.array_equal(product(client.post(INFER, json=listed(parameters=parameters))), A @ B)


def test_a_size_is_the_same_number_however_json_writes_it(client: httpx.Client) -> None:
    text = json.dumps(listed())
    shape = json.dumps([*A.shape])
    assert shape in text
    whole = text.replace(shape, json.dumps([f"{size}.0" for size in A.shape]).replace('"', ""), 1)
    assert np.array_equal(product(client.post(INFER, content=whole)), A @ B)
    for size, status in (("2.5", 422), ("1e300", 422), ("1e400", 400), ("9" * 400, 400)):
        broken = text.replace(shape, f"[{size}, 2]", 1)
        assert client.post(INFER, content=broken).status_code == status, size
        order = f'{{"shapes": [{{"m": {size}, "n": 8, "k": 8}}]}}'
        answer = client.post("/tune", content=order, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, size


def test_a_path_is_what_it_is(client: httpx.Client) -> None:
    for path in ("/v2/", "/devices/", "/errors/", "/docs/"):
        answer = client.get(path, follow_redirects=False)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


def test_the_models_metadata_says_which_types_json_has(client: httpx.Client) -> None:
    told = client.get("/v2/models/matmul").json()["parameters"]
    assert told == {"datatypes": "FP16, BF16, FP32, FP64", "json_needs_convert": "FP16, BF16"}


def test_what_the_protocol_lets_others_add_is_passed_over(client: httpx.Client) -> None:
    document = listed(parameters={"sequence_id": 7, "sequence_start": True, "priority": 2, "timeout": 10})
    document["inputs"][0] |= {"parameters": {"content_type": "np"}, "note": "mine"}
    np.testing.assert_array_equal(product(client.post(INFER, json=document | {"note": "mine"})), A @ B)


def test_unknown_paths_keep_the_one_shape_of_errors(client: httpx.Client) -> None:
    refused(client.get(INFER), 405, "POST")
    refused(client.get("/v2/nothing"), 404, "/v2/nothing")
    refused(client.get("/v2/models/matmul/versions/one"), 404, "version one")
    refused(client.get("/v2/models/other/config"), 404, "no model other")
    refused(client.post("/v2/repository/index", content=b"["), 400, "no JSON")
    refused(client.post("/v2/systemsharedmemory/region/r/register", json={"key": "/mm"}), 422, "byte_size")
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/models/matmul/versions/1/ready").json() == {"name": "matmul", "ready": True}


LEAF: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["A", "B", "C", "FP32", "FP64", "BF16", "FP16", "INT8", "opencl:0", "naive", "vendor", "r"])
)
VALUE: Final = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner)
)
PATHS: Final = (
    ["id", "parameters", "inputs", "outputs", "inputs.0", "inputs.1", "outputs.0", "outputs.0.name"]
    + [f"inputs.{i}.{name}" for i in (0, 1) for name in ("name", "shape", "datatype", "data", "parameters")]
    + [f"inputs.0.shape.{i}" for i in (0, 1)]
    + [f"inputs.0.data.{i}" for i in (0, 5)]
    + [f"parameters.{name}" for name in ("precision", "kernel", "trans_a", "trans_b", "device", "binary_data_output")]
    + ["outputs.0.parameters", "inputs.0.parameters"]
)
PLACED: Final = st.dictionaries(
    st.sampled_from(
        ["binary_data_size", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "binary_data"]
    ),
    st.integers(-1, 100) | LEAF,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """A valid request with some members replaced, a tail, a length and codings that may be off."""
    document: Any = listed(parameters={}, outputs=[{"name": "C"}]) if draw(st.booleans()) else binary()
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=3)):
        *steps, last = (int(step) if step.isdecimal() else step for step in path.split("."))
        place = document
        try:
            for step in steps:
                place = place[step]
            place[last] = draw(PLACED if last == "parameters" else VALUE)
        except (KeyError, IndexError, TypeError):
            continue
    text = json.dumps(document).encode()
    tail = draw(st.sampled_from([b"", bytes(72)]) | st.binary(max_size=100))
    length = draw(st.sampled_from([str(len(text))] * 4 + ["0", "1", str(len(text) + 1), "", "x"]))
    headers = draw(st.sampled_from([{LENGTH: length}, {}])) if not tail else {LENGTH: length}
    body = draw(st.sampled_from([text + tail] * 6 + [text[:-1], text[1:] + tail]))
    coding = draw(st.sampled_from(["", "", "", "gzip", "deflate", "br"]))
    if coding:
        headers = headers | {"Content-Encoding": coding}
        body = draw(st.sampled_from([gzip.compress(body), zlib.compress(body), body]))
        body = body[: draw(st.sampled_from([len(body)] * 3 + [len(body) // 2]))]
    return body, headers | {"Accept-Encoding": draw(st.sampled_from(["", "gzip", "deflate", "*;q=0"]))}


def expect_no_fault(client: httpx.Client, body: bytes, headers: dict[str, str]) -> None:
    answer = client.post(INFER, content=body, headers=headers)
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["detail"].startswith(answer.json()["error"])


@pytest.mark.slow
def test_malformed_requests_are_never_worse_than_a_4xx(client: httpx.Client) -> None:
    print(f"TEST_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=150, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(requests())
    def fuzz(request: tuple[bytes, dict[str, str]]) -> None:
        expect_no_fault(client, *request)

    fuzz()
    assert client.get("/v2/health/ready").status_code == 200
    assert all_given_back(client)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_malformed_requests_are_never_worse_than_a_4xx(client: httpx.Client) -> None:
    print(f"TEST_SEED={SEED}")

    @seed(SEED)
    @settings(max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def fuzz(request: tuple[bytes, dict[str, str]]) -> None:
        expect_no_fault(client, *request)

    fuzz()
