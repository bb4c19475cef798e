"""A device's ceilings, and where what was measured on it lies below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.services.charts.points import ConfigPoint
from kernels import KERNELS, arithmetic, cost_model
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config

_COPIED: Final = "bytes read and written while the service copied memory, when it opened the device"
_TOLD: Final = "memory clock x bus width, as the driver tells them; where it tells none, a copy measured at the start"
_UNITS: Final = "units x clock, as the driver tells them: nobody has measured it"
_VECTORS: Final = "cores x clock x one vector of multiply-adds a cycle: an estimate, which a processor may exceed"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A bound: `kind` memory in bytes/s or compute in flop/s; `source` is declared, estimated or measured, by `basis`.

    The highest rate that a stored trial reached is a ceiling too, a measured one, from below.
    """

    name: str
    kind: str
    value: float
    source: str
    basis: str


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A config on a problem: flops over the fewest bytes (`intensity`), and over those its blocks load and store.

    The second, `loaded_intensity`, is None where the model cannot say. `bound` is the lower ceiling at `intensity`.
    """

    problem: Problem
    kernel: str
    config: Config
    round: str
    median_ms: float
    gflops: float
    intensity: float
    loaded_intensity: float | None
    bound: str
    attained: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The ceilings of a class of problems on a device, the intensity at which they meet, and the points."""

    ceilings: tuple[Ceiling, ...]
    ridge: float
    points: tuple[RooflinePoint, ...]


def roofline(problem: Problem, device: Device, points: Iterable[ConfigPoint]) -> Roofline:
    """The roofline of a problem's class; points of other classes are left out."""
    found = [point for point in points if _kind(point.problem) == _kind(problem) and point.median_ms]
    declared = [_memory(device), *_compute(problem, device)]
    peak = max(each.value for each in declared if each.kind == "compute")
    ridge = peak / device.limits.bandwidth
    drawn = tuple(_point(each, device, peak) for each in found)
    return Roofline((*declared, *_reached(drawn)), ridge, drawn)


def _kind(problem: Problem) -> tuple[str, str]:
    return problem.dtype, problem.precision


def _memory(device: Device) -> Ceiling:
    is_copied = device.platform != "cuda"
    source, basis = ("measured", _COPIED) if is_copied else ("declared", _TOLD)
    return Ceiling("memory", "memory", device.limits.bandwidth, source, basis)


def _compute(problem: Problem, device: Device) -> list[Ceiling]:
    source, basis = ("declared", _UNITS) if device.platform == "cuda" else ("estimated", _VECTORS)
    peaks = {"fma": arithmetic.fma_peak(problem, device), "tensor cores": arithmetic.tensor_peak(problem, device)}
    return [Ceiling(name, "compute", peak, source, basis) for name, peak in peaks.items() if peak]


def _reached(points: Sequence[RooflinePoint]) -> list[Ceiling]:
    if not points:
        return []
    best = max(points, key=lambda point: point.gflops)
    basis = f"{best.kernel} {best.config} on {best.problem.key}, the fastest that is stored".replace("  ", " ")
    return [Ceiling("reached", "compute", best.gflops * 1e9, "measured", basis)]


def _point(point: ConfigPoint, device: Device, peak: float) -> RooflinePoint:
    problem, time = point.problem, (point.median_ms or 0.0) / 1e3
    intensity = problem.flops / problem.bytes
    roof = min(peak, intensity * device.limits.bandwidth)
    rate = problem.flops / time
    return RooflinePoint(
        problem=problem,
        kernel=point.kernel,
        config=point.config,
        round=point.round,
        median_ms=point.median_ms or 0.0,
        gflops=rate / 1e9,
        intensity=intensity,
        loaded_intensity=_loaded(point, device),
        bound="compute" if roof == peak else "memory",
        attained=rate / roof,
    )


def _loaded(point: ConfigPoint, device: Device) -> float | None:
    """Flops over the bytes that blocks load and store, no cache between; None for what is no kernel of today."""
    kernel = KERNELS.get(point.kernel)
    if kernel is None or set(point.config) != set(kernel.space.parameters):
        return None
    known = cost_model.analyse(kernel, point.config, point.problem, device)
    return point.problem.flops / (known.bytes_read + known.bytes_written)
