"""Reads a file of any source, compressed or not, within limits: which source it is, is seen from its beginning."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final, cast

from app.errors import InvalidWorkload
from app.workloads.aiter import read_aiter
from app.workloads.counted import Workload
from app.workloads.cublaslt import read_cublaslt
from app.workloads.cutlass import read_cutlass
from app.workloads.hipblaslt import read_hipblaslt
from app.workloads.onnx import read_onnx
from app.workloads.options import ReadOptions
from app.workloads.profiler import read_profiler
from app.workloads.shapes import read_shapes
from app.workloads.tunableop import read_tunableop

SOURCES: Final[Mapping[str, Callable[[BinaryIO, ReadOptions], Workload]]] = {
    "torch.profiler": read_profiler,
    "cublaslt": read_cublaslt,
    "tunableop": read_tunableop,
    "aiter": read_aiter,
    "hipblaslt": read_hipblaslt,
    "cutlass": read_cutlass,
    "onnx": read_onnx,
    "shapes": read_shapes,
}
_BEGINNING: Final = 2**16  # bytes that are looked at
_RATIO: Final = 200  # bytes that a compressed byte may become: traces make twenty of one
_FREE: Final = 2**24  # bytes that a file may become in any case
_GZIP: Final = b"\x1f\x8b"
# Each reads a line once, whatever it is: what is sent here is anybody's.
_CUBLASLT: Final = re.compile(rb"\[cublasLt\]")
_TUNABLEOP: Final = re.compile(rb"(?m)^(?:\xef\xbb\xbf)?(?:Validator,|[A-Za-z]{0,32}?Gemm[A-Za-z]{0,64}?TunableOp_)")
_HIPBLASLT: Final = re.compile(rb"(?m)^[ \t]*-[ \t]*\{|hipblaslt-bench")
_CUTLASS: Final = re.compile(rb"(?m)^(?>[^\r\n]*?\bOperation\b)[^\r\n]*\bm,n,k\b")
_AITER: Final = re.compile(rb"(?m)^(?:[^\r\n]*,)?M,N,K\b")
_SIGNS: Final = (
    ("cublaslt", _CUBLASLT.search),
    ("tunableop", _TUNABLEOP.search),
    ("hipblaslt", _HIPBLASLT.search),
    ("cutlass", _CUTLASS.search),
    ("aiter", _AITER.search),
)


class _Unpacked(io.RawIOBase):
    """A gzip file's bytes, no more of them than a usual file of its length has."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._size = packed, 0
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed has Buffer
        """Bytes into the buffer; raises InvalidWorkload for what is cut, broken or too much."""
        try:
            count = self._file.readinto(buffer)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidWorkload(f"the file's gzip stream cannot be read: {error}") from error
        self._size += count
        if self._size > max(_FREE, _RATIO * self._packed.tell()):
            raise InvalidWorkload(f"the file unpacks to more than {_RATIO} times its bytes", limit=_RATIO)
        return count


def read_workload(stream: BinaryIO, source: str | None = None, options: ReadOptions | None = None) -> Workload:
    """The counted problems of a file that can be rewound, compressed by gzip or not.

    Raises InvalidWorkload, with line and column where there are such, for what cannot be read, and MemoryError never:
    of a file of any length a few megabytes are in memory, and of what it counts a few bytes an event.
    """
    if source is not None and source not in SOURCES:
        raise InvalidWorkload(f"source must be one of {', '.join(SOURCES)}, got {source!r}")
    stream.seek(0)
    packed = stream.read(2) == _GZIP
    stream.seek(0)
    plain = cast("BinaryIO", io.BufferedReader(_Unpacked(stream), 2**18)) if packed else stream
    buffered = plain if isinstance(plain, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", plain), 2**18)
    found = source or source_of(buffered.peek(_BEGINNING)[:_BEGINNING])
    return SOURCES[found](cast("BinaryIO", buffered), options or ReadOptions())


def source_of(beginning: bytes) -> str:
    """The source that a file's beginning looks like; raises InvalidWorkload for an empty one."""
    first = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if not first:
        raise InvalidWorkload("the file is empty")
    if first in {b"{", b"["} and b"[cublasLt]" not in beginning:
        return "torch.profiler"
    for source, search in _SIGNS:
        if search(beginning) is not None:
            return source
    return "onnx" if b"\0" in beginning or beginning[:1] == b"\x08" else "shapes"
