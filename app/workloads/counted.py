"""CountedProblem, a product and how often it is run; Workload, those of one file; ProductCounter, which counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any, Final

from app.errors import InvalidWorkload
from kernels.problem import LARGEST, Problem, parse_dtype

MOST_PROBLEMS: Final = 4096  # of one workload: more are no program's
_MOST_SKIPPED: Final = 100
_MOST_NAMES: Final = 64  # incumbents of one problem that are told apart
_LONGEST_NAME: Final = 200  # characters: names of templates may have thousands
_Z95: Final = 1.96
OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class CountedProblem:
    """A product and how often it is run; what ran it and its time, where the file tells of them.

    `total_ms` is the time of all calls, `ci95_ms` the interval of one call's mean, of two calls at least that were
    timed. `incumbent` is what took most of it.
    """

    problem: Problem
    count: int
    incumbent: str | None = None
    total_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry as it is stored."""
        interval = None if self.ci95_ms is None else list(self.ci95_ms)
        times = {"incumbent": self.incumbent, "total_ms": self.total_ms, "ci95_ms": interval}
        return {"problem": self.problem.key, "count": self.count, **times}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> CountedProblem:
        """Read a stored entry."""
        interval = entry["ci95_ms"]
        return cls(
            Problem.of_key(entry["problem"]),
            entry["count"],
            entry["incumbent"],
            entry["total_ms"],
            None if interval is None else (interval[0], interval[1]),
        )


@dataclass(frozen=True, slots=True)
class SkippedProducts:
    """Products of a file that are no problem here: what they are, why, and how many."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The products of one file: `problems` by their time, the longest first, else by their operations."""

    source: str
    problems: tuple[CountedProblem, ...]
    skipped: tuple[SkippedProducts, ...] = ()


@dataclass(slots=True)
class _Sums:
    count: int = 0
    timed: int = 0
    total: float = 0.0
    squares: float = 0.0
    names: dict[str, float] = field(default_factory=dict)

    def add(self, count: int, timed: int, total: float, squares: float) -> None:
        self.count += count
        self.timed += timed
        self.total += total
        self.squares += squares

    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean of the calls that were timed."""
        if self.timed < 2:  # noqa: PLR2004 - one call says nothing of the next
            return None
        mean = self.total / self.timed
        variance = max(0.0, self.squares - self.timed * mean * mean) / (self.timed - 1)
        half = _Z95 * sqrt(variance / self.timed)
        return max(0.0, mean - half), mean + half


class ProductCounter:
    """Counts the products of a file; raises InvalidWorkload for more problems than a workload has."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: dict[Problem, _Sums] = {}
        self._skipped: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, problem: Problem, count: int = 1, ms: float | None = None, incumbent: str | None = None) -> None:
        """Count calls of a problem; `ms` is the time of one of them."""
        timed = ms is not None and isfinite(ms) and ms > 0
        total = count * ms if timed and ms is not None else 0.0
        self.add_calls(problem, count, count if timed else 0, total, total * total / count, {incumbent: total})

    def add_calls(
        self, problem: Problem, count: int, timed: int, total: float, squares: float, names: Mapping[str | None, float]
    ) -> None:
        """Count calls of a problem, some of them timed: the sum of their milliseconds, of its squares, and by name."""
        sums = self._found.get(problem)
        if sums is None:
            if len(self._found) >= MOST_PROBLEMS:
                raise InvalidWorkload(f"the file has more than {MOST_PROBLEMS} different products", limit=MOST_PROBLEMS)
            sums = self._found[problem] = _Sums()
        sums.add(count, timed, total, squares)
        for name, ms in names.items():
            if name is not None and (name in sums.names or len(sums.names) < _MOST_NAMES):
                sums.names[name] = sums.names.get(name, 0.0) + ms

    def keep_fastest(self, problem: Problem, ms: float | None, incumbent: str) -> None:
        """Count a problem once, however many ways of it are listed: the fastest of them is its incumbent."""
        known = self._found.get(problem)
        if known is None or (ms is not None and (not known.timed or ms < known.total)):
            self._found.pop(problem, None)
            self.add(problem, 1, ms, incumbent)

    def skip(self, what: str, reason: str, count: int = 1) -> None:
        """Count products that are no problem here."""
        place = shortened(what), reason
        if place not in self._skipped and len(self._skipped) >= _MOST_SKIPPED:
            place = OTHERS, "too many kinds of products are no problem here to list all"
        self._skipped[place] = self._skipped.get(place, 0) + count

    def workload(self) -> Workload:
        """What was counted; raises InvalidWorkload if nothing was."""
        if not self._found and not self._skipped:
            raise InvalidWorkload(f"the file has no products, read as {self.source}", source=self.source)
        counted = [_counted(problem, sums) for problem, sums in self._found.items()]
        counted.sort(key=lambda one: (-(one.total_ms or 0.0), -one.count * one.problem.flops, one.problem))
        skipped = [SkippedProducts(*place, count) for place, count in self._skipped.items()]
        return Workload(self.source, tuple(counted), tuple(sorted(skipped, key=lambda one: -one.count)))


def _counted(problem: Problem, sums: _Sums) -> CountedProblem:
    name = max(sums.names, key=lambda each: sums.names[each], default=None)
    total = sums.total * sums.count / sums.timed if sums.timed else None  # those that were not timed take the mean
    return CountedProblem(problem, sums.count, name and shortened(name), total, sums.interval())


def shortened(name: str) -> str:
    """A name without what no list has room for, nor what no line of text may have."""
    kept = "".join(letter if letter.isprintable() else " " for letter in name[:_LONGEST_NAME])
    return kept if len(name) <= _LONGEST_NAME else f"{kept[:-3]}..."


def problem_of(
    sizes: tuple[int, int, int], batch: int, dtype: str, precision: str, trans_a: bool, trans_b: bool
) -> Problem:
    """A problem of a file; raises ValueError, with what is wrong with it in words."""
    for size in (*sizes, batch):
        if not 1 <= size <= LARGEST:
            raise ValueError(f"a size is at least 1 and at most {LARGEST}, got {size}")
    if precision == "tf32" and dtype != "float32":
        precision = "strict"
    return Problem(*sizes, batch, parse_dtype(dtype), precision, trans_a, trans_b)


def swapped(
    sizes: tuple[int, int, int], batch: int, dtype: str, precision: str, trans_a: bool, trans_b: bool
) -> Problem:
    """As problem_of, of a product in BLAS's column-major letters.

    Its C, m x n by columns, is n x m by rows: the row-major product has the operands, and m and n, the other way
    round. What is stored by columns and not transposed is, read by rows, not transposed in its new place.
    """
    m, n, k = sizes
    return problem_of((n, m, k), batch, dtype, precision, trans_b, trans_a)
