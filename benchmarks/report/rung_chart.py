"""The picture of the ladder: each kernel's speed on its largest measured shape, with the vendor's library at 100 %."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.kernels.peers.rows import Figure, Row, read_row
from benchmarks.kernels.peers.shapes import CANDIDATE, NAIVE, TILED, TRITON, TUNED, VENDOR, named
from benchmarks.report.drawn_table import shape_of
from kernels import CATALOGUE

WIDTH, LEFT, RIGHT, LINE, TOP = 860, 310, 110, 22, 64
OURS, PEER, INK, FAINT = "#3f6fb5", "#d9822b", "#1f2328", "#8b949e"
STEP = 50  # per cent between the lines of the scale
PEERS: Final = (VENDOR, CANDIDATE, TRITON)


@dataclass(frozen=True, slots=True)
class Bar:
    """A kernel on a shape: its TFLOP/s, and its speed and the fastest peer's over that of the vendor's default."""

    kernel: str
    shape: str
    tflops: float
    share: float
    peer: float


def bars(rows: Sequence[Row], others: Sequence[Row] = ()) -> list[Bar]:
    """One bar for each kernel, dtype and precision: of the shapes that it was chosen for, that of most operations.

    naive and tiled are chosen for none, and shown beside the kernel that was for the largest strict float32. Kernels
    that are chosen for none of the rows are shown by the others.
    """
    found = _largest(rows)
    kernels = {kernel for kernel, *_ in found}
    found |= {key: bar for key, bar in _largest(others).items() if key[0] not in kernels}
    order = list(CATALOGUE)
    return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), list(found).index(key)))]


def _largest(rows: Sequence[Row]) -> dict[tuple[str, str, str], Bar]:
    found: dict[tuple[str, str, str], Bar] = {}
    for row in sorted(rows, key=lambda row: row.problem.flops):
        for figure in _shown(row):
            found[figure.kernel, row.problem.dtype, row.problem.precision] = _bar(row, figure)
    return found


def _shown(row: Row) -> Iterator[Figure]:
    plain = row.problem.dtype == "float32" and row.problem.precision == "strict"
    for name in (TUNED, TILED, NAIVE) if plain else (TUNED,):
        figure = row.of(name)
        if figure is not None:
            yield figure


def _bar(row: Row, figure: Figure) -> Bar:
    own, vendor = _ms(figure), _ms(row.of(VENDOR))
    fastest = min(_ms(peer) for name in PEERS if (peer := row.of(name)))
    return Bar(figure.kernel, named(row.problem), row.problem.flops / own / 1e9, vendor / own, vendor / fastest)


def _ms(figure: Figure | None) -> float:
    if figure is None or figure.median_ms is None:
        raise ValueError("a shape of the chart was not measured")
    return figure.median_ms


def chart(reports: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]] = ()) -> str:
    """The whole SVG: of the shapes of the reports, and of drawn shapes for kernels that these chose for none."""
    rows = [read_row(line) for report in reports for line in report["shapes"]]
    shown = bars(rows, [shape_of(line).row for report in drawn for line in report["shapes"]])
    most = STEP * -(-round(100 * max(max(bar.share, bar.peer) for bar in shown)) // STEP)
    height = TOP + LINE * len(shown) + 34
    scale = (WIDTH - LEFT - RIGHT) / most
    parts = [*_head(reports[0], height), *_scale(most, scale, height)]
    for number, bar in enumerate(shown):
        parts += _line(bar, TOP + LINE * number, 100 * scale)
    return "\n".join([*parts, "</svg>", ""])


def _head(report: Mapping[str, Any], height: int) -> list[str]:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    title = f"Speed of each kernel on {report['device']}, {report['vendor']}'s default = 100 %"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 22, title, INK, size=15),
        _text(16, 42, "m x n x k; TFLOP/s at the right; the diamond is the fastest of all peers", FAINT),
    ]


def _scale(most: int, scale: float, height: int) -> Iterator[str]:
    for percent in range(0, most + 1, STEP):
        x = LEFT + percent * scale
        strong = percent == 100
        width, colour = (2, PEER) if strong else (1, "#e3e6ea")
        yield (
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 28}" stroke="{colour}"'
            f' stroke-width="{width}"/>'
        )
        yield _text(x, height - 12, f"{percent} %", PEER if strong else FAINT, anchor="middle")


def _line(bar: Bar, y: int, whole: float) -> Iterator[str]:
    middle, end = y + LINE / 2 + 4, LEFT + bar.share * whole
    yield _text(16, middle, bar.kernel, INK)
    yield _text(LEFT - 10, middle, bar.shape, FAINT, anchor="end")
    yield f'<rect x="{LEFT}" y="{y + 4}" width="{bar.share * whole:.1f}" height="{LINE - 8}" rx="2" fill="{OURS}"/>'
    x, centre = LEFT + bar.peer * whole, y + LINE / 2
    yield (
        f'<path d="M{x:.1f} {centre - 5}l4 5-4 5-4-5z" fill="{PEER}" stroke="#ffffff" stroke-width="0.8">'
        f"<title>{escape(bar.shape)}: the fastest peer, {bar.peer:.0%}</title></path>"
    )
    speed = f"{bar.tflops:.3g}" if bar.tflops < 1000 else f"{bar.tflops:.0f}"
    yield _text(max(end, x) + 10, middle, f"{speed} ({bar.share:.0%})", INK)


def _text(x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
    )
