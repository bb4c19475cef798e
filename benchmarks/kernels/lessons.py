"""The ladder of lessons on one device, each rung beside the one below on a shape that was named before.

    python -m benchmarks.kernels.lessons [--device cuda:0] [--seconds 50] [--out FILE]

SHAPES names each rung's shape and dtype. A few configs of every rung are verified against float64 and timed; the
fastest of each, the rung below on the same shape, and of the last rung of a dtype the vendor's library are then sampled
in turn. The file holds their medians, from which docs/learn is generated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

from app.devices.fleet import Unit, open_fleet
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.outcome import Measured
from app.tuning.runner import Contender
from app.worker.measuring import trial
from kernels.device import Device
from kernels.launch import Launch
from kernels.lessons import LESSONS, Lesson
from kernels.problem import Problem
from kernels.space import Config

RESULTS: Final = Path("benchmarks/results/kernels")
ROUNDS: Final = 9
# Each rung's shape and dtype, by platform. A rung and the one below are compared on the rung's own.
_SMALL, _MIDDLE = Problem(256, 256, 256), Problem(2048, 2048, 2048)
_LARGE, _DEEP = Problem(4096, 4096, 4096), Problem(64, 64, 131072)
_HALF, _HUGE = Problem(4096, 4096, 4096, dtype="float16"), Problem(8192, 8192, 8192, dtype="float16")
_CPU, _CPU_DEEP = Problem(512, 512, 512), Problem(64, 64, 16384)
SHAPES: Final[Mapping[str, Mapping[int, Problem]]] = {
    "cuda": {
        **dict.fromkeys((1, 2, 3, 4), _SMALL),
        5: _MIDDLE,
        **dict.fromkeys((6, 7, 8, 9, 11), _LARGE),
        10: _DEEP,
        **dict.fromkeys((12, 13), _HALF),
        14: _HUGE,
    },
    "opencl": {**dict.fromkeys(range(1, 10), _CPU), 10: _CPU_DEEP},
}
LAST: Final = (11, 14)  # the last rung of a dtype, which is compared with the vendor's library
BAR: Final = 0.85
AT_LEAST: Final = 2  # configs of each rung that are tried, however little time there is
# What is tried beside a rung's default: changes of it, those that its space refuses left out.
TRIED: Final[Mapping[int, Sequence[Mapping[str, int]]]] = {
    **dict.fromkeys((1, 2, 3, 4), ({"TILE": 16}, {"TILE": 32}, {"TILE": 8})),
    5: ({"BM": 128, "TM": 16, "BK": 16}, {"BK": 16}, {"TM": 16, "BK": 16}, {"BM": 128, "TM": 16}),
    6: ({"BK": 16}, {"TN": 4}, {"BM": 64}, {"TM": 4}),
    7: ({"BK": 16}, {"TN": 4}, {"BM": 64}, {"TM": 4}),
    8: ({"BK": 16}, {"TN": 4, "BK": 16}, {"BM": 64}, {"TM": 4, "BK": 16}),
    9: ({"BM": 64}, {"BM": 64, "BK": 16}, {"BK": 16}, {"WN": 32}, {"WN": 32, "BK": 16}, {"TN": 4, "WN": 32, "BK": 16}),
    10: ({"SPLIT_K": 64}, {"SPLIT_K": 128}, {"SPLIT_K": 256}, {"SPLIT_K": 1}, {"TN": 8, "SPLIT_K": 128, "BK": 8}),
    11: (
        {"STAGES": 4},
        {"BK": 8, "STAGES": 4},
        {"BN": 256},
        {"BN": 256, "TM": 16},
        {"BN": 256, "TM": 16, "BK": 8, "STAGES": 4},
        {"WN": 32},
    ),
    12: ({"BK": 64}, {"WM": 32, "WN": 64}, {"WN": 64}),
    13: ({"BK": 64}, {"WN": 64}, {"WN": 64, "BK": 64}, {"STAGES": 4}),
    14: (
        {"BLOCKS": 132},
        {"BLOCKS": 132, "GROUP_M": 16},
        {"GROUP_M": 16},
        {"STAGES": 3},
        {"BN": 128, "STAGES": 3},
        {"BN": 128, "STAGES": 3, "GROUP_M": 16},
    ),
}


@dataclass(slots=True)
class Contest:
    """What is measured on one problem: rungs, and perhaps the vendor's library; `times` are medians by rung, 0: its."""

    problem: Problem
    rungs: tuple[Lesson, ...]
    vendor: bool
    best: dict[int, Measured] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)


def contests(platform: str) -> list[Contest]:
    """The problems of a platform's table, each with its rungs and the ones below that compute it."""
    shapes, found = SHAPES[platform], []
    for problem in dict.fromkeys(shapes.values()):
        own = {number for number, shape in shapes.items() if shape == problem}
        below = {number - 1 for number in own if number > 1}
        rungs = tuple(one for one in LESSONS if one.number in own | below and problem.dtype in one.kernel.dtypes)
        found.append(Contest(problem, rungs, vendor=bool(own & set(LAST)) or platform == "opencl"))
    return found


def launches(
    lesson: Lesson, problem: Problem, device: Device, known: Mapping[int, Config] | None = None
) -> list[Launch]:
    """The rung's default, what was fastest on another problem, and changes of the default, where they are legal."""
    kernel = lesson.kernel
    first = kernel.default(problem, device)
    changed = (kernel.space.config({**first, **each}) for each in TRIED[lesson.number])
    chosen = dict.fromkeys(
        [first, *(one for number, one in (known or {}).items() if number == lesson.number), *changed]
    )
    return [kernel.launch(each, problem, device) for each in chosen if not kernel.space.refusal(each, problem, device)]


def hold(unit: Unit, contest: Contest, until: float, known: Mapping[int, Config]) -> None:
    """Attempt configs while there is time, two of each rung in any case, and sample the fastest of each in turn.

    The highest rung is tried first; one that is here to be compared with alone has two tries.
    """
    bench = trial.FixtureKey(f"lessons {contest.problem.key}", contest.problem, 1)
    runner = TrialRunner(unit, bench, lambda: False, lambda _: None)
    own = {number for number, problem in SHAPES[unit.device.platform].items() if problem == contest.problem}
    ways = {
        lesson.number: launches(lesson, contest.problem, unit.device, known)[: None if lesson.number in own else 2]
        for lesson in reversed(contest.rungs)
    }
    for launch in (one for each in ways.values() for one in each):
        runner.prepare(launch)
    for turn in range(max(map(len, ways.values()))):
        for number, several in ways.items():
            if turn < len(several) and (turn < AT_LEAST or monotonic() < until):
                _attempt(runner, contest, number, several[turn])
    runner.abandon()
    field_: dict[int, Contender] = {
        number: next(one for one in ways[number] if one.config == best.config) for number, best in contest.best.items()
    }
    if contest.vendor and isinstance(runner.attempt(contest.problem, None), Measured):
        field_[0] = contest.problem
    if field_:
        sampled = runner.sample(list(field_.values()), ROUNDS)
        contest.times = {number: 1e3 * median(each) for number, each in zip(field_, sampled.seconds, strict=True)}


def weight(contest: Contest) -> int:
    """What a contest's tries cost: most of each is the comparison of C with the reference."""
    problem = contest.problem
    return sum(1 + len(TRIED[one.number]) for one in contest.rungs) * (2**20 + problem.m * problem.n)


def climb(unit: Unit, until: float) -> list[Contest]:
    """Hold every contest, each with its part of the time that is left."""
    held, known = contests(unit.device.platform), dict[int, Config]()
    for number, contest in enumerate(held):
        left = sum(map(weight, held[number:]))
        hold(unit, contest, monotonic() + (until - monotonic()) * weight(contest) / left, known)
        known |= {rung: best.config for rung, best in contest.best.items()}
        for name, reason in contest.rejected.items():
            print(f"rejected on {contest.problem}: {name}: {reason}", flush=True)
    return held


def _attempt(runner: TrialRunner, contest: Contest, number: int, launch: Launch) -> None:
    outcome = runner.attempt(launch, None)
    if not isinstance(outcome, Measured):
        contest.rejected[f"{launch.kernel} {launch.config}"] = f"{outcome.stage}: {outcome.reason}"
        return
    before = contest.best.get(number)
    if before is None or outcome.timing.median_ms < before.timing.median_ms:
        contest.best[number] = outcome


def rows(platform: str, held: Iterable[Contest]) -> list[dict[str, Any]]:
    """A line for each rung that was measured, with the one below and the vendor's library on its shape."""
    by_problem = {contest.problem: contest for contest in held}
    return [
        _row(LESSONS[number - 1], by_problem[problem], by_problem)
        for number, problem in sorted(SHAPES[platform].items())
        if number in by_problem[problem].times
    ]


def _row(lesson: Lesson, contest: Contest, by_problem: Mapping[Problem, Contest]) -> dict[str, Any]:
    problem, number, time = contest.problem, lesson.number, contest.times[lesson.number]
    best, below = contest.best[number], contest.times.get(number - 1) if number > 1 else None
    if below is None and number > 1:  # it computes another dtype: the same sizes in that one
        below = next(
            (
                one.times[number - 1]
                for other, one in by_problem.items()
                if (other.m, other.n, other.k) == (problem.m, problem.n, problem.k) and number - 1 in one.times
            ),
            None,
        )
    vendor = contest.times.get(0) if number in LAST or problem.dtype == "float32" else None
    return {
        "number": number,
        "kernel": lesson.kernel.name,
        "problem": problem.key,
        "config": dict(best.config),
        "median_ms": time,
        "gflops": problem.flops / time / 1e6,
        "registers": best.registers,
        "relative_l2": best.accuracy.relative_l2,
        "below_ms": below,
        "over_below": below and below / time,
        "vendor_ms": vendor,
        "over_vendor": vendor and vendor / time,
    }


def told(row: Mapping[str, Any]) -> str:
    """A line of the table that is printed."""
    below = f"{row['over_below']:6.2f} x the rung below" if row["over_below"] else " " * 23
    vendor = f"{row['over_vendor']:5.2f} of the vendor's" if row["over_vendor"] else ""
    return f"{row['kernel']:24} {row['median_ms']:9.4f} ms {row['gflops']:10.0f} GFLOP/s {below} {vendor}"


def verdict(found: Sequence[Mapping[str, Any]]) -> str:
    """How many rungs are at least as fast as the one below, and what the last ones reach of the vendor's library."""
    compared = [row for row in found if row["over_below"]]
    slower = [row["kernel"] for row in compared if row["over_below"] < 1]
    last = [
        f"{row['kernel']} {row['over_vendor']:.2f}" for row in found if row["number"] in LAST and row["over_vendor"]
    ]
    words = f"{len(compared) - len(slower)} of {len(compared)} at least as fast as the rung below"
    words += f": not {', '.join(slower)}" if slower else ""
    return f"{words}; of the vendor's (bar {BAR}): {', '.join(last)}" if last else words


def main() -> None:
    """Measure the ladder and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    until = monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as cache, open_fleet(arguments.device, Path(cache), 2**20) as fleet:
        unit = fleet.unit(None)
        platform = unit.device.platform
        held = climb(unit, until)
        found = rows(platform, held)
        report: dict[str, Any] = {
            "device": unit.device.name,
            "architecture": unit.device.architecture,
            "environment": unit.device.environment,
            "vendor": unit.vendor.name,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rungs": found,
        }
    print(*map(told, found), verdict(found), sep="\n")
    short = "cpu" if platform == "opencl" else report["device"].split()[-1].lower()
    out = arguments.out or RESULTS / f"lessons-{short}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
