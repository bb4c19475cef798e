"""Requests of a given size that take more than they say: bodies in every form, heads and queries."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
NPY: Final = "application/x-npy"
NPZ: Final = "application/x-npz"
TENSORS: Final = "application/vnd.safetensors"
_BOUNDARY: Final = "0123456789abcdef"
FORM: Final = f"multipart/form-data; boundary={_BOUNDARY}"
_RATIO: Final = 100  # bytes that a byte which was sent may become
_INFER: Final = "/v2/models/matmul/infer"
_HEAD: Final = 65_000  # bytes of a head, which may have 65,536
_TUNE: Final = 2**17  # bytes of a body that holds no matrix
# Fields that are read of a head, each with what a long value of it repeats.
_FIELDS: Final = {
    "Accept": "a/b,",
    "Accept-Encoding": "gzip;q=0.1,",
    "Cookie": "a=b; ",
    "Prefer": "wait=1, ",
    "If-None-Match": '"a", ',
    "If-Match": 'W/"a",',
    "Idempotency-Key": "k",
    "Authorization": "Bearer ",
    "Content-Type": "a;b=c;",
    "Content-Encoding": "gzip,",
    "X-Request-ID": "x",
    "traceparent": "00-",
    "tracestate": "a=b,",
    "X-Forwarded-For": "1.1.1.1,",
    "Forwarded": "for=1;",
    "Origin": "http://a",
    "Referer": "http://a/",
    "Range": "bytes=0-1,",
    "Expect": "100-continue,",
    "Connection": "a,",
    "Inference-Header-Content-Length": "1",
}


@dataclass(frozen=True)
class HostileRequest:
    """A request; `size` are its body's bytes once it is decompressed, at most a hundred times those that are sent."""

    name: str
    path: str
    body: bytes = b""
    media: str = JSON
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    unpacked: int = 0

    @property
    def size(self) -> int:
        """Bytes of the body, decompressed, or of the head where there is none."""
        sent = len(self.body)
        return max(sent, min(self.unpacked, _RATIO * sent)) if sent else len(self.head)

    @property
    def is_json(self) -> bool:
        """Whether the body is text with values of its own."""
        return self.media == JSON

    @property
    def head(self) -> bytes:
        """The request's head."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"Content-Type: {self.media}", f"Content-Length: {len(self.body)}"] if self.body else []
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True)
class _Text:
    """A JSON text of any length: a front, a unit again and again, and an end."""

    name: str
    front: bytes
    unit: bytes
    end: bytes
    count: Callable[[int], bytes] | None = field(default=None)

    def of(self, nbytes: int) -> bytes:
        """The text, of about so many bytes."""
        count = max(1, (nbytes - len(self.front) - len(self.end)) // len(self.unit))
        if self.count is None:
            return self.front + (self.unit * count)[: -1 if self.unit.endswith(b",") else None] + self.end
        return self.front + b",".join(self.count(each) for each in range(count)) + self.end


def _member(number: int) -> bytes:
    return b'"m%x":0' % number


_MATMUL: Final = (
    _Text("empty lists", b'{"a":[', b"[],", b"]}"),
    _Text("empty objects", b'{"a":[', b"{},", b"]}"),
    _Text("digits", b'{"a":[[', b"1,", b']],"b":[[1]]}'),
    _Text("rows of one", b'{"a":[', b"[1],", b']],"b":[[1]]}'),
    _Text("rows of one, right", b'{"b":[[1]],"a":[', b"[1],", b"]}"),
    _Text("floats", b'{"a":[[', b"0.12345678,", b']],"b":[[1]]}'),
    _Text("names", b'{"a":[[', b'"NaN",', b']],"b":[[1]]}'),
    _Text("nulls", b'{"a":[[', b"null,", b']],"b":[[1]]}'),
    _Text("short texts", b'{"a":[[', b'"x",', b']],"b":[[1]]}'),
    _Text("one text", b'{"a":"', b"x", b'"}'),
    _Text("escapes", b'{"a":"', b"\\u0041", b'"}'),
    _Text("opened", b'{"a":', b"[", b""),
    _Text("objects opened", b'{"a":', b'{"a":', b""),
    _Text("keys again", b"{", b'"a":0,', b"}"),
    _Text("lists again", b"{", b'"a":[[1]],', b"}"),
    _Text("members", b"{", b'"m1234567":0,', b"}", _member),
    _Text("blanks", b'{"a":[[1]],"b":[[1]]', b" ", b"}"),
    _Text("a long number", b'{"a":[[', b"9", b"]]}"),
    _Text("a long fraction", b'{"a":[[0.', b"9", b"]]}"),
)
_TUNES: Final = (
    _Text("shapes", b'{"shapes":[', b'{"m":1,"n":1,"k":1},', b"]}"),
    _Text("wrong shapes", b'{"shapes":[', b"{},", b"]}"),
    _Text("shapes of nothing", b'{"shapes":[', b"0,", b"]}"),
    _Text("shapes opened", b'{"shapes":', b"[", b""),
    _Text("unknown members", b'{"shapes":[{"m":1,"n":1,"k":1}],', b'"m1234567":0,', b"}", _member),
    _Text("unknown members of a shape", b'{"shapes":[{', b'"m1234567":0,', b"}]}", _member),
    _Text("devices", b'{"shapes":[{"m":1,"n":1,"k":1}],"devices":[', b'"x",', b"]}"),
    _Text("kernels", b'{"shapes":[{"m":1,"n":1,"k":1}],"kernels":[', b"0,", b"]}"),
    _Text("a device", b'{"shapes":[{"m":1,"n":1,"k":1}],"devices":["', b"x", b'"]}'),
)
_INPUT: Final = b'{"name":"%b","datatype":"FP32","shape":[%b],"data":['
_INFERS: Final = (
    _Text("data", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"1,", b"]}]}"),
    _Text("data of floats", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"0.12345678,", b"]}]}"),
    _Text("data of lists", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"[],", b"]}]}"),
    _Text("data of rows", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"[1],", b"]}]}"),
    _Text("data of names", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"NaN,", b"]}]}"),
    _Text("data opened", b'{"inputs":[' + _INPUT % (b"A", b"1,1"), b"[", b""),
    _Text("inputs", b'{"inputs":[', b"{},", b"]}"),
    _Text("inputs of names", b'{"inputs":[', b"NaN,", b"]}"),
    _Text("digits of names", b'{"x":[NaN,', b"1,", b"]}"),
    _Text("members", b"{", b'"m1234567":0,', b"}", _member),
    _Text("parameters", b'{"inputs":[],"parameters":{', b'"m1234567":0,', b"}}", _member),
    _Text("shape", b'{"inputs":[{"name":"A","datatype":"FP32","shape":[', b"1,", b"]}]}"),
    _Text("outputs", b'{"inputs":[],"outputs":[', b"{},", b"]}"),
    _Text("an id", b'{"inputs":[],"id":"', b"x", b'"}'),
)
_ROWS: Final = (
    _Text("digits", b"[[", b"1,", b"]]"),
    _Text("rows of one", b"[", b"[1],", b"]"),
    _Text("empty lists", b"[", b"[],", b"]"),
    _Text("opened", b"", b"[", b""),
    _Text("names", b"[[", b'"NaN",', b"]]"),
)


def requests_of(nbytes: int) -> Iterator[HostileRequest]:
    """Every kind of request, of about so many bytes; those that have a smaller limit are within it."""
    yield from _texts(nbytes)
    yield from _binaries(nbytes, _side(nbytes))
    yield from _archives(nbytes)
    yield from _bombs(nbytes)
    if nbytes <= _TUNE:
        yield from _heads(min(nbytes, _HEAD))
        yield from _answers()


def _texts(nbytes: int) -> Iterator[HostileRequest]:
    for text in _MATMUL:
        yield HostileRequest(f"matmul, JSON: {text.name}", "/matmul", text.of(nbytes))
    for text in _TUNES:
        yield HostileRequest(f"tune: {text.name}", "/tune", text.of(min(nbytes, _TUNE)))
        key = ("Idempotency-Key", f'"{text.name} {nbytes}"')
        yield HostileRequest(f"tune with a key: {text.name}", "/tune", text.of(min(nbytes, _TUNE)), headers=(key,))
    for text in _INFERS:
        yield HostileRequest(f"infer, JSON: {text.name}", _INFER, text.of(nbytes))
    for text in _ROWS:
        yield HostileRequest(f"matrix, JSON: {text.name}", "/matrices/m", text.of(nbytes), method="PUT")


def _side(nbytes: int) -> int:
    """The side of two square matrices of so many bytes together."""
    return max(1, int((nbytes / 8) ** 0.5))


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _npz(*, packed: bool, **arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array))
    return out.getvalue()


def _tensors(text: bytes, numbers: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + numbers


def _form(**parts: bytes) -> bytes:
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"\r\n\r\n'
    pieces = [head.format(name).encode() + data + b"\r\n" for name, data in parts.items()]
    return b"".join(pieces) + f"--{_BOUNDARY}--\r\n".encode()


def _binaries(nbytes: int, side: int) -> Iterator[HostileRequest]:
    """Honest and hostile bodies of bytes: of a product, as a job with a key, and of a matrix that stays."""
    one = np.ones((side, side), np.float32)
    columns = np.asfortranarray(one)
    swapped = one.astype(">f4")
    member = {"dtype": "F32", "shape": [side, side]}
    spans = {name: {**member, "data_offsets": [at, at + one.nbytes]} for at, name in ((0, "a"), (one.nbytes, "b"))}
    query = f"/matmul?m={side}&n={side}&k={side}"
    later = (("Prefer", "respond-async"),)
    for name, headers in (
        ("", ()),
        (" as a job", later),
        (" with a key", (*later, ("Idempotency-Key", f'"{nbytes}"'))),
    ):
        yield HostileRequest(f"matmul, raw{name}", query, one.tobytes() * 2, RAW, headers=headers)
    bodies = {
        "form": (FORM, _form(a=_npy(one), b=_npy(columns))),
        "form of line ends": (FORM, _form(a=_npy(one) + b"\r\n--" * (nbytes // 4))),
        "form of half boundaries": (FORM, _form(a=(b"\r\n--" + _BOUNDARY[:-1].encode()) * (nbytes // 19))),
        "form of parts": (FORM, _form(**{f"p{each}": b"" for each in range(nbytes // 70)})),
        "form of headers": (FORM, f"--{_BOUNDARY}\r\n".encode() + b"A: b\r\n" * (nbytes // 6)),
        "form of one header": (
            FORM,
            f"--{_BOUNDARY}\r\nContent-Disposition: form-data".encode() + b"; a=b" * (nbytes // 5),
        ),
        "safetensors": (TENSORS, _tensors(json.dumps(spans).encode(), one.tobytes() * 2)),
        "safetensors of members": (TENSORS, _tensors(_MATMUL[15].of(min(nbytes, 2**16)))),
        "safetensors of lists": (TENSORS, _tensors(_MATMUL[0].of(min(nbytes, 2**16)))),
        "safetensors opened": (TENSORS, _tensors(b"[" * min(nbytes, 2**16))),
    }
    for name, (media, body) in bodies.items():
        yield HostileRequest(f"matmul, {name}", "/matmul", body, media)
    text = json.dumps(_inference(side, one.nbytes)).encode()
    length = (("Inference-Header-Content-Length", str(len(text))),)
    yield HostileRequest("infer, bytes", _INFER, text + one.tobytes() * 2, RAW, headers=length)
    puts = {"rows": _npy(one), "columns": _npy(columns), "other order": _npy(swapped), "header": _hostile_npy(nbytes)}
    for name, body in puts.items():
        yield HostileRequest(f"matrix, .npy: {name}", "/matrices/m", body, NPY, "PUT")
    yield HostileRequest("matrix, raw", f"/matrices/m?shape={side}x{side}", one.tobytes(), RAW, "PUT")
    lone = json.dumps({"a": {**member, "data_offsets": [0, one.nbytes]}}).encode()
    yield HostileRequest("matrix, safetensors", "/matrices/m", _tensors(lone, one.tobytes()), TENSORS, "PUT")
    yield HostileRequest("matrix, form", "/matrices/m", _form(a=_npy(columns)), FORM, "PUT")


def _inference(side: int, nbytes: int) -> dict[str, object]:
    one = {"datatype": "FP32", "shape": [side, side], "parameters": {"binary_data_size": nbytes}}
    return {"inputs": [{"name": "A", **one}, {"name": "B", **one}]}


def _hostile_npy(nbytes: int) -> bytes:
    """A header that is one long Python literal."""
    text = b"{'descr': [" + b"('',''),"[:8] * (min(nbytes, 9_900) // 8) + b"]}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _archives(nbytes: int) -> Iterator[HostileRequest]:
    """Archives: honest, of many members, and of more than they send."""
    side = _side(nbytes)
    one = np.ones((side, side), np.float32)
    mixed = np.random.default_rng(1).standard_normal((side, side)).astype(np.float32)
    yield HostileRequest("matmul, .npz", "/matmul", _npz(packed=False, a=one, b=mixed), NPZ)
    yield HostileRequest("matmul, .npz packed", "/matmul", _npz(packed=True, a=mixed, b=mixed.T), NPZ)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each in range(min(nbytes, 2**20) // 96):
            archive.writestr(zipfile.ZipInfo(f"{each}"), b"")
    yield HostileRequest("matmul, .npz of members", "/matmul", out.getvalue(), NPZ)
    bomb = _npz(packed=True, a=np.zeros((side, 16 * side), np.float32), b=np.zeros((16 * side, side), np.float32))
    yield HostileRequest("matmul, .npz of zeros", "/matmul", bomb, NPZ, unpacked=32 * one.nbytes)
    yield HostileRequest("matrix, .npz", "/matrices/m", _npz(packed=True, a=mixed), NPZ, "PUT", unpacked=one.nbytes)


def _bombs(nbytes: int) -> Iterator[HostileRequest]:
    """What is sent compressed: text that shrinks a thousandfold, and zeros."""
    coded = (("Content-Encoding", "gzip"),)
    for text in _MATMUL[:12]:
        whole = text.of(nbytes)
        yield HostileRequest(
            f"matmul, JSON in gzip: {text.name}", "/matmul", gzip.compress(whole, 1), headers=coded, unpacked=len(whole)
        )
    side = _side(nbytes)
    zeros = gzip.compress(bytes(8 * side * side), 1)
    path = f"/matmul?m={side}&n={side}&k={side}"
    yield HostileRequest("matmul, raw in gzip", path, zeros, RAW, headers=coded, unpacked=8 * side * side)
    empty = gzip.compress(b"") * min(nbytes // 20, 2**16)
    yield HostileRequest("matmul, empty members in gzip", path, empty, RAW, headers=coded)


def _heads(nbytes: int) -> Iterator[HostileRequest]:
    """Heads: many fields, long values of each field that is read, and long paths."""
    small = {"/best-config?m=1&n=1&k=1": "GET", "/matmul?m=1&n=1&k=1": "POST", "/": "GET", _INFER: "POST"}
    for name, unit in _FIELDS.items():
        value = (unit * (nbytes // len(unit)))[: max(1, nbytes - 300)]
        for path, method in small.items():
            yield _headed(path, method, name, ((name, value),))
    many = tuple((f"x{each}", "") for each in range(nbytes // 10))
    same = tuple(("a", "") for _ in range(nbytes // 6))
    cookies = tuple(("Cookie", "a=b") for _ in range(nbytes // 14))
    for path, method in small.items():
        for name, headers in (("fields", many), ("fields again", same), ("cookies", cookies)):
            yield _headed(path, method, name, headers)
    yield from _paths(nbytes)


def _headed(path: str, method: str, name: str, headers: tuple[tuple[str, str], ...]) -> HostileRequest:
    body = b"\0" * 8 if method == "POST" else b""
    return HostileRequest(f"{path[:7]}: {name}", path, body, RAW, method, headers)


def _paths(nbytes: int) -> Iterator[HostileRequest]:
    paths = {
        "query": "/best-config?" + "&".join(f"x{each}=" for each in range(nbytes // 7)),
        "query of one": "/best-config?m=" + "1" * (nbytes - 200),
        "query again": "/best-config?" + "m=1&" * (nbytes // 4),
        "query of escapes": "/best-config?m=" + "%31" * (nbytes // 4),
        "path": "/jobs/" + "a" * (nbytes - 200),
        "path of slashes": "/" * (nbytes - 200),
        "path of escapes": "/matrices/" + "%41" * (nbytes // 4),
        "path of a model": "/v2/models/" + "a/" * (nbytes // 3),
        "cursor": "/jobs?cursor=" + "A" * (nbytes - 200),
        "host": "http://" + "a" * (nbytes - 200) + "/",
    }
    for name, path in paths.items():
        yield HostileRequest(f"GET: {name}", path[: nbytes - 150], method="GET")


def _answers() -> Iterator[HostileRequest]:
    """Small operands of large products, whose answer is text."""
    sides = 4096
    wide = np.full(2 * sides, 1 / 3, np.float32).tobytes()
    query = f"/matmul?m={sides}&n={sides}&k=1"
    yield HostileRequest("matmul: a large answer in JSON", query, wide, RAW, headers=(("Accept", JSON),))
    shapes = {"A": [sides, 1], "B": [1, sides]}
    size = len(wide) // 2
    inputs = [
        {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}
        for name, shape in shapes.items()
    ]
    text = json.dumps({"inputs": inputs, "outputs": [{"name": "C"}]}).encode()
    length = ("Inference-Header-Content-Length", str(len(text)))
    for name, headers in (("", (length,)), (", packed", (length, ("Accept-Encoding", "gzip")))):
        yield HostileRequest(f"infer: a large answer in JSON{name}", _INFER, text + wide, RAW, headers=headers)
