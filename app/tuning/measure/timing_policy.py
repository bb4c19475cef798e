"""Timing policy: how launches of a problem are timed, the same for all of its contenders.

Its name is part of a stored time's key: it changes when its meaning does.
"""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import peak
from kernels.device import Device
from kernels.problem import Problem

EVENTS: Final = "events"  # a pair of the device's events around each launch
GRAPH: Final = "graph"  # the mean over about 2 ms of launches in one graph, their buffers rotating
_SHORT: Final = 50e-6  # seconds: about 1 us of a pair of events is 2 % of this
_LAUNCH: Final = 2e-6  # seconds that the shortest launch takes


def policy_of(problem: Problem, device: Device) -> str:
    """The policy of a problem on a device: graphs if a good launch takes under about 50 us, else events."""
    if device.platform == "cuda" and floor_seconds(problem, device) < _SHORT:
        return GRAPH
    return EVENTS


def floor_seconds(problem: Problem, device: Device) -> float:
    """Seconds that no launch takes less than: every byte moved once, every product by the fastest units there are."""
    return _LAUNCH + max(problem.bytes / device.limits.bandwidth, problem.flops / peak(problem, device))
