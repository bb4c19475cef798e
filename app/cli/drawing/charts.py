"""Charts in a terminal: bars, a grid of coloured cells, a roofline in text; without colours where it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from tilewise import Best, Ceiling, GridCell, Roofline, RooflinePoint, TimeGrid

BAR: Final = 30  # characters of the longest bar
_WIDTH, _HEIGHT = 60, 14  # characters of a roofline
# From fast to slow, told apart by lightness too: for those who see no colours, and where there are few.
_RAMP: Final = ((1.1, "black on green3"), (1.5, "black on dark_sea_green"), (2.5, "black on gold3"))
_SLOW: Final = "white on dark_red"
_SIGNS: Final = {"rejected": "x", "untried": ".", "illegal": "-"}
_UNITS: Final = {"memory": (1e9, "GB/s"), "compute": (1e9, "GFLOP/s")}


def bars(times: Mapping[str, float]) -> Table:
    """Each name's time as a bar, the slowest the longest."""
    table = Table(box=None, show_header=False, pad_edge=False)
    longest, best = max(times.values()), min(times.values())
    for name, time in times.items():
        length = max(1, round(BAR * time / longest))
        style = "green" if time == best else "bright_black"
        table.add_row(name, Text("█" * length, style=style), f"{time:.4g} ms", f"{time / best:.2f}x")
    return table


def ladder_times(best: Best) -> dict[str, float]:
    """The times of a best and of what was measured beside it, in the order of the ladder."""
    found = {}
    entries = best.baselines or {}
    for name in ("naive", "tiled", "default"):
        entry = entries.get(name)
        if entry is not None and entry.timing is not None and name != best.kernel:
            found["untuned" if name == "default" else name] = entry.timing.median_ms
    if best.timing is not None:
        found[f"{best.kernel} *"] = best.timing.median_ms
    vendor = entries.get("vendor")
    if vendor is not None and vendor.timing is not None:
        found["vendor"] = vendor.timing.median_ms
    return found


def grid(chart: TimeGrid) -> Table:
    """The best time of each cell in milliseconds, coloured by how many times the fastest it is."""
    times = [cell.median_ms for cell in chart.cells if cell.median_ms]
    fastest = min(times, default=0.0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(f"{chart.y} \\ {chart.x}", justify="right", no_wrap=True)
    for value in chart.x_values:
        table.add_column(str(value), justify="right", no_wrap=True)
    width = len(chart.x_values)
    for number, value in enumerate(chart.y_values):
        row = chart.cells[number * width : (number + 1) * width]
        table.add_row(str(value), *(_cell(cell, fastest) for cell in row))
    return table


def grid_note() -> str:
    """What the marks of a grid mean."""
    return "* fastest, x rejected, . not tried, - not allowed; milliseconds, of each cell's fastest config."


def _cell(cell: GridCell, fastest: float) -> Text:
    if cell.median_ms is None:
        return Text(_SIGNS.get(cell.state, "?"), style="bright_black")
    ratio = cell.median_ms / fastest
    style = next((colour for most, colour in _RAMP if ratio <= most), _SLOW)
    mark = "*" if cell.median_ms == fastest else ""
    return Text(f"{mark}{cell.median_ms:.3g}", style=style)


def roofline(chart: Roofline) -> Text:
    """Ceilings and points, both axes logarithmic, with each ceiling's figure and source below."""
    memory = next(one for one in chart.ceilings if one.kind == "memory").value
    peak = max(one.value for one in chart.ceilings if one.kind == "compute")
    left, right = _span([*(point.intensity for point in chart.points), chart.ridge])
    rates = [min(peak, memory * left), peak, *(1e9 * point.gflops for point in chart.points)]
    bottom, top = log10(min(rates)) - 0.1, log10(max(rates)) + 0.1
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def place(intensity: float, rate: float) -> tuple[int, int]:
        across = round((log10(intensity) - left_log) / (right_log - left_log) * (_WIDTH - 1))
        up = round((log10(rate) - bottom) / (top - bottom) * (_HEIGHT - 1))
        return min(_WIDTH - 1, max(0, across)), min(_HEIGHT - 1, max(0, up))

    left_log, right_log = log10(left), log10(right)
    for column in range(_WIDTH):
        intensity = 10 ** (left_log + (right_log - left_log) * column / (_WIDTH - 1))
        across, up = place(intensity, min(peak, memory * intensity))
        rows[up][across] = "─" if memory * intensity > peak else "/"
    for point in chart.points:
        across, up = place(point.intensity, 1e9 * point.gflops)
        rows[up][across] = _sign(point)
    lines = [f"  │{''.join(row).rstrip()}" for row in reversed(rows)]
    axis = f"  └{'─' * _WIDTH}\n   {left:.2g} flop/byte{f'{right:.3g}':>{_WIDTH - len(f'{left:.2g} flop/byte')}}"
    scale = f"  {10**top / 1e9:.3g} GFLOP/s at the top, {10**bottom / 1e9:.3g} at the bottom; both axes logarithmic"
    return Text("\n".join([*lines, axis, scale, *map(ceiling_text, chart.ceilings)]))


def ceiling_text(one: Ceiling) -> str:
    """A ceiling's figure, and whether it was measured."""
    size, unit = _UNITS[one.kind]
    return f"  {one.name}: {one.value / size:.4g} {unit}, {one.source} ({one.basis})"


def points_note(points: Sequence[RooflinePoint]) -> str:
    """Which letters stand for which kernels."""
    names = dict.fromkeys(point.kernel for point in points)
    return "  " + ", ".join(f"{_letter(name)} {name}" for name in names)


def _sign(point: RooflinePoint) -> str:
    return _letter(point.kernel)


def _letter(kernel: str) -> str:
    """A kernel's letter; the vendor's is a sign, since V would be a kernel's."""
    return "◆" if kernel == "vendor" else kernel[0].upper()


def _span(intensities: Sequence[float]) -> tuple[float, float]:
    """From half the least to twice the largest."""
    return min(intensities) / 2, max(intensities) * 2
