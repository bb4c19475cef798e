"""Handles failures of products: whether a lower kernel may make it, and which config is quarantined."""

from __future__ import annotations

import logging
from threading import Lock
from typing import Final

from app.devices.fleet import Unit
from app.errors import CompileFailed, DeviceError, NoDevice, StoreFailed, WrongResult
from app.services.best.lookup import BestConfigs, covering
from app.services.best.quarantine import Quarantine
from app.services.tuning.trial_runner import kind_of
from kernels.launch import Launch

_LOG: Final = logging.getLogger(__name__)
_SLOWER: Final = 8.0  # times the slowest build that was seen to end: one that takes longer is taken for hung
_FIRST: Final = 60.0  # seconds for a build while none has been seen to end
_MOST: Final = 120.0
_STAGES: Final = {"multiply": "launch", "verify_class": "launch"}  # a call that named no phase was launching


class BuildDeadlines:
    """How long a device's builds may take, by what they took so far; safe from any thread."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}
        self._lock = Lock()

    def learn(self, unit: Unit, seconds: float) -> None:
        """Take note of how long a compilation with its verification took."""
        if seconds:
            with self._lock:
                self._slowest[unit.device.id] = max(seconds, self._slowest.get(unit.device.id, 0.0))

    def seconds(self, unit: Unit, least: float) -> float:
        """Seconds for the next one, `least` or more."""
        slowest = self._slowest.get(unit.device.id)
        return _FIRST if slowest is None else min(_MOST, max(least, _SLOWER * slowest))


class ServingFailures:
    """Quarantines what fails where products are served."""

    def __init__(self, quarantine: Quarantine, best: BestConfigs) -> None:
        self._quarantine, self._best = quarantine, best

    def record(self, unit: Unit, launch: Launch | None, error: DeviceError) -> str | None:
        """Hold a launch whose fault an error is; gives the kind of fault, or None where it is not the launch's.

        The lowest kernel of a problem is held for wrong answers alone: there is nothing to take in its place.
        """
        kind = "wrong" if isinstance(error, WrongResult) else kind_of(error)
        if launch is None or kind in {None, "memory"}:
            return None
        if self._quarantine.holds(unit.device, launch.kernel, launch.config, launch.problem) is not None:
            return kind
        self._hold(unit, launch, str(kind), error)
        self._best.changed()
        return kind

    def strike(self, unit: Unit, launch: Launch, error: DeviceError) -> None:
        """Hold for good what was suspected and failed again."""
        kind = "wrong" if isinstance(error, WrongResult) else kind_of(error)
        if kind not in {None, "memory"}:
            self._hold(unit, launch, str(kind), error)

    def _hold(self, unit: Unit, launch: Launch, kind: str, error: DeviceError) -> None:
        if kind == "wrong":
            try:
                self._quarantine.condemn(unit.device, launch, error.message)
            except StoreFailed as failure:  # it is held in memory
                _LOG.warning("the fault of %s %s is not stored: %s", launch.kernel, launch.config, failure.message)
        elif not is_lowest(unit, launch):
            self._quarantine.suspect(unit.device, launch, kind, stage_of(error), error.message)


def is_lowest(unit: Unit, launch: Launch) -> bool:
    """Whether no kernel of the ladder stands below a launch's, for its problem."""
    return covering(launch.problem, unit.device)[0].name == launch.kernel


def stage_of(error: DeviceError) -> str:
    """Where a serving child was when it failed: compile, verify or launch."""
    stage = "compile" if isinstance(error, CompileFailed) else str(error.facts.get("stage", "launch"))
    return _STAGES.get(stage, stage)


def another_may_do(error: DeviceError) -> bool:
    """Whether a failed product may still be made by another kernel; not where there is no child to make it."""
    return not isinstance(error, NoDevice) and error.facts.get("stage") != "start"
