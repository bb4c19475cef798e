"""A tune job under way: the shapes that devices claim, and the last of these to leave ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from app.devices.fleet import Unit
from app.services.tuning.progress import JobProgress, ShapeProgress
from app.services.tuning.request import TuneSpec
from app.store.records import JobRecord
from kernels.problem import Problem

TuneTarget: TypeAlias = tuple[Unit, Problem]


def equal_units(unit: Unit, units: Sequence[Unit]) -> list[Unit]:
    """The unit, and the others whose device is of the same model and environment: what one measures holds for all."""
    place = unit.device.model, unit.device.environment
    others = [one for one in units if one is not unit and (one.device.model, one.device.environment) == place]
    return [unit, *(one for one in others if one.trials.takes_calls)]


class RunningJob:
    """A job whose shapes are tuned by the threads of one or more devices; every method is for any thread.

    A shape is tuned by the device of its target; a job that `spec` spreads, by any device equal to it. `results` are
    its shapes' so far, by number.
    """

    def __init__(
        self,
        job: JobRecord,
        spec: TuneSpec,
        progress: JobProgress,
        targets: Sequence[TuneTarget],
        units: Sequence[Unit],
    ) -> None:
        self.job, self.spec, self.progress, self.targets = job, spec, progress, targets
        self.results: dict[int, dict[str, Any]] = {}
        self._takes = [equal_units(unit, units) if spec.spread else [unit] for unit, _ in targets]
        self._lock = threading.Lock()
        self._devices = 0
        self._started: bool | None = None
        self._over = False

    @property
    def device_ids(self) -> list[str]:
        """The devices that may take part, those of the job's targets first."""
        own, others = [takes[0] for takes in self._takes], [unit for takes in self._takes for unit in takes[1:]]
        return list(dict.fromkeys(unit.device.id for unit in [*own, *others]))

    @property
    def is_worked_on(self) -> bool:
        """Whether a device takes part."""
        with self._lock:
            return self._devices > 0

    @property
    def is_over(self) -> bool:
        """Whether somebody has ended the job, or left it for the next start of the service."""
        with self._lock:
            return self._over

    def join(self) -> bool:
        """Take part in the job; False if it is over."""
        with self._lock:
            self._devices += not self._over
            return not self._over

    def leave(self) -> bool:
        """Take part no more; True for the one that is to end the job, since nobody does and nothing is left to do."""
        with self._lock:
            self._devices -= 1
            if self._devices or self._over or not self._is_done():
                return False
            self._over = True
            return True

    def start(self, write: Callable[[], bool]) -> bool:
        """Call `write` once, whoever comes first; gives what it gave: whether the job was not cancelled before."""
        with self._lock:
            if self._started is None:
                self._started = write()
            return self._started

    def has_work(self, unit: Unit) -> bool:
        """Whether a shape is left that a unit may tune and nobody is at."""
        return any(unit in self._takes[shape] for shape in self.progress.free_shapes())

    def claim(self, unit: Unit) -> ShapeProgress | None:
        """Begin the next shape on a unit; None if there is none for it, or the job is interrupted.

        What an equal device can tune is left to it by one that takes no calls.
        """

        def takes(shape: int) -> bool:
            units = self._takes[shape]
            others = (one for one in units if one is not unit and one.trials.takes_calls)
            return unit in units and (unit.trials.takes_calls or not any(others))

        return self.progress.claim(takes, unit.device.id)

    def _is_done(self) -> bool:
        pending = self.progress.pending_shapes()
        return not pending or self.progress.interrupted() or self._started is False
