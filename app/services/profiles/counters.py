"""Hardware counters of one contender: Nsight Compute's on a GPU, the kernel's perf events on a processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.profiler.ncu import ProfilerFailed, find_ncu, profile_program
from app.devices.profiler.perf_events import counting
from app.profiling.figures import NCU, PERF
from app.profiling.ncu_report import METRICS, SECTIONS, longest, read_report
from app.worker.measuring.profiled import specification
from kernels.problem import Problem
from kernels.space import Config

_COUNTING: Final = 0.1  # seconds of launches that are counted
_PROGRAM: Final = (sys.executable, "-m", "app.worker.measuring.profiled")
_WANTED: Final = (
    *(option for section in SECTIONS for option in ("--section", section)),
    *("--metrics", ",".join(METRICS)),
)
Subject = tuple[Problem, str, Config]


@dataclass(frozen=True, slots=True)
class CounterReading:
    """What counters say, by name, and why some of them, or all, say nothing."""

    source: str
    values: dict[str, float]
    reason: str | None = None


def read_counters(
    unit: Unit,
    cache: Path,
    subject: Subject,
    repeat: Callable[[float], tuple[int, float]],
    stopped: Callable[[], bool],
) -> CounterReading:
    """The counters of a problem's kernel and config; `repeat` launches it for so many seconds in the trial worker."""
    if unit.device.platform == "cuda":
        return _by_ncu(unit, cache, subject, stopped)
    return _by_perf(unit, repeat)


def _by_perf(unit: Unit, repeat: Callable[[float], tuple[int, float]]) -> CounterReading:
    process = unit.trials.pid
    if process is None:
        return CounterReading(PERF, {}, "the trial worker has no process now")
    with counting(process) as counted:
        launches, seconds = repeat(_COUNTING)
    return CounterReading(PERF, counted.figures(launches, seconds), counted.reason)


def _by_ncu(unit: Unit, cache: Path, subject: Subject, stopped: Callable[[], bool]) -> CounterReading:
    ncu = find_ncu()
    if ncu is None:
        return CounterReading(NCU, {}, "Nsight Compute (ncu) is not installed here")
    problem, kernel, config = subject
    program = (*_PROGRAM, specification(unit.device.id, cache, problem, kernel, dict(config)))
    try:
        report = profile_program(ncu, program, _WANTED, partial(unit.lease.held, Priority.MEASUREMENT), stopped)
        return CounterReading(NCU, longest(read_report(report)).figures())
    except (ProfilerFailed, ValueError) as error:
        return CounterReading(NCU, {}, str(error))
