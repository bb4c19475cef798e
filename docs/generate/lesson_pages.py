"""The pages of the lessons: each rung's idea, what it changes, what the model says, what was measured where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from app.services.charts.lessons import difference
from benchmarks.kernels.lessons import BAR, LAST, RESULTS, SHAPES
from benchmarks.report.peer_table import markdown
from kernels.cost_model import analyse
from kernels.lessons import LESSONS, Lesson
from kernels.lessons.traffic import accesses
from kernels.problem import Problem
from kernels.support import made_up

ROOT: Final = Path(__file__).resolve().parents[2]
# The devices that have a place on the pages, with the platform whose table of shapes they are measured on.
DEVICES: Final = {"h200": ("An H200", "cuda"), "cpu": ("A CPU", "opencl")}


def lesson_list() -> str:
    """A table of all lessons, with the shape that each is measured on."""
    rows = [
        (str(one.number), f"[{one.kernel.name}]({one.kernel.name}.md)", one.title, *_shapes(one.number))
        for one in LESSONS
    ]
    return _left(("rung", "source", "idea", "on a GPU", "on a CPU"), rows)


def lesson_page(lesson: Lesson) -> str:
    """All of a lesson's page but its title."""
    return "\n\n".join(
        part for part in (lesson.idea, _source(lesson), _model(lesson), _measured(lesson), _further(lesson)) if part
    )


def _shapes(number: int) -> tuple[str, ...]:
    return tuple(str(SHAPES[platform].get(number, "-")) for platform in ("cuda", "opencl"))


def _source(lesson: Lesson) -> str:
    """The whole of the first rung, of the others what changes."""
    if lesson.number == 1:
        return f"```c\n{lesson.own_source}```"
    below = LESSONS[lesson.number - 2].kernel.name
    return f"What changes from [{below}]({below}.md):\n\n```diff\n{difference(lesson)}\n```"


def _model(lesson: Lesson) -> str:
    """What a launch costs by the model, beside the rung below on the same problem."""
    problem = SHAPES["cuda"][lesson.number]
    head = (
        "by the model, on " + str(problem),
        "bytes read",
        "operations a byte",
        "shared bytes a block",
        "more than needed",
    )
    rungs = [one for one in LESSONS if one.number in {lesson.number - 1, lesson.number}]
    return _left(
        head, [_costs(one, Problem(problem.m, problem.n, problem.k, dtype=one.kernel.dtypes[0])) for one in rungs]
    )


def _costs(lesson: Lesson, problem: Problem) -> tuple[str, ...]:
    device = made_up("cuda", "sm_90")
    config = lesson.kernel.space.config(lesson.first)
    known = analyse(lesson.kernel, config, problem, device)
    slow = [
        f"{one.what}: {one.taken} {'turns' if one.memory == 'shared' else 'sectors'} for {one.least}"
        for one in accesses(lesson.number, config, problem)
        if one.taken > one.least
    ]
    name = f"{lesson.kernel.name} `{config}`"
    return name, f"{known.bytes_read:,}", f"{known.intensity:.3g}", f"{known.shared_bytes:,}", "; ".join(slow) or "none"


def _measured(lesson: Lesson) -> str:
    """A row for each device that has a place here: its figures, or that it has none."""
    head = (
        "measured",
        "problem",
        "config",
        "ms",
        "GFLOP/s",
        "times as fast as the rung below",
        "of the vendor's speed",
    )
    return _left(head, [_row(lesson, short) for short in DEVICES])


def _row(lesson: Lesson, short: str) -> tuple[str, ...]:
    called, platform = DEVICES[short]
    problem = SHAPES[platform].get(lesson.number)
    if problem is None:
        return called, "it has no such instructions", *[""] * 5
    found = _figures(short)
    row = next((one for one in (found or {}).get("rungs", ()) if one["number"] == lesson.number), None)
    if row is None:
        return called, str(problem), "not measured yet", *[""] * 4
    config = ",".join(f"{name}={value}" for name, value in row["config"].items())
    vendor = f"{row['over_vendor']:.3g}" if row["over_vendor"] else ""
    vendor += f" (bar: {BAR})" if vendor and lesson.number in LAST else ""
    below = f"{row['over_below']:.2f}" if row["over_below"] else ""
    times = (f"{row['median_ms']:.4g}", f"{row['gflops']:,.0f}", below, vendor)
    return f"{called} ({found['device']})" if found else called, str(problem), f"`{config}`", *times


def _figures(short: str) -> Mapping[str, Any] | None:
    path = ROOT / RESULTS / f"lessons-{short}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _further(lesson: Lesson) -> str:
    """What to change, and the command that measures it on the reader's device."""
    change = ",".join(f"{name}={value}" for name, value in lesson.next.items())
    command = f"tilewise learn 512 --rung {lesson.number}"
    said = "Change a value, and see what the model says and what was measured:"
    block = f"<!-- not run: it measures for a minute -->\n```sh\n{command}\n{command} --change {change}\n```"
    said = f"{said}\n\n{block}"
    if lesson.number == len(LESSONS):
        return said
    above = LESSONS[lesson.number].kernel.name
    return f"{said}\n\nNext: [{above}]({above}.md)."


def _left(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A Markdown table whose columns are text."""
    first, _, *rest = markdown(head, lines)
    return "\n".join([first, f"| {' | '.join(['---'] * len(head))} |", *rest])
