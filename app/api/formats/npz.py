"""NumPy's .npz: a zip of .npy members, a and b, unpacked no further than a limit."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from app.api.formats import npy
from app.api.formats.operand_spec import OPERANDS, ParsedBody, Places, ProductOptions, bytes_of, called
from app.dtypes import Array
from app.errors import BodyTooLarge, Malformed

MEDIA: Final = "application/x-npz"
_PIECE: Final = 2**20
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    EOFError,
    RuntimeError,
    OSError,
    ValueError,
    OverflowError,
    KeyError,
)
# A written archive has one stored member and the sizes of ZIP64 (PKWARE's APPNOTE 6.3.10), whatever its size is.
_MEMBER: Final = b"c.npy"
_VERSION, _DATE, _UNSAID, _NOT_HERE = 45, 0x21, 2**32 - 1, 2**16 - 1  # 1980-01-01: DOS has no earlier day

Lend = Callable[[int], AbstractContextManager[memoryview]]


def load(
    data: memoryview, wanted: ProductOptions, limit: int, lend: Lend, names: tuple[str, ...] = OPERANDS
) -> ParsedBody:
    """Understand an archive; raises Malformed, InvalidMatrix, BodyTooLarge if it unpacks to more than `limit` bytes.

    `lend` gives memory for members that do not lie as the slab wants them.
    """
    with _reading(data) as archive:
        members = _members(archive, limit, names)
        headers = {name: _header(archive, name, member, wanted.dtype) for name, member in members.items()}

    def fill(places: Places) -> None:
        with _reading(data) as archive:
            for name, out in places.items():
                _unpack(archive, members[name], headers[name], out, lend)

    beside = max((each.described.nbytes for each in headers.values() if not each.plain), default=0)
    return ParsedBody({name: each.described for name, each in headers.items()}, wanted, fill, beside)


class _ByteFile(io.RawIOBase):
    """Bytes as a file. One read is at most a piece: so is the directory, which zipfile reads at once."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise OSError("a place before the start")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        wanted = len(self._data) - self._at if size is None or size < 0 else size
        if wanted > _PIECE:
            raise Malformed(f"the archive's directory is over {_PIECE} bytes", limit=_PIECE)
        piece = bytes(self._data[self._at : self._at + wanted])
        self._at += len(piece)
        return piece


@contextmanager
def _reading(data: memoryview) -> Iterator[zipfile.ZipFile]:
    """An open archive; whatever is wrong with it is Malformed."""
    try:
        with zipfile.ZipFile(_ByteFile(data)) as archive:
            yield archive
    except _BROKEN as error:
        raise Malformed(f"the archive cannot be read: {error}") from error


def _members(archive: zipfile.ZipFile, limit: int, names: tuple[str, ...]) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    meant = called([_stem(info) for info in infos], names, "an archive")
    size = sum(info.file_size for info in infos)
    if size > limit:
        raise BodyTooLarge(f"the archive unpacks to {size} bytes, the limit is {limit}", limit=limit, size=size)
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Malformed(f"{info.filename} is compressed in a way that is not read: store or deflate it")
    return {meant[_stem(info)]: info for info in infos}


def _stem(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def _header(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo, dtype: str | None) -> npy.NpyHeader:
    with archive.open(member) as stream:
        found = npy.header(name, memoryview(stream.read(npy.PREFIX)), dtype)
    npy.check_size(name, found.described.nbytes, member.file_size - found.start)
    return found


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, found: npy.NpyHeader, out: Array, lend: Lend) -> None:
    with archive.open(member) as stream:
        _exactly(stream, memoryview(bytearray(found.start)))
        if found.plain:
            _exactly(stream, bytes_of(out))
        else:
            with lend(found.described.nbytes) as memory:
                _exactly(stream, memory)
                out[...] = found.array(memory).reshape(out.shape)
        if stream.read(1):
            raise Malformed(f"{member.filename} is longer than it says")


def _exactly(stream: Any, out: memoryview) -> None:
    """Fill `out` from a stream; raises EOFError if it ends before."""
    at = 0
    while at < len(out):
        count = stream.readinto(out[at : at + _PIECE])
        if not count:
            raise EOFError("a member ends before its numbers do")
        at += count


def around(dtype: str, shape: tuple[int, ...], numbers: Iterable[bytes | memoryview]) -> tuple[bytes, bytes]:
    """What stands before and after the bytes of C in an archive of C alone; they are read once for its checksum."""
    front = npy.prefix(dtype, shape)
    checksum, size = zlib.crc32(front), len(front)
    for piece in numbers:
        checksum, size = zlib.crc32(piece, checksum), size + len(piece)
    common = struct.pack("<HHHHHI", _VERSION, 0, zipfile.ZIP_STORED, 0, _DATE, checksum)
    sizes = struct.pack("<HHQQ", 1, 16, size, size)
    described = common + struct.pack("<IIHH", _UNSAID, _UNSAID, len(_MEMBER), len(sizes))
    local = b"PK\3\4" + described + _MEMBER + sizes
    entry = b"PK\1\2" + struct.pack("<H", _VERSION) + described + struct.pack("<HHHII", 0, 0, 0, 0, 0) + _MEMBER + sizes
    start = len(local) + size
    fixed = struct.pack("<QHHIIQQQQ", 44, _VERSION, _VERSION, 0, 0, 1, 1, len(entry), start)
    end = b"PK\6\6" + fixed + b"PK\6\7" + struct.pack("<IQI", 0, start + len(entry), 1)
    last = struct.pack("<HHHHIIH", 0, 0, _NOT_HERE, _NOT_HERE, _UNSAID, _UNSAID, 0)
    return local + front, entry + end + b"PK\5\6" + last
