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
from app.profiling.ncu_report import GROUPS, longest, options, read_report
from app.worker.measuring.profiled import specification
from kernels.problem import Problem
from kernels.space import Config

_COUNTING: Final = 0.1  # seconds of launches that are counted
_PROGRAM: Final = (sys.executable, "-m", "app.worker.measuring.profiled")
_LEAST: Final = 10.0  # seconds that a run of the profiler may hold the device, however short a launch is
_LAUNCHES: Final = 40  # launches' time that it may hold it beside: passes, and the memory that each puts back
_MOST: Final = 60.0  # seconds, however long a launch is
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
    launch_seconds: float,
    repeat: Callable[[float], tuple[int, float]],
    stopped: Callable[[], bool],
) -> CounterReading:
    """The counters of a problem's kernel and config, a launch of which takes `launch_seconds`.

    `repeat` launches it for so many seconds in the trial worker.
    """
    if unit.device.platform == "cuda":
        held = min(_MOST, _LEAST + _LAUNCHES * launch_seconds)
        return _by_ncu(unit, cache, subject, held, stopped)
    return _by_perf(unit, repeat)


def _by_perf(unit: Unit, repeat: Callable[[float], tuple[int, float]]) -> CounterReading:
    process = unit.trials.pid
    if process is None:
        return CounterReading(PERF, {}, "the trial worker has no process now")
    with counting(process) as counted:
        launches, seconds = repeat(_COUNTING)
    return CounterReading(PERF, counted.figures(launches, seconds), counted.reason)


def _by_ncu(unit: Unit, cache: Path, subject: Subject, held: float, stopped: Callable[[], bool]) -> CounterReading:
    """What Nsight Compute says in a run a group of counters.

    Between two runs, of which each may hold the device for `held` seconds, the device is free for products. A run that
    fails is the last one: what the runs before it said is kept.
    """
    ncu = find_ncu()
    if ncu is None:
        return CounterReading(NCU, {}, "Nsight Compute (ncu) is not installed here")
    problem, kernel, config = subject
    program = (*_PROGRAM, specification(unit.device.id, cache, problem, kernel, dict(config)))
    leased, values = partial(unit.lease.held, Priority.MEASUREMENT), dict[str, float]()
    for group in GROUPS:
        try:
            report = profile_program(ncu, program, options(*group), leased, stopped, held)
            values |= longest(read_report(report)).figures()
        except (ProfilerFailed, ValueError) as error:
            return CounterReading(NCU, values, str(error))
    return CounterReading(NCU, values)
