"""Pictures in a terminal: asked for before they are sent, and decoded again they are what was drawn."""

from __future__ import annotations

import io
import re
import struct
import termios
import zlib
from base64 import b64decode

import pytest

from app.cli.drawing import chart_pictures
from app.cli.drawing.pictures import Canvas, Colour, encoded, kitty, sixel
from app.cli.drawing.terminal import QUERY, picture_protocol
from tests.support.cli.answering_terminal import KITTY, SILENT, XTERM, XTERM_WITH_SIXEL, answering
from tilewise import Ceiling, GridCell, Problem, Roofline, RooflinePoint, TimeGrid

TERM = {"TERM": "xterm-256color"}
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.mark.parametrize(
    ("answer", "protocol"), [(KITTY, "kitty"), (XTERM_WITH_SIXEL, "sixel"), (XTERM, None), (SILENT, None)]
)
def test_a_terminal_is_asked_and_believed(answer: bytes, protocol: str | None) -> None:
    with answering(answer) as terminal:
        before = termios.tcgetattr(terminal.stdin.fileno())
        assert picture_protocol(terminal.stdin, terminal.stdout, TERM, patience=0.2 if not answer else 30) == protocol
        assert termios.tcgetattr(terminal.stdin.fileno()) == before, "the terminal's mode was left changed"
    assert bytes(terminal.shown) == QUERY


def test_nobody_is_asked_where_there_is_no_terminal_or_one_that_would_print_the_question() -> None:
    with answering(KITTY) as terminal:
        assert picture_protocol(terminal.stdin, terminal.stdout, {"TERM": "dumb"}) is None
        assert picture_protocol(terminal.stdin, io.StringIO(), TERM) is None
        assert picture_protocol(io.StringIO(), terminal.stdout, TERM) is None
        assert picture_protocol(terminal.stdin, terminal.stdout, {**TERM, "KITTY_WINDOW_ID": "1"}) == "kitty"
    assert bytes(terminal.shown) == b""


def from_sixel(text: str) -> list[list[Colour]]:
    """The pixels of a sixel picture, by the manual of the VT340."""
    found = re.fullmatch(r'\x1bP0;1q"1;1;(\d+);(\d+)(.*)\x1b\\\n', text)
    assert found is not None
    width, height, body = int(found[1]), int(found[2]), found[3]
    rows = [[(-1, -1, -1)] * width for _ in range(height)]
    palette: dict[int, Colour] = {}
    colour, x, top = 0, 0, 0
    for sign in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+[?-~]|[?-~]|[$-]", body):
        if sign.startswith("#") and ";" in sign:
            number, _, *shares = map(int, sign[1:].split(";"))
            palette[number] = tuple(round(share * 255 / 100) for share in shares)  # type: ignore[assignment]  # three
        elif sign.startswith("#"):
            colour = int(sign[1:])
        elif sign == "$":
            x = 0
        elif sign == "-":
            x, top = 0, top + 6
        else:
            count, bits = (int(sign[1:-1]) if sign[0] == "!" else 1), ord(sign[-1]) - 63
            for column in range(x, x + count):
                for bit in range(6):
                    if bits >> bit & 1:
                        rows[top + bit][column] = palette[colour]
            x += count
    return rows


def from_kitty(text: str) -> list[list[Colour]]:
    """The pixels of a PNG in Kitty's escape codes."""
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", text)
    assert pieces[0][0].startswith("a=T,f=100,q=2,m=")
    assert [controls[-1] for controls, _ in pieces] == ["1"] * (len(pieces) - 1) + ["0"]
    assert max(len(piece) for _, piece in pieces) <= 4096
    data = b64decode("".join(piece for _, piece in pieces))
    width, height = struct.unpack(">2I", data[16:24])
    start = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[start - 8 : start - 4])
    raw = zlib.decompress(data[start : start + length])
    step = 3 * width + 1
    lines = [raw[row * step + 1 : (row + 1) * step] for row in range(height)]
    return [[(line[at], line[at + 1], line[at + 2]) for at in range(0, 3 * width, 3)] for line in lines]


def drawn() -> Canvas:
    picture = Canvas(40, 17, (0, 0, 0))
    picture.box(3, 2, 10, 9, RED)
    picture.box(30, 10, 100, 100, GREEN)
    picture.box(-50, -3, 20, 9, GREEN)
    picture.box(45, 3, 5, 5, GREEN)
    picture.line((0, 16), (39, 0), BLUE)
    return picture


def test_both_encodings_are_the_pixels_that_were_drawn() -> None:
    picture = drawn()
    assert [len(row) for row in picture.rows] == [40] * 17, "what is outside has changed a row's length"
    assert from_sixel(sixel(picture)) == picture.rows
    assert from_kitty(kitty(picture)) == picture.rows
    assert encoded(picture, "sixel") == sixel(picture)
    assert encoded(picture, "kitty") == kitty(picture)


def test_the_ladder_is_as_long_as_its_times_and_the_fastest_is_green() -> None:
    picture = chart_pictures.ladder({"naive": 4.0, "tiled": 1.0})
    rows = [row for row in picture.rows if len(set(row)) > 1]
    first, last = rows[0], rows[-1]
    assert first.count((110, 118, 129)) == 4 * last.count((46, 160, 67)) > 0


def test_cells_go_from_green_to_red() -> None:
    measured = GridCell(8, 1, "measured", 0.25), GridCell(16, 1, "measured", 1.0)
    cells = (*measured, GridCell(8, 2, "rejected"), GridCell(16, 2, "illegal"))
    picture = chart_pictures.landscape(
        TimeGrid("cuda:0", Problem(64, 64, 64), "naive", "BN", "BM", (8, 16), (1, 2), cells, {})
    )
    assert [picture.rows[10][10], picture.rows[10][60]] == [
        chart_pictures.cell_colour(1.0),
        chart_pictures.cell_colour(4.0),
    ]
    assert picture.rows[40][10] == picture.rows[40][60]
    assert chart_pictures.cell_colour(2.0)[0] > chart_pictures.cell_colour(1.0)[0]


def test_points_of_a_roofline_lie_below_its_ceilings_in_a_colour_a_kernel() -> None:
    ceilings = (Ceiling("m", "memory", 1e10, "measured", ""), Ceiling("fma", "compute", 1e11, "declared", ""))
    names = ("naive", "vendor")
    points = tuple(
        RooflinePoint(Problem(64, 64, 64), name, {}, "search", 1.0, gflops, 40.0, None, "compute", 0.1)
        for name, gflops in zip(names, (1.0, 90.0), strict=True)
    )
    picture = chart_pictures.roofline(Roofline("cuda:0", "float32", "strict", ceilings, 10.0, points))
    colours = chart_pictures.kernel_colours(names)
    tops = {name: next(y for y, row in enumerate(picture.rows) if colours[name] in row) for name in names}
    ceiling = next(y for y, row in enumerate(picture.rows) if row.count((232, 232, 236)) > 100)
    assert ceiling <= tops["vendor"] < tops["naive"]
