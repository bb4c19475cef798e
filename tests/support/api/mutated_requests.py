"""Requests with bodies of every form, from honest to hostile: each is built by its format's rules, then bent."""

from __future__ import annotations

import gzip
import io
import json
import struct
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np
from hypothesis import strategies as st

from app.api.formats.operand_spec import ONE, ProductOptions
from tests.support.api.body_reading import FORM, JSON, NPY, NPZ, RAW, TENSORS, Sent

SIZES = st.one_of(st.integers(1, 4), st.sampled_from([0, 1, 200, 2**31, 2**40, 2**62, 2**63, 2**64, 10**30, -1]))
SHAPES = st.one_of(
    st.sampled_from([[2, 3], [3, 4], [1, 2, 3], [2, 3, 4], [128, 200], [200, 128], [2**40, 2**40], [1] * 70]),
    st.lists(SIZES, max_size=4),
    st.lists(SIZES, min_size=30, max_size=400),
)
DESCRS = st.one_of(
    st.sampled_from(["<f4", "<f4", "<f4", ">f4", "<f8", ">f8", "<f2", "<f16", "|O", "<i8", "|b1", "<c16", "|S7"]),
    st.sampled_from(["<U99", "<M8[ns]", "<m8[0D]", "|V2", "f4,f4", "(2,3)f4", "<f4[2]", "a5", "T", "", "<f99999"]),
    st.text(max_size=6),
)
NAMES = st.sampled_from(["a", "b", "a", "b", "c", "", "a.npy", "\u00e4", "a\0", "x" * 300])


def number(shape: list[int], descr: str) -> int:
    """Bytes of an array that is small, else few."""
    width = {"8": 8, "2": 2}.get(descr[-1:], 4)
    elements = 1
    for size in shape:
        elements *= size
    return elements * width if 0 <= elements <= 2**17 else 24


@st.composite
def npy(draw: st.DrawFn) -> bytes:
    shape, descr = draw(SHAPES), draw(DESCRS)
    text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    text = draw(st.sampled_from([text] * 8 + ["(2, 3", "((((", "(3)", "(2L, 3L)", "[2, 3]", "(" * 3000, "(-2, -3)"]))
    told = repr(descr) if draw(st.integers(0, 9)) else draw(st.sampled_from(["[('x', '<f4')]", "5", "{}", "-" * 5000]))
    order = draw(st.sampled_from(["False"] * 4 + ["True", "True", "1", "None"]))
    header = f"{{'descr': {told}, 'fortran_order': {order}, 'shape': {text}, }}"
    header = draw(st.sampled_from([header] * 9 + [header[:-1], header + header, "", "{" * 4000, header[1:]]))
    raw = header.encode("utf-8", "replace") + b"\n"
    version = draw(st.sampled_from([1, 1, 1, 2, 3, 4, 0]))
    lie = draw(st.sampled_from([0] * 9 + [1, -1, 5000, 2**31]))
    form = "<H" if version == 1 else "<I"
    length = struct.pack(form, max(0, len(raw) + lie) % (2**16 if version == 1 else 2**32))
    size = max(0, number(shape, descr) + draw(st.sampled_from([0] * 9 + [-1, 1, -24, 4])))
    numbers = draw(st.sampled_from([b"\0", b"\r\n--b", b"\x7f"]))
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw + (numbers * size)[:size]


@st.composite
def good_npy(draw: st.DrawFn, rows: int, columns: int) -> bytes:
    out = io.BytesIO()
    array = np.ones((rows, columns), draw(st.sampled_from(["<f4", "<f4", ">f4", "<f8"])))
    np.save(out, np.asfortranarray(array) if draw(st.booleans()) else array)
    return out.getvalue()


@st.composite
def pair(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """The members of an archive or a form: mostly two that fit, of the same few sizes or larger."""
    m, n, k = (draw(st.sampled_from([1, 2, 3, 160])) for _ in range(3))
    members = [("a", draw(good_npy(m, k))), ("b", draw(good_npy(k, n)))]
    if draw(st.integers(0, 3)) == 0:
        members = draw(st.lists(st.tuples(NAMES, st.one_of(npy(), good_npy(2, 2), archive_of_zeros())), max_size=4))
    return members if draw(st.booleans()) else members[::-1]


@st.composite
def archive_of_zeros(draw: st.DrawFn) -> bytes:
    """A zip in which another may be: few bytes that unpack to many."""
    data = bytes(draw(st.sampled_from([10, 2**21])))
    for _ in range(draw(st.integers(1, 3))):
        data = zipped([("a.npy", data)], deflated=True)
    return data


def zipped(members: list[tuple[str, bytes]], *, deflated: bool) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # a name twice is what is wanted
        for name, data in members:
            archive.writestr(name or " ", data, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)
    return out.getvalue()


@st.composite
def npz(draw: st.DrawFn) -> bytes:
    members = draw(pair())
    tail = draw(st.sampled_from([".npy", ".npy", ""]))
    data = bytearray(zipped([(name + tail, each) for name, each in members], deflated=draw(st.booleans())))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):  # a lie in one field of one header
        mark = draw(st.sampled_from([b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]))
        at = data.find(mark) if draw(st.booleans()) else data.rfind(mark)
        field = at + 4 + 2 * draw(st.integers(0, 22))
        if at >= 0 and field + 4 <= len(data):
            lie = draw(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 99, 2**16 - 1, 2**31])))
            struct.pack_into("<I", data, field, lie)
    return bytes(data)


@st.composite
def form(draw: st.DrawFn, boundary: bytes) -> bytes:
    pieces = [draw(st.sampled_from([b"", b"", b"\r\n", b"preamble\r\n", b"--", b"x" * 5000]))]
    for name, data in draw(pair()):
        kind = draw(
            st.sampled_from(["form-data; name={}", 'form-data; filename="x;name=c"; name="{}"', "{}", "name={}"])
        )
        field = draw(st.sampled_from(["Content-Disposition", "content-disposition ", "X", "", "X" * 9000]))
        told = kind.format(name) if draw(st.integers(0, 3)) == 0 else f'form-data; name="{name}"'
        field = field if draw(st.integers(0, 5)) == 0 else "Content-Disposition"
        blank = draw(st.sampled_from([b""] * 9 + [b" \t", b" " * 300, b"x", b"-"]))
        pieces += [b"--" + boundary + blank + b"\r\n", f"{field}: {told}\r\n\r\n".encode(), data]
        pieces.append(draw(st.sampled_from([b"\r\n"] * 12 + [b"", b"\n", b"\r", b"\r\n--" + boundary[:-1] + b"\r\n"])))
    pieces.append(draw(st.sampled_from([b"--" + boundary + b"--"] * 6 + [b"", b"--" + boundary, b"--", b"tail"])))
    pieces.append(draw(st.sampled_from([b"\r\n", b"", b"epilogue" * 50])))
    return b"".join(pieces)


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    header: dict[str, Any] = {}
    at = 0
    for name in draw(st.sampled_from([["a", "b"]] * 6 + [["b", "a"], ["a"], [], ["a", "b", "c"], ["a", "x" * 500]])):
        shape = draw(SHAPES) if draw(st.integers(0, 3)) == 0 else draw(st.sampled_from([[2, 2], [2, 2], [160, 160]]))
        size = number(shape, "<f4")
        span = draw(
            st.sampled_from([[at, at + size]] * 9 + [[0, size], [at + 4, at + 4 + size], [size, at], [0], [2**63, 1]])
        )
        dtype = draw(st.sampled_from(["F32"] * 9 + ["F64", "F16", "BF16", "I8", "", "F8_E4M3", 5, None]))
        member: Any = {"dtype": dtype, "shape": shape, "data_offsets": span}
        header[name] = draw(st.sampled_from([member] * 9 + [None, [], {"dtype": "F32"}, member | {"shape": [2.5]}]))
        at += size
    if draw(st.integers(0, 5)) == 0:
        header["__metadata__"] = draw(st.sampled_from([{"k": "v"}, None, 3]))
    text = json.dumps(header).encode()
    text = draw(
        st.sampled_from([text] * 9 + [b"[" * 3000, b"[]", b"null", text[:-1], b"{}" + text, b" " * 2**17, b"\xff"])
    )
    length = draw(st.sampled_from([len(text)] * 9 + [0, len(text) + 1, 2**16, 2**16 + 1, 2**63, 2**64 - 1]))
    numbers = bytes(max(0, min(at, 2**18) + draw(st.sampled_from([0] * 9 + [-1, 1, 8, -at]))))
    return struct.pack("<Q", length) + text + numbers


LEAVES = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=4),
    st.sampled_from(["NaN", "-Infinity", 2**70]),
)
NESTED = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.just("a"), inner), max_leaves=20
)
ROWS = st.one_of(
    st.sampled_from([[[1, 2], [3, 4]], [[0.5, 1], [2, 3]], [[[1]], [[2]]]]),
    st.lists(st.lists(st.one_of(st.floats(), LEAVES), min_size=1, max_size=3), min_size=1, max_size=3),
    NESTED,
)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        depth = draw(st.sampled_from([10, 250, 1000, 100_000]))
        value = b'{"a":' + b"[" * depth + b"]" * depth + b',"b":[[1]]}'
        return draw(st.sampled_from([value, b"[" * depth, b'{"a":' * depth, value[:-1]]))
    body: Any = {"a": draw(ROWS), "b": draw(ROWS)}
    extra = {"dtype": LEAVES, "m": LEAVES, "trans_a": LEAVES, "kernel": LEAVES, "\0": LEAVES}
    body |= draw(st.fixed_dictionaries({}, optional=extra)) if draw(st.integers(0, 3)) == 0 else {}
    return json.dumps(draw(st.sampled_from([body] * 9 + [body["a"], [body]]))).encode()


WANTED = st.builds(
    ProductOptions,
    m=st.sampled_from([None, None, 2, 160]),
    n=st.sampled_from([None, None, 2, 160]),
    k=st.sampled_from([None, None, 2, 160]),
    batch=st.sampled_from([None, None, None, 1, 2]),
    dtype=st.sampled_from([None, None, None, "float32", "float64", "float16"]),
    trans_a=st.sampled_from([None, None, None, True, False]),
)
BOUNDARIES = st.one_of(st.sampled_from(["b", "0123456789abcdef", "x" * 70]), st.text("-a\"' ;=", max_size=72))


def packed(body: bytes, coding: str, how: int) -> bytes:
    """A body compressed, well or in one of the ways in which that goes wrong."""
    whole = gzip.compress(body, 1) if coding == "gzip" else zlib.compress(body, 1)
    empty = gzip.compress(b"", 1)
    bomb = gzip.compress(bytes(2**22), 9) if coding == "gzip" else zlib.compress(bytes(2**22), 9)
    others = [body, whole[:-5], whole + b"tail", whole + whole, empty * 40 + whole, bomb, whole[:1], b""]
    return others[how] if how < len(others) else whole


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    """A request."""
    boundary = draw(BOUNDARIES)
    forms = {
        JSON: rows(),
        FORM: form(boundary.encode() or b"b"),
        NPZ: npz(),
        TENSORS: tensors(),
        NPY: st.one_of(npy(), good_npy(2, 3)),
        RAW: st.sampled_from([b"", bytes(32), bytes(31), bytes(33), bytes(64), bytes(8 * 160 * 160)]),
    }
    media = draw(st.sampled_from(list(forms)))
    body = draw(forms[media])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=8)) + body[at + draw(st.integers(0, 40)) :]
    if draw(st.integers(0, 7)) == 0:
        body = body[: draw(st.integers(0, len(body)))]
    coding = draw(st.sampled_from([""] * 6 + ["gzip", "deflate"]))
    if coding:
        body = packed(body, coding, draw(st.integers(0, 24)))
    names: tuple[str, ...] = ONE if media == NPY else draw(st.sampled_from([("a", "b")] * 4 + [ONE, ("a",), ("b",)]))
    cuts = draw(st.lists(st.integers(0, max(1, len(body))), max_size=12))
    told = boundary if media == FORM else ""
    return Sent(media, body, coding, told, draw(WANTED), names, cuts, is_chunked=draw(st.booleans()))
