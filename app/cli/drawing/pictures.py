"""Pictures of pixels, as sixel and as Kitty's graphics have them.

Sources: DEC's VT330/VT340 Programmer Reference Manual, chapter 14 (sixel); Kitty's graphics protocol; PNG (RFC 2083).
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from app.cli.drawing.terminal import Protocol

Colour = tuple[int, int, int]

GROUND: Final[Colour] = (24, 26, 31)
_PIECE: Final = 4096  # characters of one of Kitty's escape codes
_BAND: Final = 6  # rows of pixels of one line of sixels
_FIRST: Final = 63  # the character of six pixels that are not set
_RUN: Final = 3  # equal sixels from which a count is shorter
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PER_CENT: Final = 100


class Canvas:
    """Rows of coloured pixels."""

    def __init__(self, width: int, height: int, ground: Colour = GROUND) -> None:
        self.width, self.height = width, height
        self.rows = [[ground] * width for _ in range(height)]

    def dot(self, x: int, y: int, colour: Colour) -> None:
        """Colour a pixel, if it is one of the picture."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self.rows[y][x] = colour

    def box(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Fill a rectangle, as much of it as is in the picture."""
        for row in self.rows[max(0, y) : max(0, y + height)]:
            left = max(0, x)
            right = max(left, min(self.width, x + width))
            row[left:right] = [colour] * (right - left)

    def line(self, start: tuple[int, int], end: tuple[int, int], colour: Colour) -> None:
        """Draw a line of two pixels."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            x = round(start[0] + (end[0] - start[0]) * step / steps)
            y = round(start[1] + (end[1] - start[1]) * step / steps)
            self.box(x, y, 2, 2, colour)


def encoded(picture: Canvas, protocol: Protocol) -> str:
    """The characters that show a picture where the cursor is."""
    return kitty(picture) if protocol == "kitty" else sixel(picture)


def png(picture: Canvas) -> bytes:
    """A file of eight bits a channel."""
    pixels = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in picture.rows)
    head = struct.pack(">2I5B", picture.width, picture.height, 8, 2, 0, 0, 0)
    return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(pixels, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def kitty(picture: Canvas) -> str:
    """The file in pieces, each an escape code; q=2 asks for no answer, which nobody would read."""
    text = b64encode(png(picture)).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    codes = []
    for number, piece in enumerate(pieces):
        first = "a=T,f=100,q=2," if number == 0 else ""
        codes.append(f"\x1b_G{first}m={int(number < len(pieces) - 1)};{piece}\x1b\\")
    return "".join(codes) + "\n"


def sixel(picture: Canvas) -> str:
    """Bands of six rows: of each colour in turn those of its pixels, as characters from ? on."""
    colours = sorted({pixel for row in picture.rows for pixel in row})
    numbers = {colour: number for number, colour in enumerate(colours)}
    known = "".join(f"#{number};2;{_shares(colour)}" for colour, number in numbers.items())
    bands = (picture.rows[top : top + _BAND] for top in range(0, picture.height, _BAND))
    body = "-".join("$".join(_band(band, numbers)) for band in bands)
    return f'\x1bP0;1q"1;1;{picture.width};{picture.height}{known}{body}\x1b\\\n'


def _shares(colour: Colour) -> str:
    return ";".join(str(round(_PER_CENT * value / 255)) for value in colour)


def _band(band: list[list[Colour]], numbers: dict[Colour, int]) -> Iterator[str]:
    """Each colour's sixels of a band."""
    for colour in sorted({pixel for row in band for pixel in row}):
        sixels = (
            sum((pixel == colour) << bit for bit, pixel in enumerate(column)) for column in zip(*band, strict=True)
        )
        runs = ((value, len(list(same))) for value, same in groupby(sixels))
        yield f"#{numbers[colour]}" + "".join(_run(chr(_FIRST + value), count) for value, count in runs)


def _run(character: str, count: int) -> str:
    return f"!{count}{character}" if count > _RUN else character * count
