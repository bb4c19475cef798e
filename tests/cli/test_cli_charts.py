"""Charts in a terminal, of made figures: what is longest, what is marked, where a point stands."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from app.cli.drawing import charts
from app.cli.progress import FastestTrials
from tilewise import Ceiling, GridCell, Problem, Roofline, RooflinePoint, TimeGrid

_PROBLEM = Problem(64, 64, 64)


def text(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(shown, soft_wrap=True)
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO


def test_bars_are_as_long_as_their_times() -> None:
    lines = text(charts.bars({"naive": 4.0, "tiled": 2.0, "wmma": 0.001})).splitlines()
    assert [line.count("█") for line in lines] == [charts.BAR, charts.BAR // 2, 1]
    assert "2000.00x" in lines[1]
    assert lines[2].rstrip().endswith("0.001 ms  1.00x")


def test_a_grid_marks_the_fastest_and_says_why_cells_are_empty() -> None:
    cells = (
        GridCell(8, 1, "measured", 0.5),
        GridCell(16, 1, "measured", 0.25),
        GridCell(8, 2, "rejected"),
        GridCell(16, 2, "illegal"),
    )
    chart = TimeGrid("opencl:0", _PROBLEM, "naive", "BN", "BM", (8, 16), (1, 2), cells, {})
    rows = [line.split() for line in text(charts.grid(chart)).splitlines() if line.strip()]
    assert rows[0] == ["BM", "\\", "BN", "8", "16"]
    assert rows[2:] == [["1", "0.5", "*0.25"], ["2", "x", "-"]]


def point(kernel: str, intensity: float, gflops: float) -> RooflinePoint:
    return RooflinePoint(_PROBLEM, kernel, {}, "search", 1.0, gflops, intensity, None, "memory", 0.1)


def test_a_roofline_has_points_below_its_ceilings() -> None:
    ceilings = (
        Ceiling("memory", "memory", 1e10, "measured", "copied"),
        Ceiling("fma", "compute", 1e11, "declared", "told"),
    )
    chart = Roofline(
        "cuda:0", "float32", "strict", ceilings, 10.0, (point("naive", 40.0, 1.0), point("vendor", 40.0, 99.0))
    )
    lines = text(charts.roofline(chart)).splitlines()
    plot = [line for line in lines if line.startswith("  │")]
    naive, vendor = (next(row for row, line in enumerate(plot) if sign in line) for sign in "N◆")
    assert vendor < naive, "the faster one stands higher"
    assert plot[naive].index("N") == plot[vendor].index("◆")
    flat = next(row for row, line in enumerate(plot) if "─" in line)
    assert flat <= vendor
    assert "memory: 10 GB/s, measured (copied)" in text(charts.roofline(chart))
    assert "fma: 100 GFLOP/s, declared (told)" in text(charts.roofline(chart))


def trial(kernel: str, time: float | None, m: int = 64, **more: Any) -> dict[str, Any]:
    return {"problem": {"m": m}, "kernel": kernel, "median_ms": time, "round": "search", **more}


def test_a_watched_job_keeps_the_fastest_of_each_kernel_of_the_shape_at_hand() -> None:
    seen = FastestTrials()
    for one in (trial("tiled", 2.0), trial("tiled", 3.0), trial("naive", 5.0), trial("naive", None)):
        seen.take(one)
    assert seen.times == {"tiled": 2.0, "naive": 5.0}
    seen.take(trial("tiled", 1.0, m=32, conditions={"sm_mhz": 1980.0, "throttled": ["power"]}))
    assert seen.times == {"tiled": 1.0}
    assert [text(one).strip() for one in seen.drawn()][1] == "1980 MHz, power"
