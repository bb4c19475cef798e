"""What peers.py writes of a shape: everybody's time, and our ratio to the faster rival with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import exp, log
from statistics import fmean, median
from typing import Any

from app.tuning.measure.statistics import autocorrelated_interval
from benchmarks.kernels.peers.contest import Contest, Result
from benchmarks.kernels.peers.shapes import CANDIDATE, CLASSES, LEAST, TRITON, TUNED, ShapeClass
from kernels.arithmetic import peak
from kernels.device import Device
from kernels.problem import Problem

# Bytes a second that a copy reaches, read and written, where that is less than the data sheet's.
COPIED = {"NVIDIA H200": 4.3e12}


@dataclass(frozen=True, slots=True)
class Figure:
    """A contestant's time on a shape in milliseconds and its error; or the reason why it has none."""

    name: str
    kernel: str
    config: Mapping[str, int]
    median_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    samples: int = 0
    relative_l2: float | None = None
    max_scaled: float | None = None
    tried: int = 1
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as ours another takes: the median over rounds, and its 95 % interval."""

    to: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One shape's results: `ratio` is to the faster of its class's rivals, `to_fastest` to the fastest of all peers.

    The latter takes the vendor's best candidate in, and Triton. `floor_ms` is what no launch takes less than.
    """

    shape_class: str
    problem: Problem
    policy: str
    floor_ms: float
    figures: tuple[Figure, ...]
    ratio: Ratio | None
    to_fastest: Ratio | None
    measured_at: str
    conditions: Mapping[str, Any] | None = None
    retaken: int = 0

    def of(self, name: str) -> Figure | None:
        """A contestant's figure; None where it has no time."""
        return next((one for one in self.figures if one.name == name and one.median_ms is not None), None)

    @property
    def floor_share(self) -> float | None:
        """The floor over our time: 1 is all that the device can do."""
        ours = self.of(TUNED)
        return self.floor_ms / ours.median_ms if ours and ours.median_ms else None

    def json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {"is": "shape", **asdict(self)}


def row_of(shape_class: ShapeClass, problem: Problem, contest: Contest, device: Device) -> Row:
    """A contest's figures and ratios."""
    return Row(
        shape_class.name,
        problem,
        contest.policy,
        1e3 * floor_seconds(problem, device),
        tuple(map(figure_of, contest.results)),
        ratio_to(contest.results, shape_class.rivals),
        ratio_to(contest.results, (*shape_class.rivals, CANDIDATE, TRITON)),
        datetime.now(UTC).isoformat(timespec="seconds"),
        asdict(contest.conditions) if contest.conditions else None,
        contest.retaken,
    )


def read_row(line: Mapping[str, Any]) -> Row:
    """A row of its JSON."""
    values = {name: value for name, value in line.items() if name != "is"}
    figures = tuple(Figure(**{**one, "ci95_ms": one["ci95_ms"] and tuple(one["ci95_ms"])}) for one in values["figures"])
    ratios = {name: values[name] and Ratio(**values[name]) for name in ("ratio", "to_fastest")}
    return Row(**{**values, **ratios, "problem": Problem(**values["problem"]), "figures": figures})


def figure_of(result: Result) -> Figure:
    """A result's median, interval and error."""
    if not result.seconds or result.accuracy is None:
        return Figure(result.name, result.kernel, dict(result.config), tried=result.tried, reason=result.reason)
    low, high = autocorrelated_interval(result.seconds)
    return Figure(
        result.name,
        result.kernel,
        dict(result.config),
        1e3 * median(result.seconds),
        (1e3 * low, 1e3 * high),
        len(result.seconds),
        result.accuracy.relative_l2,
        result.accuracy.max_scaled,
        result.tried,
    )


def ratio_to(results: Iterable[Result], rivals: Sequence[str]) -> Ratio | None:
    """The fastest rival's time over ours, round by round; None where either has no samples."""
    timed = {result.name: result for result in results if result.seconds}
    there = [timed[name] for name in rivals if name in timed]
    if TUNED not in timed or not there:
        return None
    rival = min(there, key=lambda one: median(one.seconds))
    ratios = [theirs / ours for theirs, ours in zip(rival.seconds, timed[TUNED].seconds, strict=False)]
    return Ratio(rival.name, median(ratios), *autocorrelated_interval(ratios))


def floor_seconds(problem: Problem, device: Device) -> float:
    """The larger of the bytes by the bandwidth that copies reach and the flops by the class's peak."""
    bandwidth = COPIED.get(device.name, device.limits.bandwidth)
    return max(problem.bytes / bandwidth, problem.flops / peak(problem, device))


@dataclass(frozen=True, slots=True)
class Summary:
    """One class's rows: how many, how many of them reach the bar, and the ratios' least and geometric mean.

    The last two are of the ratios to the fastest of all peers.
    """

    shape_class: ShapeClass
    shapes: int
    met: int
    least: float
    geomean: float
    floor_share: float
    least_to_fastest: float
    geomean_to_fastest: float


def meets(row: Row, bar: float) -> bool:
    """Whether the upper end of the ratio's interval reaches a bar."""
    return row.ratio is not None and row.ratio.high >= bar


def bar_of(row: Row) -> float:
    """The ratio that a row's class asks; the least of all where its class is no more."""
    return next((one.bar for one in CLASSES if one.name == row.shape_class), LEAST)


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """The classes that have rows, in their order; a row without a ratio counts as one of nothing."""
    found = []
    for shape_class in CLASSES:
        own = [row for row in rows if row.shape_class == shape_class.name]
        if own:
            ratios = [row.ratio.ratio if row.ratio else 0.0 for row in own]
            fastest = [row.to_fastest.ratio if row.to_fastest else 0.0 for row in own]
            shares = [row.floor_share or 0.0 for row in own]
            met = sum(meets(row, shape_class.bar) for row in own)
            own_bar = min(ratios), geomean(ratios), geomean(shares)
            found.append(Summary(shape_class, len(own), met, *own_bar, min(fastest), geomean(fastest)))
    return found


def geomean(values: Sequence[float]) -> float:
    """The geometric mean, 0 where one of them is."""
    return exp(fmean(map(log, values))) if all(values) else 0.0
