"""How far a job is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceProgress:
    """What one device has done of a running job: shapes and trials, and the seconds that it spent of the budget."""

    device: str
    shapes: int = 0
    trials: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: trials done of at most `total`, and the search's fastest so far in milliseconds.

    `phase` is preparing, search or finals; `elapsed_seconds` are spent of `budget_seconds` (None: there is no limit),
    `eta_seconds` is the time left, None while nobody can say; `devices` are those that tune a running job's shapes.
    """

    done: int = 0
    total: int = 0
    search_best_ms: float | None = None
    phase: str | None = None
    eta_seconds: float | None = None
    elapsed_seconds: float | None = None
    budget_seconds: float | None = None
    devices: tuple[DeviceProgress, ...] = ()
