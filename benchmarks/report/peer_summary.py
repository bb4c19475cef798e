"""README's summary of what peers.py measured: six groups of classes, each with its ratios to both kinds of peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.kernels.peers.rows import Row, geomean, read_row
from benchmarks.kernels.peers.shapes import CLASSES, TUNED, VENDOR, named
from benchmarks.report.peer_table import markdown

# Every class is in one group.
GROUPS: Final = {
    "float32, square": ("small square", "square"),
    "float32, long and thin": ("skinny", "tall", "tall, longer k", "deep"),
    "float32, ragged, batched, transposed, layers": ("ragged", "batched cubes", "transposed", "mlp"),
    "float64": ("float64 square", "float64 other"),
    "float16, bfloat16 and TF32": tuple(one.name for one in CLASSES if one.name.startswith(("bf16", "fp16", "tf32"))),
    "float32 emulated on tensor cores": ("emulated square",),
}
HEAD: Final = ("what", "shapes", "to cuBLAS's default", "to the fastest peer", "slower than that on", "lowest ratio")


@dataclass(frozen=True, slots=True)
class Ratios:
    """A shape's name, and the times of cuBLAS's default and of the fastest peer over ours.

    It is lost where the whole 95 % interval of the latter is below 1.
    """

    shape: str
    to_default: float
    to_fastest: float
    is_lost: bool


def summary(reports: Sequence[Mapping[str, Any]]) -> str:
    """The table, one row a group: geometric means, on how many shapes we lose, and on which one the most."""
    rows = [read_row(line) for report in reports for line in report["shapes"]]
    return "\n".join(markdown(HEAD, [_cells(name, rows) for name in GROUPS]))


def _cells(group: str, rows: Sequence[Row]) -> list[str]:
    ratios = [_ratios(row) for row in rows if row.shape_class in GROUPS[group]]
    lost = sum(one.is_lost for one in ratios)
    least = min(ratios, key=lambda one: one.to_fastest)
    return [
        group,
        str(len(ratios)),
        f"{geomean([one.to_default for one in ratios]):.2f}",
        f"{geomean([one.to_fastest for one in ratios]):.2f}",
        str(lost),
        f"{least.to_fastest:.2f} ({least.shape})",
    ]


def _ratios(row: Row) -> Ratios:
    ours, theirs = row.of(TUNED), row.of(VENDOR)
    if not (ours and theirs and ours.median_ms and theirs.median_ms and row.to_fastest):
        return Ratios(named(row.problem), 0.0, 0.0, is_lost=True)
    fastest = row.to_fastest
    return Ratios(named(row.problem), theirs.median_ms / ours.median_ms, fastest.ratio, is_lost=fastest.high < 1)
