"""What devices do at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure now, or the reason why there is none."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceGauges:
    """What one device does now: `busy` from 0 to 1, clocks in MHz, watts, degrees Celsius, bytes of memory.

    `waiting` are the calls of the service that wait for it, `throttled` says why its clocks are lower than they could
    be.
    """

    device: str
    busy: Gauge
    sm_mhz: Gauge
    memory_mhz: Gauge
    watts: Gauge
    celsius: Gauge
    memory_used_bytes: Gauge
    memory_bytes: int
    waiting: int
    throttled: tuple[str, ...] = ()
