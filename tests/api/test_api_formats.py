"""The formats of matrices: what numpy and others write is read as it was meant, everything else is refused by name."""

from __future__ import annotations

import io
import json
import struct
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.body import multipart
from app.api.formats import json_matrix as rows_format
from app.api.formats import npy as npy_format
from app.api.formats import npz as npz_format
from app.api.formats import safetensors as tensors_format
from app.api.formats.operand_spec import ParsedBody, ProductOptions, TensorSpec, is_stacked, problem_of
from app.api.inference import json_tensors
from app.dtypes import Array
from app.errors import BodyTooLarge, Invalid, InvalidMatrix, Malformed, TilewiseError
from kernels.problem import Problem
from tests.support.api.request_bodies import BOUNDARY, form, npy, npz, rows, safetensors

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMIT = 2**20


@contextmanager
def lend(nbytes: int) -> Iterator[memoryview]:
    yield memoryview(bytearray(nbytes))


@dataclass(frozen=True)
class Read:
    """A body that was understood, and the problem that it makes."""

    loaded: ParsedBody
    problem: Problem
    stacked: bool


def read(loaded: ParsedBody) -> Read:
    a, b = loaded.found["a"], loaded.found["b"]
    return Read(loaded, problem_of(a, b, loaded.wanted), is_stacked(a))


def read_npz(data: bytes, wanted: ProductOptions | None = None, limit: int = LIMIT) -> Read:
    return read(npz_format.load(memoryview(data), wanted or ProductOptions(), limit, lend))


def read_form(data: bytes, wanted: ProductOptions | None = None) -> Read:
    return read(multipart.load(memoryview(data), BOUNDARY.encode(), ("a", "b"), wanted or ProductOptions()))


def read_rows(data: bytes, wanted: ProductOptions | None = None) -> Read:
    return read(rows_format.load(memoryview(data), wanted or ProductOptions()))


def read_tensors(data: bytes) -> dict[str, TensorSpec]:
    length = tensors_format.header_bytes(data[:8])
    return tensors_format.header(data[8 : 8 + length])


def filled(read: Read) -> tuple[Array, Array]:
    problem = read.problem
    stack = (problem.batch,) if problem.batch > 1 else ()
    a = np.full((*stack, *problem.a_shape), np.nan, dtype=problem.dtype)
    b = np.full((*stack, *problem.b_shape), np.nan, dtype=problem.dtype)
    read.loaded.fill({"a": a, "b": b})
    return a, b


ORDERS: dict[str, Callable[[Array], Array]] = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "big endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "big endian, Fortran order": lambda array: np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stack", [(), (1,), (5,)])
def test_npy_files_of_every_order_are_read_as_they_were_meant(order: str, dtype: str, stack: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((*stack, 3, 4)).astype(dtype), rng.standard_normal((*stack, 4, 5)).astype(dtype)
    for read, data in (
        (read_form, form(a=npy(ORDERS[order](a)), b=npy(ORDERS[order](b)))),
        (read_npz, npz(a=ORDERS[order](a), b=ORDERS[order](b))),
        (read_npz, npz(packed=True, a=ORDERS[order](a), b=ORDERS[order](b))),
    ):
        loaded = read(data)
        got_a, got_b = filled(loaded)
        np.testing.assert_array_equal(got_a.reshape(a.shape), a)
        np.testing.assert_array_equal(got_b.reshape(b.shape), b)
        assert loaded.stacked == bool(stack)


def test_transposed_operands_are_taken_as_stored() -> None:
    loaded = read_form(form(a=npy(A.T.copy()), b=npy(B.T.copy())), ProductOptions(trans_a=True, trans_b=True))
    assert (loaded.problem.m, loaded.problem.n, loaded.problem.k) == (2, 4, 3)
    np.testing.assert_array_equal(filled(loaded)[0], A.T)


@pytest.mark.parametrize("step", [1, 7, 64, 4096])
def test_parts_are_found_whatever_pieces_the_parser_is_given(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(multipart, "_PIECE", step)
    tricky = np.frombuffer(f"\r\n--{BOUNDARY[:-1]}\r\n--{BOUNDARY[:8]}\r\n\r\n".ljust(48, "-").encode(), np.float32)
    a, b = tricky.reshape(3, 4), tricky.reshape(4, 3)
    got_a, got_b = filled(read_form(form(b=npy(b), a=npy(a))))
    assert got_a.tobytes() == a.tobytes()
    assert got_b.tobytes() == b.tobytes()


@pytest.mark.parametrize("step", [1, 3, 50, 2**18])
@pytest.mark.parametrize("start", [b"", b"\r", b"\r\n--", b"\r\n--" + BOUNDARY.encode()[:5], b"-", b"\r\n\r\n"])
def test_content_that_begins_as_a_boundary_does_lies_where_it_is(
    monkeypatch: pytest.MonkeyPatch, step: int, start: bytes
) -> None:
    monkeypatch.setattr(multipart, "_PIECE", step)
    parts = {"a": start + b"one" + start, "b": start + b"two"}
    data = form(**parts)
    spans = multipart.part_spans(memoryview(data), BOUNDARY.encode(), ("a", "b"))
    assert {name: data[begin:end] for name, (begin, end) in spans.items()} == parts


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        ("Content-Disposition: form-data; name=a; filename=" + "x" * 8192, 8192),
        (f"Content-Disposition: form-data; name=a\r\nX-One: {'x' * 5000}\r\nX-Two: {'x' * 5000}", 8192),
        ("\r\n".join(["Content-Disposition: form-data; name=a", *(f"X-{i}: x" for i in range(8))]), 8192),
    ],
)
def test_headers_of_a_part_are_bounded_in_bytes_and_number(headers: str, limit: int) -> None:
    data = f"--{BOUNDARY}\r\n{headers}\r\n\r\n".encode() + npy(A) + f"\r\n--{BOUNDARY}--\r\n".encode()
    with pytest.raises(Malformed) as refused:
        multipart.part_spans(memoryview(data), BOUNDARY.encode(), ("a",))
    assert refused.value.facts["limit"] == limit


def test_json_numbers_are_float32_unless_the_request_says_otherwise() -> None:
    assert read_rows(rows(A, B)).problem.dtype == "float32"
    assert read_rows(rows(A, B, dtype="float64")).problem.dtype == "float64"
    assert read_rows(rows(A, B), ProductOptions(dtype="float64")).problem.dtype == "float64"
    a, _ = filled(read_rows(b'{"a":[[0.1, 1e300, 3]],"b":[[1],[1],[1]]}'))
    assert a.tolist() == [[float(np.float32(0.1)), float("inf"), 3.0]]


def test_json_says_what_is_not_finite_with_strings() -> None:
    a, _ = filled(read_rows(b'{"a":[["NaN","Infinity","-Infinity"]],"b":[[1],[1],[1]]}'))
    np.testing.assert_array_equal(a, [[np.nan, np.inf, -np.inf]])
    c = np.array([[1.5, np.nan], [np.inf, -np.inf]], dtype=np.float32)
    text = b"".join(rows_format.write(c, {"dtype": "float32"}))
    assert json.loads(text) == {"c": [[1.5, "NaN"], ["Infinity", "-Infinity"]], "dtype": "float32"}


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 5), (1, 2, 2), (400, 200), (2, 1, 40_000), (3, 70_001)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_json_answers_read_back_as_the_same_numbers(shape: tuple[int, ...], dtype: str) -> None:
    c = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    c.reshape(-1)[::7] = np.nan
    read = json.loads(b"".join(rows_format.write(c, {"match": "exact"})))
    values = np.array([[float(value) for value in row] for row in np.array(read["c"], object).reshape(-1, shape[-1])])
    np.testing.assert_array_equal(values.astype(dtype).reshape(shape), c)


@pytest.mark.parametrize("shape", [(1500, 1500), (1, 2_250_000)])
def test_the_text_of_a_large_answer_is_never_there_whole(shape: tuple[int, int]) -> None:
    c = np.full(shape, 1 / 3, np.float32)
    for pieces in (rows_format.write(c, {}), json_tensors.write(c)):
        tracemalloc.start()
        size = sum(map(len, pieces))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size > 10 * c.size
        assert peak < 2**21


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"a":[[1,2],[3]],"b":[[1],[2]]}', "row 1 of a has 1 numbers, row 0 has 2"),
        ('{"a":[[1,2],3],"b":[[1],[2]]}', "row 1 of a is no list"),
        ('{"a":[[1,true]],"b":[[1],[2]]}', "row 0 of a, column 1: true is no number"),
        ('{"a":[[1,2]],"b":[["1"],[2]]}', 'row 0 of b, column 0: "1" is no number'),
        ('{"a":[[1,null]],"b":[[1],[2]]}', "row 0 of a, column 1: null is no number"),
        ('{"a":[[1,[2]]],"b":[[1],[2]]}', "row 0 of a, column 1: [2] is no number"),
        ('{"a":[],"b":[[1]]}', "a is no list of rows"),
        ('{"a":[[]],"b":[[1]]}', "a is 1 x 0: every size is at least 1"),
        ('{"a":5,"b":[[1]]}', "a is no list of rows"),
        ('{"b":[[1]]}', "a is missing"),
        ('{"a":[[1,2]],"b":[[1,2]]}', "inner dimensions disagree: op(A) is 1 x 2, op(B) is 1 x 2"),
        ('{"a":[[[1]]],"b":[[1]]}', "both are matrices, or batches of as many"),
        ('{"a":[[[1]],[[2],[3]]],"b":[[[1]],[[1]]]}', "matrix 1 of a has another shape than matrix 0"),
        ('{"a":[[[1],[2,3]]],"b":[[[1]]]}', "row 1 of matrix 0 of a has 2 numbers, row 0 has 1"),
    ],
)
def test_json_that_is_no_matrix_is_refused_with_the_place(body: str, message: str) -> None:
    with pytest.raises(InvalidMatrix) as refused:
        filled(read_rows(body.encode()))
    assert message in refused.value.message


@pytest.mark.parametrize("body", ["", "[", "[1]", '{"a":NaN}', "null", '{"a":[[1e999]]}', "{" * 2000, '"\ud800"'])
def test_what_is_no_json_object_is_malformed(body: str) -> None:
    with pytest.raises(Malformed):
        read_rows(body.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "members",
    [{"dtype": "float31"}, {"batch": 0}, {"batch": True}, {"trans_a": 1}, {"c": []}, {"dtype": 3}, {"kernel": ""}],
)
def test_json_members_that_mean_nothing_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        read_rows(rows(A, B, **members))
    assert refused.value.facts["errors"][0]["where"] == next(iter(members))  # type: ignore[index]  # facts are opaque


def test_a_body_that_disagrees_with_the_query_is_refused() -> None:
    for wanted in (ProductOptions(dtype="float64"), ProductOptions(m=3), ProductOptions(batch=2), ProductOptions(k=4)):
        with pytest.raises(Invalid):
            read_form(form(a=npy(A), b=npy(B)), wanted)
    with pytest.raises(Invalid, match="trans_a is true in the query and false in the body"):
        read_rows(rows(A, B, trans_a=False), ProductOptions(trans_a=True))
    assert read_rows(rows(A, B, trans_a=False), ProductOptions(trans_a=False, m=2, batch=1)).problem.m == 2


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(6), "a is int64: send float32, float64, float16 or bfloat16"),
        (np.zeros((2, 3), bool), "a is bool"),
        (np.zeros((2, 3), complex), "a is complex128"),
        (np.zeros((2, 3), "S4"), "a is "),
        (np.zeros((2, 3), [("x", "f4")]), "a is structured"),
        (np.zeros((2, 3), np.longdouble), "a is float128"),
        (np.float32(3), "a has 0 dimensions"),
        (np.zeros(3, np.float32), "a has 1 dimensions: a matrix has two"),
        (np.zeros((1, 1, 2, 3), np.float32), "a has 4 dimensions"),
        (np.zeros((0, 3), np.float32), "a is 0 x 3: every size is at least 1"),
        (np.zeros((2, 3), np.float64), "a is float64 and b is float32: send one type"),
    ],
)
def test_arrays_that_are_no_operands_are_refused(array: Array, message: str) -> None:
    for read, data in ((read_form, form(a=npy(array), b=npy(B))), (read_npz, npz(a=np.asarray(array), b=B))):
        with pytest.raises(InvalidMatrix) as refused:
            read(data)
        assert message in refused.value.message


def test_a_pickle_is_never_loaded() -> None:
    with pytest.raises(InvalidMatrix, match="a is object"):
        read_form(form(a=npy(np.array([[print]], dtype=object)), b=npy(B)))


def test_a_truncated_npy_is_refused_with_both_lengths() -> None:
    with pytest.raises(Malformed) as refused:
        read_form(form(a=npy(A)[:-1], b=npy(B)))
    assert refused.value.facts == {"expected": 24, "size": 23}
    for length in (0, 3, 7, 9, 20, 127):
        with pytest.raises(Malformed):
            read_form(form(a=npy(A)[:length], b=npy(B)))


def test_a_declared_size_takes_no_memory_until_its_bytes_are_there() -> None:
    header = npy_format.prefix("float32", (2**40, 2**20))
    with pytest.raises(Malformed):
        read_form(form(a=header, b=npy(B)))
    huge = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{"
    with pytest.raises(Malformed, match="header of 2147483648 bytes"):
        read_form(form(a=huge, b=npy(B)))


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return out.getvalue()


def test_an_npz_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = archive(a=npy(np.zeros((1024, 1024), np.float32)), b=npy(B))
    assert len(bomb) < 10_000
    with pytest.raises(BodyTooLarge) as refused:
        read_npz(bomb, limit=2**20)
    assert refused.value.facts["limit"] == 2**20


def test_an_npz_that_lies_about_its_sizes_is_refused() -> None:
    honest = archive(a=npy(A), b=npy(B))
    at = honest.rindex(b"PK\x01\x02", 0, honest.rindex(b"PK\x01\x02"))
    for size in (0, 10, 150, 153, 1000):
        lying = honest[: at + 24] + struct.pack("<I", size) + honest[at + 28 :]
        with pytest.raises((Malformed, InvalidMatrix)):
            filled(read_npz(lying))


@pytest.mark.parametrize(
    "members", [{}, {"a": npy(A)}, {"a": npy(A), "b": npy(B), "c": npy(B)}, {"a": npy(A), "x": npy(B)}]
)
def test_an_npz_holds_a_and_b_alone(members: dict[str, bytes]) -> None:
    with pytest.raises(InvalidMatrix, match="an archive holds a and b"):
        read_npz(archive(**members))


def test_a_form_holds_a_and_b_alone() -> None:
    with pytest.raises(InvalidMatrix, match="the form has no part b"):
        read_form(form(a=npy(A)))
    with pytest.raises(InvalidMatrix, match="this one has 'c'"):
        read_form(form(a=npy(A), c=npy(B)))
    with pytest.raises(InvalidMatrix, match="two parts a"):
        read_form(form(a=npy(A)).removesuffix(f"--{BOUNDARY}--\r\n".encode()) + form(a=npy(A)))
    with pytest.raises(Malformed, match="truncated"):
        read_form(form(a=npy(A), b=npy(B))[:-8])


def test_safetensors_header_orders_operands_by_their_bytes() -> None:
    found = read_tensors(safetensors(b=B, a=A))
    assert list(found) == ["b", "a"]
    assert (found["a"].shape, found["b"].dtype) == ((2, 3), "float32")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "I32"},
        {"dtype": 5},
        {"shape": [2, -3]},
        {"shape": [2, 3.0]},
        {"shape": [True, 6]},
        {"shape": "23"},
        {"data_offsets": [0, 23]},
        {"data_offsets": [4, 28]},
        {"data_offsets": [0]},
        {"data_offsets": [24, 0]},
        {"shape": [2**62, 2**62]},
    ],
)
def test_a_safetensors_header_that_does_not_add_up_is_refused(change: dict[str, Any]) -> None:
    honest = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [3, 4], "data_offsets": [24, 72]},
    }
    assert read_tensors(safetensors(honest))["a"].nbytes == 24
    with pytest.raises((Malformed, InvalidMatrix)):
        read_tensors(safetensors(honest | {"a": honest["a"] | change}))


def test_a_safetensors_header_over_64_kib_is_refused_before_it_is_read() -> None:
    with pytest.raises(Malformed) as refused:
        tensors_format.header_bytes(struct.pack("<Q", 2**63))
    assert refused.value.facts["limit"] == 2**16


def refused_or_read(read: Callable[[bytes], Any], data: bytes) -> None:
    """Nothing worse than an error that the caller can mend may come of any bytes."""
    try:
        found = read(data)
        if isinstance(found, Read) and found.problem.bytes < 2**24:
            filled(found)
    except TilewiseError as error:
        assert 400 <= error.status < 500, error.message  # noqa: PT017 - any other error fails the test by itself


def damaged(*honest: bytes) -> st.SearchStrategy[bytes]:
    """Honest bytes with pieces cut, changed, repeated and put in."""

    @st.composite
    def build(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(honest)))
        for _ in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, len(data)))
            length = draw(st.integers(0, 40))
            data[at : at + length] = draw(st.binary(max_size=40))
        return bytes(data)

    return st.one_of(build(), st.binary(max_size=400))


@settings(max_examples=150, deadline=None)
@given(damaged(npy(A), npy(A.T), npy(A.astype(">f8")), npy(np.arange(6))))
def test_no_bytes_of_an_npy_do_worse_than_be_refused(data: bytes) -> None:
    refused_or_read(lambda body: npy_format.read("a", memoryview(body)), data)


@settings(max_examples=150, deadline=None)
@given(damaged(npz(a=A, b=B), npz(packed=True, a=A, b=B), npz(a=A.T, b=B)))
def test_no_bytes_of_an_npz_do_worse_than_be_refused(data: bytes) -> None:
    refused_or_read(read_npz, data)


@settings(max_examples=150, deadline=None)
@given(damaged(safetensors(a=A, b=B), safetensors(b=B, a=A)))
def test_no_bytes_of_a_safetensors_file_do_worse_than_be_refused(data: bytes) -> None:
    refused_or_read(lambda body: read_tensors(body.ljust(8, b"\0")), data)


@settings(max_examples=150, deadline=None)
@given(damaged(form(a=npy(A), b=npy(B))), st.integers(1, 200))
def test_no_bytes_of_a_form_do_worse_than_be_refused(data: bytes, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "_PIECE", step)
        refused_or_read(read_form, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("NaN"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "dtype", "batch"]), inner),
    max_leaves=30,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(damaged(rows(A, B)), JSON.map(lambda value: json.dumps(value).encode())))
def test_no_bytes_of_json_do_worse_than_be_refused(data: bytes) -> None:
    refused_or_read(read_rows, data)


def test_a_type_of_numpys_that_has_no_byte_order_is_refused() -> None:
    header = npy(A).replace(b"'descr': '<f4'", b"'descr': 'T'  ")
    with pytest.raises(InvalidMatrix, match="a is String"):
        read_form(form(a=header, b=npy(B)))


def _with_header(text: str) -> memoryview:
    return memoryview(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(24))


NESTED = {
    "minus": "-" * 9999 + "1",
    "sum": "1" + "+1" * 4999,
    "tuples": "(" * 5000 + ")" * 5000,
    "both": "(" * 190 + "-" * 9619 + "1" + ")" * 190,
    "members": "a" + ".a" * 4999,
    "powers": "1" + "**1" * 3333,
    "conditions": "1 if 1 else " * 833 + "1",
}


@pytest.mark.parametrize("name", NESTED)
def test_the_deepest_header_is_refused_on_the_smallest_stack(name: str) -> None:
    """A thread of the service's pool has 1 MiB: overflowing it would end the process, and this one with it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {NESTED[name]}}}"[:10_000]
    found: list[Exception] = []

    def read() -> None:
        for text in (NESTED[name], header):
            try:
                npy_format.read("a", _with_header(text))
            except Malformed as error:
                found.append(error)

    before = threading.stack_size(2**20)
    try:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(found) == 2


def test_a_header_as_python_2_wrote_it_is_read() -> None:
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }"
    with pytest.warns(UserWarning, match="Python 2"):
        header, array = npy_format.read("a", _with_header(text))
    assert (header.described.shape, array.shape) == ((2, 3), (2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}",
        "{'descr': (), 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} + __import__('os')",
        "[]",
        "",
    ],
)
def test_a_header_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        npy_format.read("a", _with_header(text))
