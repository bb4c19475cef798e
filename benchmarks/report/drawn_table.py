"""Put pieces of one seed together, and tell drawn shapes by their rows.

python benchmarks/kernels/drawn_table.py PIECE.jsonl ... [--out benchmarks/results/kernels/drawn-DEVICE-SEED.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.kernels.drawn.shapes import ROWS, DrawnRow
from benchmarks.kernels.peers.rows import Row, geomean, read_row
from benchmarks.kernels.peers.shapes import CANDIDATE, DEFAULT, TRITON, TUNED, VENDOR, named
from benchmarks.report.peer_table import markdown, micros
from benchmarks.tuner.cross import whole_lines

ENOUGH: Final = 0.98  # of the fastest peer's speed, that nearly all are to reach
LEAST: Final = 0.92  # that all are to reach
UNTUNED: Final = (1.03, 1.15, 1.4)  # of the tuned time: the median's bar, the 95th percentile's, the most
SAME: Final = ("seed", "model", "environment", "vendor", "triton", "digests", "seconds", "measuring")
HEAD: Final = ("what", "shapes", "bar", "geomean", "0.98 and above", "below 0.92 twice", "lowest", "lowest is")
OWN: Final = ("number", "layer", "exhaustive", "trials", "tuning_seconds", "untuned", "again")
NOTE: Final = (
    "Ratios are the fastest of all peers' time over ours, tuned for some seconds: cuBLAS's default, the fastest of"
    " its first 8 candidates (on every fourth shape of a row, which the last table marks, of all that its heuristics"
    " give, 128 at most), and Triton with up to 12 configs, persistent and split-K ones among them. A shape is at 0.98"
    " where the upper end of the ratio's 95 % interval is. What comes out below 0.92 is measured a second time."
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A drawn shape's figures; `untuned` is the default's time over the tuned one's, `again` the second ratio."""

    row: Row
    number: int
    layer: str | None
    is_exhaustive: bool
    untuned: float | None
    again: float | None

    @property
    def ratio(self) -> float:
        """The fastest peer's time over ours; 0 where we have none."""
        return self.row.to_fastest.ratio if self.row.to_fastest else 0.0

    @property
    def is_enough(self) -> bool:
        """Whether the ratio's interval reaches 0.98."""
        return self.row.to_fastest is not None and self.row.to_fastest.high >= ENOUGH

    @property
    def is_lost(self) -> bool:
        """Whether it is below 0.92 both times."""
        return self.ratio < LEAST and (self.again is None or self.again < LEAST)


def shape_of(line: Mapping[str, Any]) -> Shape:
    """A shape of its JSON."""
    row = read_row({name: value for name, value in line.items() if name not in OWN})
    ratios = [line[name]["ratio"] if line[name] else None for name in ("untuned", "again")]
    return Shape(row, line["number"], line["layer"], line["exhaustive"], *ratios)


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Pieces as one report, a shape's first measurement where several have it.

    Raises SystemExit where pieces are not of one seed, device, software and set of kernels.
    """
    heads, found = list[dict[str, Any]](), dict[tuple[str, int], dict[str, Any]]()
    for path in paths:
        head, *lines = whole_lines(path)
        heads.append(head)
        for line in lines:
            found.setdefault((line["shape_class"], line["number"]), line)
    for name in SAME:
        if any(head[name] != heads[0][name] for head in heads):
            raise SystemExit(f"the pieces differ in {name}")
    places = {row.name: place for place, row in enumerate(ROWS)}
    ordered = sorted(found.values(), key=lambda line: (places[line["shape_class"]], line["number"]))
    shapes = [{name: value for name, value in line.items() if name != "is"} for line in ordered]
    return {name: value for name, value in heads[0].items() if name != "is"} | {"shapes": shapes}


def rows_of(shapes: Sequence[Shape]) -> list[tuple[str, ...]]:
    """A line for each row that has shapes."""
    found = []
    for row in ROWS:
        own = [shape for shape in shapes if shape.row.shape_class == row.name]
        if own:
            found.append(_cells(row, own))
    return found


def _cells(row: DrawnRow, own: Sequence[Shape]) -> tuple[str, ...]:
    least = min(own, key=lambda shape: shape.ratio)
    enough = sum(shape.is_enough for shape in own)
    ratios = f"{row.bar:g}", f"{geomean([shape.ratio for shape in own]):.2f}"
    lost = str(sum(shape.is_lost for shape in own))
    return row.name, str(len(own)), *ratios, str(enough), lost, f"{least.ratio:.2f}", _named(least)


def untuned_text(shapes: Sequence[Shape]) -> str:
    """How much longer the default takes than what was tuned: the median, the 95th percentile, the most."""
    ratios = sorted(shape.untuned for shape in shapes if shape.untuned is not None)
    if not ratios:
        return "Nothing was measured untuned."
    high = ratios[ceil(0.95 * len(ratios)) - 1]
    bars = ", ".join(f"{bar:g}" for bar in UNTUNED)
    figures = f"{median(ratios):.2f} (median), {high:.2f} (95th percentile), {ratios[-1]:.2f} (most)"
    return f"Untuned, the same shapes take {figures} times as long as tuned; the bars are {bars}."


def section(report: Mapping[str, Any]) -> str:
    """A seed's table of rows, and, folded, its shapes."""
    shapes = [shape_of(line) for line in report["shapes"]]
    day = min(shape.row.measured_at for shape in shapes)[:10]
    facts = f"Seed {report['seed']}: {report['device']} ({report['environment']}; {report['vendor']}; Triton"
    head = ("shape", "of", TUNED, DEFAULT, VENDOR, CANDIDATE, TRITON, "ratio", "95 %", "again", "untuned", "config")
    table = markdown(head, [_line(shape) for shape in shapes])
    summary = '<details markdown="1"><summary>Every shape, in microseconds</summary>'
    tuned = f"tuned {report['seconds']:g} s a shape"
    parts = [
        f"{facts} {report['triton']}), {day}, {tuned}.",
        "",
        *markdown(HEAD, rows_of(shapes)),
        "",
        untuned_text(shapes),
    ]
    return "\n".join([*parts, "", summary, "", *table, "", "</details>"])


def _line(shape: Shape) -> tuple[str, ...]:
    row = shape.row
    names = (TUNED, DEFAULT, VENDOR, CANDIDATE, TRITON)
    times = [micros(row.of(name)) for name in names]
    times[3] += "*" if shape.is_exhaustive else ""
    own, fastest = row.of(TUNED), row.to_fastest
    config = f"{own.kernel} {' '.join(f'{name}={value}' for name, value in own.config.items())}" if own else "-"
    interval = f"{fastest.low:.3f}-{fastest.high:.3f}" if fastest else "-"
    others = [f"{value:.2f}" if value is not None else "-" for value in (shape.again, shape.untuned)]
    return _named(shape), shape.layer or row.shape_class, *times, f"{shape.ratio:.3f}", interval, *others, config


def _named(shape: Shape) -> str:
    return named(shape.row.problem)


def sections(reports: Sequence[Mapping[str, Any]]) -> str:
    """What the columns mean, and every seed's tables."""
    return "\n\n".join([NOTE, *map(section, reports)])


def main() -> None:
    """Show the pieces' tables, and write them as one JSON object where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = merged(options.pieces)
    print(section(report))
    if options.out:
        options.out.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
