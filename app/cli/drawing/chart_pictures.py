"""The pictures of tilewise show: a shape's ladder, its best times over two parameters, its roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Final

from app.cli.drawing.pictures import Canvas, Colour
from tilewise import Roofline, TimeGrid

_WIDTH, _HEIGHT = 560, 280
_BAR, _GAP = 18, 8
_CELL: Final = (44, 26)
_AXIS: Final[Colour] = (138, 143, 152)
_CEILING: Final[Colour] = (232, 232, 236)
_FASTEST: Final[Colour] = (46, 160, 67)
_SLOWEST: Final[Colour] = (150, 38, 38)
_OTHER: Final[Colour] = (110, 118, 129)
_EMPTY: Final[Colour] = (48, 52, 60)
_SLOW: Final = 4.0  # times the fastest from which a cell is as red as any
# Told apart by those who see no red or green, too (Okabe and Ito).
COLOURS: Final[Sequence[Colour]] = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)


def ladder(times: Mapping[str, float]) -> Canvas:
    """A bar a name, as long as its time; the fastest is green."""
    picture = Canvas(_WIDTH, len(times) * (_BAR + _GAP) + _GAP)
    longest, best = max(times.values()), min(times.values())
    for number, time in enumerate(times.values()):
        length = max(2, round((_WIDTH - 2 * _GAP) * time / longest))
        picture.box(_GAP, _GAP + number * (_BAR + _GAP), length, _BAR, _FASTEST if time == best else _OTHER)
    return picture


def landscape(chart: TimeGrid) -> Canvas:
    """A cell for each pair of values, from green to red by how many times the fastest it is."""
    width, height = _CELL
    picture = Canvas(len(chart.x_values) * width + 1, len(chart.y_values) * height + 1)
    fastest = min((cell.median_ms for cell in chart.cells if cell.median_ms), default=0.0)
    for number, cell in enumerate(chart.cells):
        row, column = divmod(number, len(chart.x_values))
        colour = _EMPTY if cell.median_ms is None else cell_colour(cell.median_ms / fastest)
        picture.box(column * width + 1, row * height + 1, width - 1, height - 1, colour)
    return picture


def cell_colour(ratio: float) -> Colour:
    """Between the colours of the fastest and of what takes some times as long, by the logarithm."""
    part = min(1.0, max(0.0, log10(ratio) / log10(_SLOW)))
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(_FASTEST, _SLOWEST, strict=True))
    return red, green, blue


def roofline(chart: Roofline) -> Canvas:
    """The ceilings and a mark a point, both axes logarithmic; a colour a kernel."""
    picture = Canvas(_WIDTH, _HEIGHT)
    memory = next(one.value for one in chart.ceilings if one.kind == "memory")
    peak = max(one.value for one in chart.ceilings if one.kind == "compute")
    across = _LogScale([*(point.intensity for point in chart.points), chart.ridge], _WIDTH)
    upward = _LogScale([peak, *(1e9 * point.gflops for point in chart.points)], _HEIGHT)

    def place(intensity: float, rate: float) -> tuple[int, int]:
        return across(intensity), _HEIGHT - 1 - upward(rate)

    picture.line((0, 0), (0, _HEIGHT - 1), _AXIS)
    picture.line((0, _HEIGHT - 2), (_WIDTH - 1, _HEIGHT - 2), _AXIS)
    ridge = peak / memory
    picture.line(place(ridge / 1e3, peak / 1e3), place(ridge, peak), _CEILING)
    picture.line(place(ridge, peak), (_WIDTH - 1, place(ridge, peak)[1]), _CEILING)
    colours = kernel_colours(point.kernel for point in chart.points)
    for point in chart.points:
        x, y = place(point.intensity, 1e9 * point.gflops)
        picture.box(x - 3, y - 3, 7, 7, colours[point.kernel])
    return picture


def kernel_colours(kernels: Iterable[str]) -> dict[str, Colour]:
    """A colour for each kernel, in order; with many kernels they come again."""
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(dict.fromkeys(kernels))}


class _LogScale:
    """Where a value stands on a logarithmic axis of so many pixels, from half the least to twice the largest."""

    def __init__(self, values: Sequence[float], pixels: int) -> None:
        self._low, high = log10(min(values) / 2), log10(max(values) * 2)
        self._step = (pixels - 1) / (high - self._low)

    def __call__(self, value: float) -> int:
        return round((log10(value) - self._low) * self._step)
