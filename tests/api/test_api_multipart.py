"""Forms over the whole way in, straight into their places or compressed, and back out by Accept."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

import httpx
import numpy as np
import pytest

from app.api.formats.operand_spec import ONE, ProductOptions
from app.devices.slab import Slab
from app.dtypes import Array
from tests.api.test_api_errors import refused
from tests.support.api.body_reading import FORM, JSON, MOST, NPY, NPZ, RAW, TENSORS, Counter, Sent, Taken
from tests.support.api.request_bodies import BOUNDARY, MAX_BODY, form, npy, npz, rows, safetensors

RNG = np.random.default_rng(11)
A = RNG.standard_normal((160, 120)).astype(np.float32)
B = RNG.standard_normal((120, 150)).astype(np.float32)
SMALL, ALSO = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
KINDS: dict[str, str] = {FORM: f"{FORM}; boundary={BOUNDARY}"}
PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab(2**24)
    yield slab
    slab.close()


@pytest.fixture
def counter(slab: Slab) -> Iterator[Counter]:
    counter = Counter(slab)
    yield counter
    counter.close()


def cut(body: bytes, step: int) -> Sequence[int]:
    """Where a body is cut: each step; where that is one byte, only every hundredth of what lies far from a boundary."""
    if step > 1:
        return range(step, len(body), step)
    found = [match.start() for match in re.finditer(re.escape(BOUNDARY).encode(), body)] + [0, len(body)]
    near = {place for at in found for place in range(at - 600, at + 600)}
    return [at for at in range(1, len(body)) if at in near or at % 100 == 0]


def sent(
    body: bytes, wanted: ProductOptions | None = None, names: tuple[str, ...] = ("a", "b"), step: int = 1009
) -> Sent:
    return Sent(FORM, body, boundary=BOUNDARY, wanted=wanted or ProductOptions(), names=names, cuts=cut(body, step))


def same(taken: Taken, **arrays: Array) -> None:
    assert taken.status == 200, taken
    assert set(taken.operands) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(taken.operands[name], array)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("step", [1, 31, 1009, 2**20])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_parts_come_in_any_order_and_in_any_pieces(counter: Counter, order: str, step: int) -> None:
    both = {"a": npy(A), "b": npy(B)}
    body = form(**{name: both[name] for name in order})
    same(counter.take(sent(body, ProductOptions(m=160, n=150), step=step)), a=A, b=B)
    same(counter.take(sent(body, step=step)), a=A, b=B)


def test_one_part_alone_may_be_all_that_is_wanted(counter: Counter) -> None:
    same(counter.take(sent(form(whatever=npy(A)), names=ONE)), matrix=A)
    same(counter.take(sent(form(b=npy(B)), names=("b",))), b=B)


@pytest.mark.parametrize("second", [np.asfortranarray(B), B.astype(">f4"), np.asfortranarray(B.astype(">f4"))])
def test_a_second_part_of_another_order_is_put_in_order(counter: Counter, second: Array) -> None:
    same(counter.take(sent(form(a=npy(A), b=npy(second)), ProductOptions(n=150))), a=A, b=B)


def test_a_second_part_may_be_one_number(counter: Counter) -> None:
    a, b = np.ones((20_000, 1), np.float32), np.full((1, 1), 3, np.float32)
    for step in (1, 40, 2**20):
        same(counter.take(sent(form(a=npy(a), b=npy(b)), ProductOptions(n=1), step=step)), a=a, b=b)
        same(counter.take(sent(form(b=npy(b), a=npy(a)), ProductOptions(m=20_000), step=step)), a=a, b=b)


def test_numbers_that_are_a_boundary_end_the_part_and_are_refused(counter: Counter) -> None:
    text = bytes(64) + f"\r\n--{BOUNDARY}\r\n\r\n--{BOUNDARY}--\r\n".encode() * 2000
    a = np.frombuffer(text[: len(text) // 640 * 640], np.float32).reshape(-1, 160).copy()
    b = np.ones((160, 1), np.float32)
    taken = counter.take(sent(form(a=npy(a), b=npy(b)), ProductOptions(n=1)))
    assert taken.code in {"malformed", "invalid_matrix"}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("wanted", [ProductOptions(), ProductOptions(n=150)])
@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"a": npy(A)[:-1000], "b": npy(B)}, "malformed"),
        ({"a": npy(A) + b"12", "b": npy(B)}, "malformed"),
        ({"a": npy(A), "b": npy(B)[:-1]}, "malformed"),
        ({"a": npy(A), "b": npy(B) + b"1"}, "malformed"),
        ({"a": npy(A), "b": npy(B)[:40]}, "malformed"),
        ({"a": npy(A), "b": npy(B)[:-30_000]}, "malformed"),
        ({"a": npy(A)}, "invalid_matrix"),
        ({"a": npy(A), "c": npy(B)}, "invalid_matrix"),
        ({"a": npy(A), "b": npy(B), "c": b""}, "invalid_matrix"),
        ({"a": npy(A), "b": npy(B.astype("f8"))}, "invalid_matrix"),
        ({"a": npy(A), "b": npy(B[:-1])}, "invalid_matrix"),
        ({"a": npy(A), "b": npy(B.astype("i4"))}, "invalid_matrix"),
    ],
)
def test_forms_are_refused_alike_whichever_way_they_come_in(
    counter: Counter, wanted: ProductOptions, parts: dict[str, bytes], code: str
) -> None:
    assert counter.take(sent(form(**parts), wanted)).code == code
    assert counter.take(sent(form(**parts)[:-8], wanted)).code in {code, "malformed"}


@pytest.mark.parametrize("step", [1, 1009, 2**21])
def test_a_form_begins_with_its_boundary(counter: Counter, step: int) -> None:
    body = form(a=npy(A), b=npy(B))
    same(counter.take(sent(b"\r\n" + body, step=step)), a=A, b=B)
    for before in (b"x", b"x\r\n", b"\r\nx", b"\r\n" * 1000, b"x" * (2**16)):
        assert counter.take(sent(before + body, step=step)).code == "malformed"


@pytest.mark.timing
def test_a_megabyte_before_the_first_boundary_does_not_hold_the_loop_up(counter: Counter) -> None:
    body = sent(b"x" * (MOST - 2**17), ProductOptions(n=150), step=MOST)

    def seconds() -> float:
        began = time.process_time()
        counter.take(body)
        return time.process_time() - began

    assert min(seconds() for _ in range(5)) < 0.03  # the first starts threads and touches new pages


def test_the_query_and_the_second_part_must_agree(counter: Counter) -> None:
    assert counter.take(sent(form(a=npy(A), b=npy(B)), ProductOptions(n=151))).code == "invalid"


@pytest.mark.parametrize("coding", PACKERS)
def test_what_unpacks_to_more_than_a_body_may_have_is_413_with_the_figures(counter: Counter, coding: str) -> None:
    body = PACKERS[coding](bytes(16 * MOST))
    assert len(body) < MOST // 20
    for media in (JSON, NPZ):
        taken = counter.take(Sent(media, body, coding))
        assert (taken.status, taken.code, taken.facts["limit"]) == (413, "body_too_large", MOST)
        assert taken.facts["size"] > MOST  # type: ignore[operator]  # facts are opaque


def test_a_gzip_file_of_nothing_over_and_over_is_refused(counter: Counter) -> None:
    body = gzip.compress(b"") * 1000 + gzip.compress(rows(SMALL, ALSO))
    assert counter.take(Sent(JSON, body, "gzip")).code == "malformed"
    same(counter.take(Sent(JSON, gzip.compress(b"") * 3 + gzip.compress(rows(SMALL, ALSO)), "gzip")), a=SMALL, b=ALSO)


@pytest.mark.parametrize("coding", PACKERS)
@pytest.mark.parametrize(
    ("media", "query", "body"),
    [
        (JSON, "", rows(SMALL, ALSO)),
        (FORM, "", form(a=npy(SMALL), b=npy(np.asfortranarray(ALSO)))),
        (NPZ, "", npz(a=SMALL, b=ALSO)),
        (TENSORS, "", safetensors(b=ALSO, a=SMALL)),
        (RAW, "?m=2&n=4&k=3", SMALL.tobytes() + ALSO.tobytes()),
    ],
)
def test_a_product_may_come_compressed_in_every_form(
    client: httpx.Client, media: str, query: str, body: bytes, coding: str
) -> None:
    headers = {"Content-Type": KINDS.get(media, media), "Content-Encoding": coding, "Accept": JSON}
    packed = PACKERS[coding](body)
    assert client.post(f"/matmul{query}", content=packed, headers=headers).json()["c"] == (SMALL @ ALSO).tolist()
    refused(client.post(f"/matmul{query}", content=packed[:-6], headers=headers), 400, "malformed", coding)
    refused(client.post(f"/matmul{query}", content=body, headers=headers), 400, "malformed", coding)


def test_an_order_may_come_compressed_as_products_do(client: httpx.Client) -> None:
    order = {"shapes": [{"m": 77, "n": 9, "k": 9}], "kernels": ["tiled"], "budget": {"trials": 1}}
    body = json.dumps(order).encode()
    for coding, pack in PACKERS.items():
        headers = {"Content-Type": JSON, "Content-Encoding": coding}
        answer = client.post("/tune", content=pack(body), headers=headers)
        assert answer.status_code == 202, answer.text
        client.delete(answer.headers["Location"])
        refused(client.post("/tune", content=body, headers=headers), 400, "malformed", coding)
        bomb = pack(json.dumps(order | {"device": " " * 2**21}).encode())
        refused(client.post("/tune", content=bomb, headers=headers), 413, "body_too_large")
    headers = {"Content-Type": JSON, "Content-Encoding": "br"}
    refused(client.post("/tune", content=body, headers=headers), 415, "unsupported_media_type", "br")


def test_a_matrix_may_come_compressed_and_a_bomb_is_413(client: httpx.Client) -> None:
    for media, query, body in ((NPY, "", npy(A)), (RAW, "?shape=160x120", A.tobytes())):
        headers = {"Content-Type": media, "Content-Encoding": "gzip"}
        answer = client.put(f"/matrices/packed{query}", content=gzip.compress(body), headers=headers)
        assert answer.status_code in {200, 201}, answer.text
        kept = client.get("/matrices/packed", headers={"Accept": NPY}).content
        np.testing.assert_array_equal(np.load(io.BytesIO(kept)), A)
    bomb = gzip.compress(bytes(MAX_BODY + 1))
    told = refused(
        client.put("/matrices/packed", content=bomb, headers={"Content-Type": JSON, "Content-Encoding": "gzip"}),
        413,
        "body_too_large",
    )
    assert told["size"] > told["limit"]
    assert told["limit"] == 2**20 < MAX_BODY  # a hundred times what was sent is less than that
    for coding in ("br", "gzip, gzip"):
        headers = {"Content-Type": NPY, "Content-Encoding": coding}
        refused(client.put("/matrices/packed", content=npy(A), headers=headers), 415, "unsupported_media_type", coding)
    assert client.delete("/matrices/packed").status_code == 204


@pytest.mark.parametrize(("a", "b"), [(SMALL, ALSO), (A, B), (np.stack([SMALL] * 3), np.stack([ALSO] * 3))])
def test_an_answer_may_be_an_archive(client: httpx.Client, a: Array, b: Array) -> None:
    headers = {"Content-Type": NPZ, "Accept": NPZ}
    answer = client.post("/matmul", content=npz(a=a, b=b), headers=headers)
    assert answer.headers["content-type"] == NPZ
    with np.load(io.BytesIO(answer.content)) as archive:
        assert archive.files == ["c"]
        np.testing.assert_allclose(archive["c"], a @ b, rtol=1e-4, atol=1e-4)


def test_every_way_to_a_result_has_every_form(client: httpx.Client) -> None:
    body, query = SMALL.tobytes() + ALSO.tobytes(), "/matmul?m=2&n=4&k=3"
    headers = {"Content-Type": RAW, "Prefer": "respond-async"}
    job = client.post(query, content=body, headers=headers).headers["location"]
    assert client.put("/matrices/kept", content=npy(SMALL), headers={"Content-Type": NPY}).status_code in {200, 201}
    for media in (NPZ, TENSORS, NPY, RAW):
        accept = {"Accept": media}
        while (answer := client.get(f"{job}/result", headers=accept)).status_code == 404:
            assert client.get(job).json()["state"] in {"queued", "running", "succeeded"}
        kept = client.get("/matrices/kept", headers=accept)
        made = client.post(query, content=body, headers=accept | {"Content-Type": RAW})
        assert {each.headers["content-type"] for each in (answer, kept, made)} == {media}
        assert answer.content == made.content
    with np.load(io.BytesIO(client.get("/matrices/kept", headers={"Accept": NPZ}).content)) as archive:
        np.testing.assert_array_equal(archive["c"], SMALL)
    client.delete("/matrices/kept")


def test_figures_of_any_size_are_refused_in_one_shape(client: httpx.Client) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }"
    for sizes in ((2**62, 2**62), (2**40, 2**40), (2**63 - 1, 1), (2**31, 2**29)):
        header = text % sizes
        file = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        answer = client.put("/matrices/huge", content=file, headers={"Content-Type": NPY})
        assert answer.json()["code"] in {"invalid_matrix", "too_large"}, answer.text
    deep = b'{"a":[[' + b"[" * 400 + b"]" * 400 + b']],"b":[[[1]]]}'
    refused(client.post("/matmul", content=deep, headers={"Content-Type": JSON}), 422, "invalid_matrix", "nested")


def test_a_form_of_known_sizes_comes_over_a_real_socket(client: httpx.Client) -> None:
    a, b = RNG.standard_normal((700, 900)).astype(np.float32), RNG.standard_normal((900, 800)).astype(np.float32)
    headers = {"Content-Type": KINDS[FORM], "Accept": RAW}
    for second in (b, np.asfortranarray(b)):
        body = form(a=npy(a), b=npy(second))
        for query in ("", "?n=800"):
            answer = client.post(f"/matmul{query}", content=body, headers=headers)
            c = np.frombuffer(answer.content, np.float32).reshape(700, 800)
            np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
        answer = client.post("/matmul?n=800", content=form(a=npy(a), b=npy(second)[:-100]), headers=headers)
        refused(answer, 400, "malformed", "b")
    assert client.post("/matmul", json={"a": [[2]], "b": [[3]]}).json()["c"] == [[6]]
