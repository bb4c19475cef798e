"""The tables of peers.py: for a terminal, and for the page of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kernels.peers.rows import Figure, Row, bar_of, meets, read_row, summaries
from benchmarks.kernels.peers.shapes import CANDIDATE, DEFAULT, NAIVE, TILED, TRITON, TUNED, VENDOR, named

ORDER = (TUNED, DEFAULT, TILED, NAIVE, VENDOR, CANDIDATE, TRITON)
ERRORS = ("error", f"{VENDOR}'s", f"{TRITON}'s")
HEAD = ("class", "shape", *ORDER, "TFLOP/s", "floor", "ratio", "95 %", *ERRORS, "to fastest", "to", "bar", "met")
NOTE = (
    "All were measured in turn in one run on cold caches; times are medians, errors relative L2 against float64."
    " **ratio** is a peer's time over ours: above 1 we are faster. It is to the faster of {peers}, which are what one"
    " gets without tuning them by hand; **to fastest** counts cuBLASLt's candidates too: *best candidate* is the"
    " fastest of up to 16 algorithms that its heuristics propose, each measured."
    " **bar** is the ratio that a class is to reach, and a shape reaches it where the upper end of its 95 % interval"
    " does; **least** and **geomean** are the class's worst ratio and its mean. **of the floor** is how near we come to"
    " the time that moving the bytes, or the arithmetic, takes at least. Rivals compute in the same precision; only"
    " float32 emulated on tensor cores is compared with cuBLAS's strict float32, where Triton makes three products of"
    " TF32."
)


def cells(row: Row) -> list[str]:
    """One shape's line: microseconds, TFLOP/s, the floor's share, the ratios, and relative L2 errors."""
    ours, ratio, bar = row.of(TUNED), row.ratio, bar_of(row)
    return [
        row.shape_class,
        named(row.problem),
        *(micros(row.of(name)) for name in ORDER),
        f"{row.problem.flops / ours.median_ms / 1e9:.3g}" if ours and ours.median_ms else "-",
        f"{row.floor_share:.0%}" if row.floor_share else "-",
        f"{ratio.ratio:.3f}" if ratio else "-",
        f"{ratio.low:.3f}-{ratio.high:.3f}" if ratio else "-",
        *(error(row.of(name)) for name in (TUNED, VENDOR, TRITON)),
        f"{row.to_fastest.ratio:.3f}" if row.to_fastest else "-",
        ratio.to if ratio else "-",
        f"{bar:g}",
        ("yes" if meets(row, bar) else "NO") if ratio else "-",
    ]


def micros(figure: Figure | None) -> str:
    """Microseconds to four significant digits at most."""
    if figure is None or figure.median_ms is None:
        return "-"
    value = 1e3 * figure.median_ms
    return f"{value:.4g}" if value < 10_000 else f"{value:.0f}"


def error(figure: Figure | None) -> str:
    """Relative L2 against float64."""
    return "-" if figure is None or figure.relative_l2 is None else f"{figure.relative_l2:.1e}"


def text(rows: Sequence[Row]) -> str:
    """All shapes and their classes for a terminal; times are microseconds."""
    lines = [list(HEAD), *(cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [" ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    reasons = dict.fromkeys(f"{one.name}: {one.reason}" for row in rows for one in row.figures if one.reason)
    classes = [
        f"{one.shape_class.name:16} {one.met} of {one.shapes} meet {one.shape_class.bar:g}; least {one.least:.3f},"
        f" geomean {one.geomean:.3f}, floor {one.floor_share:.0%}; goal {one.shape_class.goal}"
        for one in summaries(rows)
    ]
    return "\n".join([*shown, "", *classes, *(f"without {reason}" for reason in reasons)])


def legend(report: Mapping[str, Any]) -> str:
    """What the columns of a report's tables mean, and who the peers are."""
    peers = f"{report['vendor']}'s default" + (f" and Triton {report['triton']}, autotuned" if report["triton"] else "")
    return NOTE.format(peers=peers)


def section(report: Mapping[str, Any]) -> str:
    """The tables of a report that peers.py wrote: where and when, its classes, and, folded, its shapes."""
    rows = [read_row(line) for line in report["shapes"]]
    days = sorted({row.measured_at[:10] for row in rows})
    ratios = ("least", "geomean", "least to fastest", "geomean to fastest")
    of_classes = markdown(("class", "shapes", "bar", "reach it", *ratios, "of the floor"), classes_of(rows))
    last = 7 + len(ORDER) + len(ERRORS)
    head = ("shape", *ORDER, "TFLOP/s", "of the floor", "ratio", "95 %", *ERRORS, "to fastest")
    of_shapes = markdown(head, [line[1:last] for line in map(cells, rows)])
    where = f"{report['device']} ({report['environment']}), {' to '.join(dict.fromkeys((days[0], days[-1])))}."
    told = "Every shape, in microseconds: ours, tuned and not, and its peers"
    summary = f'<details markdown="1"><summary>{told}</summary>'
    return "\n".join([where, "", *of_classes, "", summary, "", *of_shapes, "", "</details>"])


def classes_of(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each class."""
    return [
        (
            one.shape_class.name,
            str(one.shapes),
            f"{one.shape_class.bar:g}",
            str(one.met),
            f"{one.least:.2f}",
            f"{one.geomean:.2f}",
            f"{one.least_to_fastest:.2f}",
            f"{one.geomean_to_fastest:.2f}",
            f"{one.floor_share:.0%}",
        )
        for one in summaries(rows)
    ]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table: names to the left, figures to the right."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(line)} |" for line in (head, ruler, *lines)]
