"""Dynamic batching: a queue a device, one launch at a time; small products of one shape may share a launch.

A product never waits for others to come. Those that wait while the device is busy anyway are made by one launch of the
first one's own config, with the batch that they make: every element is summed up in the same order, bit for bit, and no
product reads another's operands.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic, perf_counter
from typing import Final

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.process import NEVER, CallLimit, CallStopped, PendingCall
from app.errors import Cancelled, DeviceError, TilewiseError
from app.services.matmul.batch_cost import BatchCostModel
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.worker.serving import batched, product
from kernels import CATALOGUE
from kernels.device import Device
from kernels.launch import Launch

_LOG: Final = logging.getLogger(__name__)
DEADLINE: Final = 15.0  # seconds a child may take before it names its first phase, or takes the device
_SMALL: Final = 2**20  # bytes of a product above which the way to the device is the smaller part of its time
_ALL: Final = 2**23  # bytes of those that are made together
_GRACE: Final = 0.8  # seconds that the launch of a product has to end once it is cancelled: a new child takes two


def nothing() -> None:
    """Be told that a product has begun, and do nothing."""


class CancelToken:
    """One product's claim to be made, which may be cancelled; `begun` is called once its launch is on its way."""

    def __init__(self, begun: Callable[[], None] = nothing) -> None:
        self.begun, self.is_cancelled = begun, False
        self._entry: QueuedProduct | None = None
        self._stop = NEVER

    def cancel(self, *, kill: bool = False) -> None:
        """Have the product not be made: it leaves the queue at once, or what is being made is dropped at its end.

        A launch cannot be broken off politely. With `kill`, the child that makes it is killed, where it makes nobody
        else's product and the launch has not ended within a second.
        """
        self.is_cancelled = True
        if kill:
            now = monotonic()
            self._stop = CallLimit(now, now + _GRACE)
        entry = self._entry
        if entry is not None:
            entry.queue.cancel(entry)

    def until(self) -> CallLimit:
        """When the child is to end the product, and when it is killed."""
        return self._stop

    def entered(self, entry: QueuedProduct) -> None:
        """Take note of the place in the queue; raises Cancelled where that is not wanted any more."""
        self._entry = entry
        self.raise_if_cancelled()

    def left(self) -> None:
        """Forget the place, which knows the claim: neither waits for the garbage collector then."""
        self._entry = None

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled where the claim was."""
        if self.is_cancelled:
            raise Cancelled("the product was cancelled")


@dataclass(eq=False)
class QueuedProduct:
    """A place in a queue: `turn` is set when the entry leads, was made beside another, or was cancelled."""

    queue: DeviceQueue
    order: product.MultiplyRequest
    claim: CancelToken
    may_batch: bool
    turn: threading.Event
    outcome: tuple[product.MultiplyResult, int] | None = None


class DeviceQueue:
    """Who waits for one device: first come first served."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._lock = threading.Lock()
        self._waiting: deque[QueuedProduct] = deque()
        self._inside: list[QueuedProduct] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inside)

    def join(self, entry: QueuedProduct) -> None:
        """Take the last place, and wait for the turn; raises Cancelled."""
        with self._lock:
            entry.claim.entered(entry)
            self._waiting.append(entry)
            if not self._inside:
                self._advance()
        entry.turn.wait()
        if entry.outcome is None and entry.claim.is_cancelled:
            self._pass_on(entry)
            entry.claim.raise_if_cancelled()

    def try_lead(self, entry: QueuedProduct) -> bool:
        """Let the entry lead where nobody is in the queue; whether it does."""
        with self._lock:
            if len(self):
                return False
            self._inside = [entry]
            return True

    def take_batch(self, leader: QueuedProduct, most: Callable[[int], int]) -> list[QueuedProduct]:
        """The leader and those that its launch can make as well; `most` says how many of so many it should."""
        with self._lock:
            alike = [one for one in self._waiting if one.may_batch and one.order.launch == leader.order.launch]
            chosen = alike[: most(len(alike) + 1) - 1] if alike else []
            for one in chosen:
                self._waiting.remove(one)
            self._inside = [leader, *chosen]
            return list(self._inside)

    def finish(self, others: list[QueuedProduct]) -> None:
        """Give the turn to the next; of the `others` of a launch, those that it did not make go first, each alone."""
        with self._lock:
            for one in reversed(others):
                one.may_batch = False
                if one.outcome is None and not one.claim.is_cancelled:
                    self._waiting.appendleft(one)
                else:
                    one.turn.set()
            self._advance()

    def cancel(self, entry: QueuedProduct) -> None:
        """Have the entry's product not be made where it still waits."""
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
                entry.turn.set()

    def _pass_on(self, entry: QueuedProduct) -> None:
        """Let the next one lead where this one would: it was cancelled while it was given the lead."""
        with self._lock:
            if self._inside == [entry]:
                self._advance()

    def _advance(self) -> None:
        """Let the first that waits lead; called under the lock."""
        self._inside = [self._waiting.popleft()] if self._waiting else []
        for one in self._inside:
            one.turn.set()


class DynamicBatcher:
    """The queues of all devices. `most` is how many products one launch may make; 1: none beside another."""

    def __init__(self, units: tuple[Unit, ...], rates: BatchCostModel, copies: DeviceCacheDirectory, most: int) -> None:
        self._queues = {unit.device.id: DeviceQueue(unit) for unit in units}
        self._rates, self._copies, self._most = rates, copies, most
        self._failed: set[tuple[str, Launch]] = set()  # launches of several that failed: each is made alone since

    def waiting(self, unit: Unit) -> int:
        """How many products are in the unit's queue, with those that are being made."""
        return len(self._queues[unit.device.id])

    def run(self, unit: Unit, order: product.MultiplyRequest, claim: CancelToken) -> tuple[product.MultiplyResult, int]:
        """Wait for the turn and make the product, with others where that is faster; gives the seconds, and how many.

        The seconds are the launch's, of all that it made; one that declined made nothing. A product with a resident
        operand, which need not come to the device, is made alone. Raises Cancelled, and what `product.multiply` raises.
        """
        small = order.launch is not None and order.problem.bytes <= _SMALL and order.keys == (None, None, None)
        queue = self._queues[unit.device.id]
        entry = QueuedProduct(queue, order, claim, small and self._most > 1, threading.Event())
        try:
            queue.join(entry)
            return entry.outcome or self._lead(queue, entry)
        finally:
            claim.left()

    def begin(self, unit: Unit, order: product.MultiplyRequest) -> PendingCall[product.MultiplyResult] | None:
        """Have a product begun, without waiting for anything; None where somebody is before it, or in the child."""
        queue = self._queues[unit.device.id]
        if not queue.try_lead(QueuedProduct(queue, order, CancelToken(), may_batch=False, turn=threading.Event())):
            return None
        started, begun = perf_counter(), self._copies.begin(unit, order, DEADLINE)
        if begun is None:
            queue.finish([])
            return None

        def ended(finish: Callable[[], product.MultiplyResult]) -> product.MultiplyResult:
            try:
                return self._learnt(unit, order, finish(), started)
            finally:
                queue.finish([])

        return begun.then(ended)

    def _lead(self, queue: DeviceQueue, entry: QueuedProduct) -> tuple[product.MultiplyResult, int]:
        group = [entry]
        try:
            if entry.may_batch:
                group = queue.take_batch(entry, lambda count: self._best(queue.unit, entry.order, count))
            if len(group) > 1:
                try:
                    self._run_batch(queue.unit, group)
                except TilewiseError as error:  # each is made again, alone, and hears what is wrong
                    self._note(queue.unit, group, error)
            entry.outcome = entry.outcome or (self._alone(queue.unit, entry), 1)
            return entry.outcome
        finally:
            queue.finish(group[1:])

    def _alone(self, unit: Unit, entry: QueuedProduct) -> product.MultiplyResult:
        entry.claim.begun()
        started = perf_counter()
        try:
            spent = self._copies.multiply(unit, entry.order, DEADLINE, entry.claim.until)
        except CallStopped:
            raise Cancelled("the product was cancelled") from None
        return self._learnt(unit, entry.order, spent, started)

    def _learnt(
        self, unit: Unit, order: product.MultiplyRequest, spent: product.MultiplyResult, started: float
    ) -> product.MultiplyResult:
        if not spent.declined:
            self._rates.learn(unit.device.id, order.problem, 1, spent, perf_counter() - started)
        return spent

    def _run_batch(self, unit: Unit, group: list[QueuedProduct]) -> None:
        alone = group[0].order.launch
        launch = None if alone is None else _launch(alone, unit.device, len(group))
        if launch is None:
            return
        for one in group:
            one.claim.begun()
        orders, started = tuple(one.order for one in group), perf_counter()
        spent: product.MultiplyResult = unit.products.call(
            batched.multiply, orders, launch, priority=Priority.PRODUCT, deadline=DEADLINE, leased=True
        )
        if spent.declined:
            return  # each is made again, alone
        self._rates.learn(unit.device.id, group[0].order.problem, len(group), spent, perf_counter() - started)
        for one in group:
            one.outcome = spent, len(group)

    def _note(self, unit: Unit, group: list[QueuedProduct], error: TilewiseError) -> None:
        """Make no more products by a launch of several that has failed."""
        alone = group[0].order.launch
        launch = None if alone is None else _launch(alone, unit.device, len(group))
        if launch is not None and isinstance(error, DeviceError) and not error.facts.get("outside"):
            _LOG.warning("%s %s makes no %d products together: %s", launch.kernel, launch.config, len(group), error)
            self._failed.add((unit.device.id, launch))

    def _best(self, unit: Unit, order: product.MultiplyRequest, count: int) -> int:
        """How many of `count` products of the same launch are best made at once: a power of two, so that few differ."""
        if order.launch is None:
            return 1
        most = min(count, self._most, _ALL // order.problem.bytes)
        sizes = [2**power for power in range(1, most.bit_length())]
        launches = {size: _launch(order.launch, unit.device, size) for size in sizes}
        usable = {size: one for size, one in launches.items() if one and (unit.device.id, one) not in self._failed}
        return self._rates.best(unit.device, order.launch, usable)


@lru_cache(1024)
def _launch(alone: Launch, device: Device, count: int) -> Launch | None:
    """The launch of the same config that makes so many products at once, or None where the space refuses it."""
    problem = replace(alone.problem, batch=alone.problem.batch * count)
    try:
        return CATALOGUE[alone.kernel].launch(alone.config, problem, device)
    except ValueError:
        return None
