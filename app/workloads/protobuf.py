"""The wire format of protocol buffers: fields of a message, of which long ones are passed over unread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, NoReturn

from app.errors import InvalidWorkload

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT: Final = 10
_PIECE: Final = 2**20


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field's number, kind, and value; of bytes the value is their length."""

    number: int
    kind: int
    value: int


class MessageReader:
    """Reads a message of `length` bytes, or to the end of the stream; whoever gets a field of bytes reads or skips it.

    What is no message raises InvalidWorkload with its offset.
    """

    def __init__(self, stream: BinaryIO, length: int | None = None, start: int = 0) -> None:
        self._stream, self._left, self.at = stream, length, start

    def fields(self) -> Iterator[MessageField]:
        """The message's fields, in order."""
        while (tag := self._varint(may_end=True)) is not None:
            number, kind = tag >> 3, tag & 7
            if kind in _FIXED:
                self.read(_FIXED[kind])
                value = 0
            elif kind in {VARINT, BYTES}:
                value = self._varint() or 0
            else:
                self.refuse(f"a field of kind {kind}")
            if not number or (kind == BYTES and self._left is not None and value > self._left):
                self.refuse(f"field {number} with {value} bytes")
            yield MessageField(number, kind, value)

    def read(self, length: int) -> bytes:
        """Exactly so many bytes."""
        data = self._take(length)
        if len(data) < length:
            self.refuse("the end")
        return data

    def skip(self, length: int) -> None:
        """Pass over so many bytes."""
        while length:
            length -= len(self.read(min(length, _PIECE)))

    def within(self, length: int) -> MessageReader:
        """A reader of a message that is a field of this one; to be read to its end."""
        if self._left is not None:
            self._left -= length
        inner = MessageReader(self._stream, length, self.at)
        self.at += length
        return inner

    def refuse(self, what: str) -> NoReturn:
        """Raise InvalidWorkload, which names the offset."""
        raise InvalidWorkload(f"byte {self.at}: the file is no ONNX model: {what}", offset=self.at)

    def _take(self, length: int) -> bytes:
        length = length if self._left is None else min(length, self._left)
        data = self._stream.read(length) if length else b""
        self.at += len(data)
        if self._left is not None:
            self._left -= len(data)
        return data

    def _varint(self, *, may_end: bool = False) -> int | None:
        value = 0
        for place in range(_LONGEST_VARINT):
            byte = self._take(1)
            if not byte:
                if may_end and not place and not self._left:
                    return None
                self.refuse("the end")
            value |= (byte[0] & 127) << (7 * place)
            if byte[0] < 128:  # noqa: PLR2004 - the upper bit says that another follows
                return value
        return self.refuse("a number of more than ten bytes")
