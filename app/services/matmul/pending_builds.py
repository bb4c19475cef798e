"""PendingBuilds: how many kernels a device's serving worker is to build before the products that wait behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from app.devices.fleet import Unit
from app.worker.serving.product import LaunchClass, class_of
from kernels.launch import Launch

_MOST: Final = 2  # classes that are built at a time, for each that the device's compilers build at once
_REMEMBERED: Final = 4096  # classes


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
