"""A kernel's configs on one problem as a grid over two of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import median
from typing import Final

from app.errors import Invalid, NotTuned
from app.services.charts.points import ConfigPoint
from kernels import KERNELS
from kernels.device import Device
from kernels.kernel import SERVING, Kernel
from kernels.problem import Problem
from kernels.space import Config

_FIRST: Final = ("BN", "BM")  # what x and y are where nobody says


@dataclass(frozen=True, slots=True)
class Axes:
    """Two parameters of a kernel, what the others are held at, and how a cell's configs become one time."""

    x: str | None = None
    y: str | None = None
    held: Mapping[str, int] | None = None
    aggregate: str = "best"


@dataclass(frozen=True, slots=True)
class GridCell:
    """The configs of two values: `state` is measured, rejected (each that was tried), untried or illegal.

    `median_ms` is the fastest config's, which is `config`, or the median of all. `reason` is why the first was
    rejected, or the rule that refuses the first config of an illegal cell.
    """

    x: int
    y: int
    state: str
    median_ms: float | None
    config: Config | None
    measured: int
    rejected: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """The grid, y by y, and what each parameter was tried at."""

    kernel: str
    x: str
    y: str
    x_values: tuple[int, ...]
    y_values: tuple[int, ...]
    cells: tuple[GridCell, ...]
    tried: Mapping[str, tuple[int, ...]]


def landscape(
    points: Sequence[ConfigPoint], kernel: str | None, problem: Problem, device: Device, axes: Axes
) -> TimeGrid:
    """The grid of a kernel, by default of the fastest config's; raises NotTuned, and Invalid for an unknown axis."""
    name = kernel or fastest_kernel(points)
    own = [point for point in points if point.kernel == name]
    if not own:
        raise NotTuned(f"no config of {name} has been tried on {problem.key} here: tune it first")
    tried = {each: tuple(sorted({point.config[each] for point in own})) for each in own[0].config}
    x, y = _axes(tuple(tried), axes)
    known = KERNELS.get(name)
    x_values, y_values = (_values(known, each, tried) for each in (x, y))
    held = _held(axes.held or {}, tried)
    groups: dict[tuple[int, int], list[ConfigPoint]] = {}
    for point in own:
        if held.items() <= dict(point.config).items():
            groups.setdefault((point.config[x], point.config[y]), []).append(point)
    illegal = {} if known is None else _illegal(name, problem, device, (x, y), tuple(held.items()))
    cells = (
        _cell(place, groups.get(place, ()), illegal.get(place), axes.aggregate)
        for place in ((across, down) for down, across in product(y_values, x_values))
    )
    return TimeGrid(name, x, y, x_values, y_values, tuple(cells), tried)


def fastest_kernel(points: Iterable[ConfigPoint]) -> str:
    """The kernel, no lesson, of the fastest config that two parameters have; raises NotTuned if none was measured."""
    serving = (point for point in points if point.kernel not in KERNELS or KERNELS[point.kernel].role == SERVING)
    times = [(point.median_ms, point.kernel) for point in serving if point.median_ms and len(point.config) > 1]
    if not times:
        raise NotTuned("no config has been measured for that here: tune it first")
    return min(times)[1]


def _axes(names: Sequence[str], axes: Axes) -> tuple[str, str]:
    free = [name for name in (*_FIRST, *names) if name in names and name not in {axes.x, axes.y}]
    x = axes.x or free.pop(0)
    y = axes.y or next((name for name in free if name != x), "")
    for name, value in {"x": x, "y": y}.items():
        if value not in names:
            raise Invalid(f"{name} is one of {', '.join(names)}, got {value or 'nothing'}", member=name)
    if x == y:
        raise Invalid(f"x and y are two parameters, got {x} for both", member="y")
    return x, y


def _held(held: Mapping[str, int], names: Mapping[str, object]) -> dict[str, int]:
    if unknown := [name for name in held if name not in names]:
        raise Invalid(f"held are some of {', '.join(names)}, got {unknown[0]}", member="held")
    return dict(held)


def _values(kernel: Kernel | None, name: str, tried: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """A parameter's values by its space, those of older texts that were tried included."""
    space = kernel.space.parameters if kernel is not None else {}
    return tuple(sorted({*space.get(name, ()), *tried[name]}))


def _cell(place: tuple[int, int], points: Sequence[ConfigPoint], refusal: str | None, aggregate: str) -> GridCell:
    measured = sorted((point.median_ms, str(point.config), point.config) for point in points if point.median_ms)
    rejected = [point for point in points if not point.median_ms]
    if measured:
        time = measured[0][0] if aggregate == "best" else median(each for each, _, _ in measured)
        return GridCell(*place, "measured", time, measured[0][2], len(measured), len(rejected), None)
    if rejected:
        return GridCell(*place, "rejected", None, None, 0, len(rejected), rejected[0].reason)
    return GridCell(*place, "untried" if refusal is None else "illegal", None, None, 0, 0, refusal)


@lru_cache(maxsize=64)
def _illegal(
    name: str, problem: Problem, device: Device, axes: tuple[str, str], held: tuple[tuple[str, int], ...]
) -> dict[tuple[int, int], str]:
    """The places at which the space allows no config, each with a rule that refuses its first one."""
    kernel, fixed = KERNELS[name], dict(held)
    values = {one: (fixed[one],) if one in fixed else each for one, each in kernel.space.parameters.items()}
    legal = {
        (config[axes[0]], config[axes[1]])
        for config in kernel.space.legal(problem, device)
        if fixed.items() <= dict(config).items()
    }
    found = {}
    for across, down in product(values[axes[0]], values[axes[1]]):
        if (across, down) not in legal:
            first = {one: each[0] for one, each in values.items()} | {axes[0]: across, axes[1]: down}
            rule = kernel.space.refusal(Config.of(first), problem, device)
            found[across, down] = rule or "no values of the other parameters are allowed with these"
    return found
