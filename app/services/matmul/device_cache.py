"""Tracks which resident matrices each worker caches on its device."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count

from app.devices.fleet import Fleet, Unit
from app.devices.lease import Priority
from app.devices.process import PendingCall, Until, never
from app.errors import TilewiseError
from app.worker.serving import product
from app.worker.serving.product import MultiplyRequest, MultiplyResult

_FORGETTING = 30.0  # seconds that dropping copies may take


@dataclass(slots=True)
class _WorkerCache:
    """Of one device: its child's generation, the keys it keeps, and those it has yet to be told are gone."""

    generation: int = 0
    kept: frozenset[int] = frozenset()
    gone: tuple[int, ...] = ()


class DeviceCacheDirectory:
    """Hands orders to serving children and knows which copies they keep; safe from any thread.

    `budget` is in bytes a device. `hits` counts resident operands that were on the device already, `loads` those that
    were copied to it.
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

    def multiply(self, unit: Unit, order: MultiplyRequest, deadline: float, until: Until = never) -> MultiplyResult:
        """Have a serving child make a product, `until` then; raises as its call does."""
        whole = self._whole(unit, order)
        spent: MultiplyResult = unit.products.call(
            product.multiply, whole, priority=Priority.PRODUCT, deadline=deadline, leased=True, until=until
        )
        return self._spent(unit, order, spent)

    def begin(self, unit: Unit, order: MultiplyRequest, deadline: float) -> PendingCall[MultiplyResult] | None:
        """Have a serving child begin a product, without waiting for anything; None where it is not free."""
        if self._known[unit.device.id].gone:  # that goes first
            return None
        begun = unit.products.begin(
            product.multiply, replace(order, budget=self._budget), priority=Priority.PRODUCT, deadline=deadline
        )
        return begun.then(lambda finish: self._spent(unit, order, finish())) if begun else None

    def _whole(self, unit: Unit, order: MultiplyRequest) -> MultiplyRequest:
        """The order with what its child is to forget and may keep."""
        sizes = (order.problem.a_bytes, order.problem.b_bytes, order.problem.c_bytes)
        with self._lock:
            self._sizes |= {key: size for key, size in zip(order.keys, sizes, strict=True) if key is not None}
            gone = self._take(unit)
        return replace(order, gone=gone, budget=self._budget)

    def _spent(self, unit: Unit, order: MultiplyRequest, spent: MultiplyResult) -> MultiplyResult:
        """Take note of what a child keeps after a product."""
        used = {key for key in order.keys[:2] if key is not None}
        with self._lock:
            self.loads += spent.loaded
            self.hits += len(used) - spent.loaded
            self._told(unit, spent.kept)
        return spent

    def held(self, unit: Unit, keys: Collection[int | None]) -> int:
        """Bytes of some matrices that a device has copies of."""
        with self._lock:
            return sum(self._sizes.get(key, 0) for key in self._kept(unit) if key in keys)

    def devices(self, key: int) -> list[str]:
        """The devices that have a copy of a matrix."""
        with self._lock:
            return [device_id for device_id, unit in self._units.items() if key in self._kept(unit)]

    def bytes(self) -> dict[str, int]:
        """Bytes of copies by device."""
        with self._lock:
            return {
                device_id: sum(self._sizes.get(key, 0) for key in self._kept(unit))
                for device_id, unit in self._units.items()
            }

    def drop(self, key: int) -> None:
        """Have every device drop its copy of a matrix that is gone: with its next product, or soon."""
        with self._lock:
            if self._sizes.pop(key, None) is None:
                return
        self._tell(self._units, key)

    def key(self) -> int:
        """A key that no matrix has, for what is on its way to a device or from it."""
        return next(self._keys)

    def let_go(self, unit: Unit, key: int) -> None:
        """Have a device drop what it has of such a key: with its next product, or soon."""
        self._tell([unit.device.id], key)

    def _tell(self, device_ids: Iterable[str], key: int) -> None:
        with self._lock:
            for device_id in device_ids:
                self._known[device_id].gone += (key,)
            if self._sweeping:
                return
            self._sweeping = True
        threading.Thread(target=self._sweep, name="forgetting", daemon=True).start()

    def _sweep(self) -> None:
        """Tell every child what is gone, until there is nothing to tell."""
        while told := self._next():
            unit, gone = told
            try:
                kept = unit.products.call(product.forget, gone, priority=Priority.PRODUCT, deadline=_FORGETTING)
            except TilewiseError:  # its copies went with it
                continue
            with self._lock:
                self._told(unit, kept)

    def _next(self) -> tuple[Unit, tuple[int, ...]] | None:
        with self._lock:
            for device_id, known in self._known.items():
                if known.gone:
                    return self._units[device_id], self._take(self._units[device_id])
            self._sweeping = False
            return None

    def _take(self, unit: Unit) -> tuple[int, ...]:
        known = self._known[unit.device.id]
        gone, known.gone = known.gone, ()
        return gone

    def _told(self, unit: Unit, kept: tuple[int, ...]) -> None:
        known = self._known[unit.device.id]
        known.generation, known.kept = unit.products.generation, frozenset(kept)

    def _kept(self, unit: Unit) -> frozenset[int]:
        """The keys that a child keeps: a new one has none."""
        known = self._known[unit.device.id]
        return known.kept if known.generation == unit.products.generation else frozenset()
