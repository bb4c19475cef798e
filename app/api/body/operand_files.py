"""Operands in .npy files of the operator's folder: read from there straight into their buffers in the slab."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.api.formats import npy
from app.api.formats.npy import NpyHeader
from app.api.formats.operand_spec import TensorSpec
from app.errors import InvalidMatrix, Malformed, UnknownFile

# Names below the folder: no part is hidden, or leads out of it.
NAME: Final = r"(?:[A-Za-z0-9_][A-Za-z0-9_.+=@-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+=@-]*\.npy"
_PIECE: Final = 2**26  # bytes read at once
# Of what is no plain file opening must not wait; a link is never followed, wherever it leads.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OperandFile:
    """An open file whose header was read; its numbers lie as the slab's do."""

    operand: str
    descriptor: int
    header: NpyHeader

    @property
    def described(self) -> TensorSpec:
        """What it holds."""
        return self.header.described

    def read_into(self, place: memoryview) -> None:
        """Read its numbers; raises InvalidMatrix where they are not there any more. Blocks."""
        done = 0
        while done < len(place):
            got = os.preadv(self.descriptor, [place[done : done + _PIECE]], self.header.start + done)
            if not got:
                raise InvalidMatrix(f"the file of {self.operand} became shorter", operand=self.operand)
            done += got


@contextmanager
def opened_file(folder: Path | None, name: str, operand: str, dtype: str | None) -> Iterator[OperandFile]:
    """The file of a NAME below the folder, of which the caller said its `dtype`. Blocks.

    Raises UnknownFile where there is none that may be read, InvalidMatrix for one that is no .npy in C order.
    """
    descriptor = _opened(folder, name)
    try:
        prefix = os.pread(descriptor, npy.PREFIX, 0)
        try:
            header = npy.header(operand, memoryview(prefix), dtype)
            npy.check_size(operand, header.described.nbytes, os.fstat(descriptor).st_size - header.start)
        except Malformed as error:
            raise InvalidMatrix(error.message, operand=operand) from error
        if not header.plain:
            raise InvalidMatrix(f"the file of {operand} is to be in C order and little-endian", operand=operand)
        yield OperandFile(operand, descriptor, header)
    finally:
        os.close(descriptor)


def _opened(folder: Path | None, name: str) -> int:
    """A descriptor of the file, reached without a link; raises UnknownFile."""
    if folder is None:
        raise UnknownFile("this service has no folder of operands: TILEWISE_OPERAND_DIR is not set")
    *parts, last = name.split("/")
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                above, at = at, os.open(part, _FOLDER, dir_fd=at)
                os.close(above)
            found = os.open(last, _FILE, dir_fd=at)
        finally:
            os.close(at)
    except OSError as error:
        raise UnknownFile(f"there is no file {name} that may be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise UnknownFile(f"{name} is no file")
    return found
