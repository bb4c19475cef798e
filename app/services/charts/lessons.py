"""The ladder of lessons on one device: what each rung changes, what the model says of it, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Final

from app.services.charts.points import ConfigPoint
from kernels.cost_model import Analysis, analyse, occupancy, predict, tile_bytes
from kernels.device import Device
from kernels.lessons import LESSONS, Lesson
from kernels.lessons.traffic import WarpAccess, accesses
from kernels.problem import Problem
from kernels.space import Config

# The articles' tiles, the threads of a block that computes one, and the first architecture of the tree's first branch.
_TILES: Final = (32, 64, 128)
_THREADS: Final = 256
_VOLTA: Final = 70


@dataclass(frozen=True, slots=True)
class LessonRun:
    """A config of a lesson: what the model says of its launch, and its stored time, None if it was not measured."""

    config: Config
    analysis: Analysis
    accesses: tuple[WarpAccess, ...]
    predicted_ms: float
    measured_ms: float | None


@dataclass(frozen=True, slots=True)
class LessonStep:
    """A rung on a problem: the diff to the rung below, the config it is shown with, and that with `change` made.

    `run` is the fastest config that was measured, else the default, else None for the reason in `refusal`. `changed` is
    None where the change is not legal there.
    """

    lesson: Lesson
    problem: Problem
    diff: str
    refusal: str | None
    run: LessonRun | None
    change: Mapping[str, int]
    changed: LessonRun | None


def lesson_steps(
    sizes: Problem, device: Device, points: Iterable[ConfigPoint], change: Mapping[str, int] | None = None
) -> list[LessonStep]:
    """The fourteen rungs on a problem's sizes, each in its own dtype; `change` in place of the changes they propose."""
    found = list(points)
    return [_step(lesson, sizes, device, found, change) for lesson in LESSONS]


@dataclass(frozen=True, slots=True)
class TileChoice:
    """A square tile of float32 on a device: the bytes of its two shared tiles, and whether a block has as many.

    `occupancy` is of blocks of 256 threads, None where the device has no figures of an SM. `advised` by the tree.
    """

    tile: int
    shared_bytes: int
    fits: bool
    occupancy: float | None
    advised: bool


def tile_choices(device: Device) -> tuple[str, list[TileChoice]]:
    """The articles' decision tree answered for a device, in a sentence, and the tiles that it chooses among."""
    modern, limits = device.capability >= _VOLTA, device.limits
    found = []
    for tile in _TILES:
        size = tile_bytes(tile, tile, tile)
        resident = occupancy(limits, _THREADS, size, 0)
        fits = size <= limits.shared_bytes
        advised = device.platform == "cuda" and fits and (tile > _TILES[0]) == modern
        found.append(TileChoice(tile, size, fits, None if resident is None else resident.fraction, advised))
    return _advice(device, modern, [one.tile for one in found if one.advised]), found


def _advice(device: Device, modern: bool, tiles: list[int]) -> str:
    if device.platform != "cuda":
        return f"{device.name} is a processor, for which the tree has no branch: its caches decide. Measure."
    age = "Volta or later: try large tiles" if modern else "older than Volta: begin with a small tile"
    sides = " or ".join(map(str, tiles)) or "none that fits"
    return f"{device.architecture} is {age}, {sides} of those that fit in shared memory. Measure."


def _step(
    lesson: Lesson, sizes: Problem, device: Device, points: list[ConfigPoint], change: Mapping[str, int] | None
) -> LessonStep:
    kernel = lesson.kernel
    problem = Problem(sizes.m, sizes.n, sizes.k, dtype=kernel.dtypes[0])
    times = {
        point.config: point.median_ms
        for point in points
        if (point.kernel, point.problem) == (kernel.name, problem) and point.median_ms is not None
    }
    default = kernel.default(problem, device)
    refusal = kernel.refusal(problem, device) or kernel.space.refusal(default, problem, device)
    own = {name: value for name, value in (change or lesson.next).items() if name in kernel.space.parameters}
    run = changed = None
    if refusal is None:
        chosen = min(times, key=lambda config: times[config], default=default)
        run = _run(lesson, chosen, problem, device, times)
        ways = [own, *([] if change else _others(lesson, own))]
        found = ((each, _changed(lesson, chosen, each, problem, device, times)) for each in ways)
        own, changed = next(((each, made) for each, made in found if made is not None), (own, None))
    return LessonStep(lesson, problem, difference(lesson), refusal, run, own, changed)


def _run(lesson: Lesson, config: Config, problem: Problem, device: Device, times: Mapping[Config, float]) -> LessonRun:
    return LessonRun(
        config,
        analyse(lesson.kernel, config, problem, device),
        accesses(lesson.number, config, problem),
        1e3 * predict(lesson.kernel, config, problem, device),
        times.get(config),
    )


def _others(lesson: Lesson, change: Mapping[str, int]) -> list[dict[str, int]]:
    """The other values of what a lesson proposes to change: its own may be the fastest already, or illegal there."""
    return [{name: value} for name in change for value in lesson.kernel.space.parameters[name]]


def _changed(
    lesson: Lesson,
    config: Config,
    change: Mapping[str, int],
    problem: Problem,
    device: Device,
    times: Mapping[Config, float],
) -> LessonRun | None:
    """The run with a change made to a config, None where the space has no such config or a rule refuses it."""
    try:
        other = lesson.kernel.space.config({**config, **change})
    except ValueError:
        return None
    if not change or other == config or lesson.kernel.space.refusal(other, problem, device) is not None:
        return None
    return _run(lesson, other, problem, device, times)


def difference(lesson: Lesson) -> str:
    """What changes from the rung below but its idea, as a unified diff; of the first rung nothing."""
    if lesson.number == 1:
        return ""
    below = LESSONS[lesson.number - 2]
    before, after = below.body.splitlines(), lesson.body.splitlines()
    name, other = (each.kernel.file.rpartition("/")[2] for each in (below, lesson))
    return "\n".join(unified_diff(before, after, name, other, lineterm="", n=1))
