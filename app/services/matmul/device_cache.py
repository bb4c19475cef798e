"""Tracks which resident matrices each worker caches on its device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count
from time import sleep
from typing import Final

from app.devices.fleet import Fleet, Unit
from app.devices.lease import Priority
from app.devices.process import PendingCall, Until, never
from app.errors import TilewiseError
from app.worker.serving import product
from app.worker.serving.product import MultiplyRequest, MultiplyResult

_FORGETTING = 30.0  # seconds that dropping copies may take
_KEPT: Final = 1.0  # seconds in which the next product may come that uses what one left; an idle device tunes later


@dataclass(slots=True)
class _WorkerCache:
    """Of one device: its worker's generation, the keys it caches, and those that it is still to evict."""

    generation: int = 0
    kept: frozenset[int] = frozenset()
    evict: tuple[int, ...] = ()


class DeviceCacheDirectory:
    """Sends requests to serving workers and tracks which copies they cache; safe from any thread.

    `budget` is in bytes a device. `hits` counts resident operands that were on the device, `loads` those that were
    copied to it.
    """

    def __init__(self, fleet: Fleet, budget: int) -> None:
        self.hits = self.loads = 0
        self._units = {unit.device.id: unit for unit in fleet.units}
        self._budget = budget
        self._known = {device_id: _WorkerCache() for device_id in self._units}
        self._sizes: dict[int, int] = {}
        self._keys = count(-1, -1)
        self._lock = threading.Lock()
        self._sweeping = False

    def multiply(
        self,
        unit: Unit,
        request: MultiplyRequest,
        deadline: float,
        until: Until = never,
        more: Callable[[], tuple[MultiplyRequest, ...]] | None = None,
    ) -> MultiplyResult:
        """Make a product in a serving worker, `until` then, with the tiles that `more` gives; raises as its call."""
        complete, given = self._complete(unit, request), Priority.PRODUCT
        result: MultiplyResult = unit.products.call(
            product.multiply, complete, priority=given, deadline=deadline, leased=True, until=until, more=more
        )
        return self._update(unit, request, result)

    def begin(self, unit: Unit, request: MultiplyRequest, deadline: float) -> PendingCall[MultiplyResult] | None:
        """Begin a product in a serving worker without waiting; None if it is not free."""
        if self._known[unit.device.id].evict:  # that goes first
            return None
        begun = unit.products.begin(
            product.multiply, replace(request, budget=self._budget), priority=Priority.PRODUCT, deadline=deadline
        )
        return begun.then(lambda finish: self._update(unit, request, finish())) if begun else None

    def _complete(self, unit: Unit, request: MultiplyRequest) -> MultiplyRequest:
        """The request with the keys that its worker is to evict, and its budget."""
        sizes = (request.problem.a_bytes, request.problem.b_bytes, request.problem.c_bytes)
        with self._lock:
            self._sizes |= {key: size for key, size in zip(request.keys, sizes, strict=True) if key is not None}
            evict = self._take_evictions(unit)
        return replace(request, evict=evict, budget=self._budget)

    def _update(self, unit: Unit, request: MultiplyRequest, result: MultiplyResult) -> MultiplyResult:
        """Update the keys that a worker caches after a product."""
        used = {key for key in request.keys[:2] if key is not None}
        with self._lock:
            self.loads += result.loaded
            self.hits += len(used) - result.loaded
            self._set_keys(unit, result.kept)
        return result

    def cached_bytes(self, unit: Unit, keys: Collection[int | None]) -> int:
        """Bytes of matrices that a device has copies of."""
        with self._lock:
            return sum(self._sizes.get(key, 0) for key in self._keys_of(unit) if key in keys)

    def devices(self, key: int) -> list[str]:
        """The devices that have a copy of a matrix."""
        with self._lock:
            return [device_id for device_id, unit in self._units.items() if key in self._keys_of(unit)]

    def bytes(self) -> dict[str, int]:
        """Bytes of copies by device."""
        with self._lock:
            return {
                device_id: sum(self._sizes.get(key, 0) for key in self._keys_of(unit))
                for device_id, unit in self._units.items()
            }

    def drop(self, key: int) -> None:
        """Have every device evict its copy of a matrix: with its next product, or soon."""
        with self._lock:
            if self._sizes.pop(key, None) is None:
                return
        self._evict(self._units, key)

    def new_key(self) -> int:
        """A key that no matrix has, for a chunked transfer."""
        return next(self._keys)

    def release(self, unit: Unit, key: int) -> None:
        """Have a device evict what it has of such a key: with its next product, or soon."""
        self._evict([unit.device.id], key)

    def release_later(self, unit: Unit, keys: tuple[int, ...]) -> None:
        """The same of several keys with its next product, which may use that memory, or in a second."""
        with self._lock:
            self._known[unit.device.id].evict += keys

        def sweep() -> None:
            sleep(_KEPT)
            self.sweep()

        threading.Thread(target=sweep, name="device cache", daemon=True).start()

    def sweep(self) -> None:
        """Have the workers evict soon what is left to evict."""
        with self._lock:
            if self._sweeping or not any(known.evict for known in self._known.values()):
                return
            self._sweeping = True
        threading.Thread(target=self._sweep, name="device cache", daemon=True).start()

    def _evict(self, device_ids: Iterable[str], key: int) -> None:
        with self._lock:
            for device_id in device_ids:
                self._known[device_id].evict += (key,)
        self.sweep()

    def _sweep(self) -> None:
        """Have the workers evict what is left to evict."""
        while told := self._next():
            unit, evict = told
            try:
                kept = unit.products.call(product.forget, evict, priority=Priority.PRODUCT, deadline=_FORGETTING)
            except TilewiseError:  # its copies went with it
                continue
            with self._lock:
                self._set_keys(unit, kept)

    def _next(self) -> tuple[Unit, tuple[int, ...]] | None:
        with self._lock:
            for device_id, known in self._known.items():
                if known.evict:
                    return self._units[device_id], self._take_evictions(self._units[device_id])
            self._sweeping = False
            return None

    def _take_evictions(self, unit: Unit) -> tuple[int, ...]:
        known = self._known[unit.device.id]
        evict, known.evict = known.evict, ()
        return evict

    def _set_keys(self, unit: Unit, kept: tuple[int, ...]) -> None:
        known = self._known[unit.device.id]
        known.generation, known.kept = unit.products.generation, frozenset(kept)

    def _keys_of(self, unit: Unit) -> frozenset[int]:
        """The keys that a worker caches: a new one has none."""
        known = self._known[unit.device.id]
        return known.kept if known.generation == unit.products.generation else frozenset()
