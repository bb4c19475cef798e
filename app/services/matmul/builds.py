"""What serving workers have built, what products wait for to be built, and how long that may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from app.devices.fleet import Unit
from app.worker.serving.launch_class import LaunchClass, class_of
from kernels.launch import Launch

_MOST: Final = 2  # classes that are built at a time, for each that the device's compilers build at once
_REMEMBERED: Final = 4096  # classes
_SLOWER: Final = 8.0  # times the slowest build that was seen to end: one that takes longer is taken for hung
_FIRST: Final = 60.0  # seconds for a build while none has been seen to end
_LONGEST: Final = 120.0


class PendingBuilds:
    """The launch classes that serving workers have built, and those that products wait for; safe from any thread.

    A class takes a second or more to compile, and a device's products are made one after the other: where many classes
    come at once, as after a start, the last would wait for all of them. So few are built at a time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._built: dict[str, tuple[int, set[LaunchClass]]] = {}  # by device: those of a generation of its worker
        self._pending: dict[str, Counter[LaunchClass]] = {}

    def is_built(self, unit: Unit, launch: Launch) -> bool:
        """Whether the serving worker of now has built a launch's class."""
        generation, built = self._built.get(unit.device.id, (-1, set()))
        return generation == unit.products.generation and class_of(launch) in built

    def learn(self, unit: Unit, launch: Launch | None) -> None:
        """Learn that the serving worker has built a launch's class."""
        if launch is None or self.is_built(unit, launch):
            return
        with self._lock:
            generation, built = self._built.get(unit.device.id, (-1, set()))
            if generation != unit.products.generation or len(built) >= _REMEMBERED:
                built = set()
            self._built[unit.device.id] = unit.products.generation, built | {class_of(launch)}

    @contextmanager
    def place(self, unit: Unit, launch: Launch | None) -> Iterator[bool]:
        """Whether a product may have its launch built, inside the block: not while enough other classes are."""
        if launch is None or self.is_built(unit, launch):
            yield True
            return
        kind = class_of(launch)
        with self._lock:
            pending = self._pending.setdefault(unit.device.id, Counter())
            has_place = kind in pending or len(pending) < _MOST * unit.width
            if has_place:
                pending[kind] += 1
        try:
            yield has_place
        finally:
            if has_place:
                self._leave(pending, kind)

    def _leave(self, pending: Counter[LaunchClass], kind: LaunchClass) -> None:
        with self._lock:
            pending[kind] -= 1
            if not pending[kind]:
                del pending[kind]


class BuildDeadlines:
    """How long a device's builds may take, by what they took so far; safe from any thread."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}
        self._lock = Lock()

    def learn(self, unit: Unit, seconds: float) -> None:
        """Learn how long a compilation with its verification took."""
        if seconds:
            with self._lock:
                self._slowest[unit.device.id] = max(seconds, self._slowest.get(unit.device.id, 0.0))

    def seconds(self, unit: Unit, least: float) -> float:
        """Seconds for the next one, `least` or more."""
        slowest = self._slowest.get(unit.device.id)
        return _FIRST if slowest is None else min(_LONGEST, max(least, _SLOWER * slowest))
