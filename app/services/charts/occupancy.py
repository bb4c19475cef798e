"""The occupancy of a launch over each resource that a block takes, the other two held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kernels.cost_model import Occupancy, occupancy
from kernels.device import Limits

THREADS: Final = "threads"
REGISTERS: Final = "registers"
SHARED: Final = "shared_bytes"
_REGISTER_STEP: Final = 8  # registers are given to a thread in eights
_SHARED_STEP: Final = 1024


@dataclass(frozen=True, slots=True)
class OccupancyPoint:
    """What a multiprocessor holds at a value of one resource."""

    value: int
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class OccupancyCurve:
    """One resource from its least to its most; `own` is the launch's value, None where it is not known."""

    resource: str
    own: int | None
    points: tuple[OccupancyPoint, ...]


def occupancy_curves(limits: Limits, threads: int, shared_bytes: int, registers: int) -> tuple[OccupancyCurve, ...]:
    """Over threads a block, registers a thread (0: not known) and shared bytes a block; none on a device without SMs.

    Each has the launch's own value among its points.
    """
    if not limits.threads_per_sm:
        return ()

    def curve(resource: str, own: int, values: Iterable[int]) -> OccupancyCurve:
        taken = {THREADS: threads, SHARED: shared_bytes, REGISTERS: registers}
        found = []
        for value in sorted({*values, own} if own or resource == SHARED else {*values}):
            at = taken | {resource: value}
            held = occupancy(limits, at[THREADS], at[SHARED], at[REGISTERS])
            if held is not None:
                found.append(OccupancyPoint(value, held))
        return OccupancyCurve(resource, own if own or resource == SHARED else None, tuple(found))

    return (
        curve(THREADS, threads, range(limits.warp, limits.threads + 1, limits.warp)),
        curve(REGISTERS, registers, range(2 * _REGISTER_STEP, limits.registers_per_thread + 1, _REGISTER_STEP)),
        curve(SHARED, shared_bytes, range(0, limits.shared_bytes + 1, _SHARED_STEP)),
    )
