"""Launches under a profiler's counters, and what the driver says of a compiled launch."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from app.devices.backend import LaunchResources, WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.tuning.outcome import Rejected
from app.tuning.runner import Contender
from app.worker.measuring.contenders import OperandRotation, loaded
from app.worker.measuring.fixture import FixtureKey, prepared
from kernels.launch import Launch

_MEASURING: Final = 60.0  # seconds of the host's own work between launches


def repeat(
    held: WorkerContext, link: WorkerLink, contender: Contender, key: FixtureKey, seconds: float
) -> tuple[int, float]:
    """Launch a contender that was attempted before for about so many seconds; how often, and how long that took.

    The device is offered to products before each launch. Raises DeviceError.
    """
    entrant = loaded(held, link, contender)
    if isinstance(entrant, Rejected):
        raise LaunchFailed(f"{entrant.kernel} is gone: {entrant.reason}", stage=entrant.stage)
    rotation = OperandRotation(prepared(held, link, key).on(held.backend).rotation)
    link.phase("measure", _MEASURING)
    count, spent = 0, 0.0
    with link.lease(entrant.deadline()):
        while count == 0 or spent < seconds:
            link.offer(entrant.deadline())
            (operands,) = rotation.following(1)
            started = perf_counter()
            entrant.run(operands)
            spent += perf_counter() - started
            count += 1
    return count, spent


def resources(held: WorkerContext, link: WorkerLink, launch: Launch) -> LaunchResources | None:
    """What the driver says of a launch that was attempted before; None where it cannot be compiled any more."""
    entrant = loaded(held, link, launch)
    if isinstance(entrant, Rejected) or entrant.program is None:
        return None
    return held.backend.resources(entrant.program, launch)
