"""Dynamic batching: a queue a device, one launch at a time; small products of one shape may share a launch.

A product never waits for others to arrive. Those that queue while the device is busy are made by one launch of the
first one's config with a batch: every element is summed up in the same order, bit for bit, and no product reads
another's operands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf
from time import monotonic, perf_counter
from typing import Final, TypeAlias

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.process import CallStopped, PendingCall
from app.errors import Cancelled, DeviceError, TilewiseError
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.device_queue import CancelToken, DeviceQueue, More, QueuedProduct
from app.worker.serving import batched
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem

LaunchOf: TypeAlias = Callable[[Problem, Unit], Launch | None]

_LOG: Final = logging.getLogger(__name__)
DEADLINE: Final = 15.0  # seconds a worker may take before it names its first phase, or takes the device
_SMALL: Final = 2**20  # bytes of a product above which the way to the device is the smaller part of its time
_ALL: Final = 2**23  # bytes of those that are made together
_MEMORY: Final = 0.2  # weight of the newest sample
_RISE: Final = 1.05  # how much faster than its samples the least overhead is forgotten
_FRESH: Final = 60.0  # seconds after which what was slow together is tried again
_REMEMBERED: Final = 4096  # problems
_LINK: Final = 1e10  # bytes a second of a device's copies, before any was measured: PCIe 3.0 has 12 to 16
# Seconds that a product is answered later, at most, because others are made with it.
WAIT: Final = 0.01


class DynamicBatcher:
    """The queues of all devices. One launch makes at most `max_batch` products; 1 disables batching."""

    def __init__(
        self, units: tuple[Unit, ...], costs: BatchCostModel, cache: DeviceCacheDirectory, max_batch: int
    ) -> None:
        self._queues = {unit.device.id: DeviceQueue(unit) for unit in units}
        self._costs, self._cache, self._max_batch = costs, cache, max_batch
        self._failed: set[tuple[str, Launch]] = set()  # launches of several that failed: each is made alone since

    def queue(self, unit: Unit) -> DeviceQueue:
        """A device's queue."""
        return self._queues[unit.device.id]

    def waiting(self, unit: Unit) -> int:
        """How many products are in a device's queue, those that are being made included."""
        return len(self.queue(unit))

    def soonest(
        self, units: Sequence[Unit], problem: Problem, launch: LaunchOf, present: Callable[[Unit], int]
    ) -> Unit:
        """The unit that is forecast to end a product first: what is in its queue, and the product's own launch.

        `launch` gives a unit's launch, None if it has none; `present` the bytes of the operands that it has already.
        """
        if len(units) == 1:
            return units[0]

        def ends(unit: Unit) -> tuple[float, int]:
            own = launch(problem, unit)
            seconds = inf if own is None else self._costs.forecast(unit.device, own, problem, present(unit))
            return self.queue(unit).seconds() + seconds, self.waiting(unit)

        return min(units, key=ends)

    def run(
        self, unit: Unit, request: MultiplyRequest, token: CancelToken, principal: str = "", more: More | None = None
    ) -> tuple[MultiplyResult, int]:
        """Wait for the turn and make the product, in a batch if that is faster; gives the result, and the batch's size.

        The seconds are the launch's, of the whole batch; a launch that declined made nothing. A product with a resident
        operand, which need not be uploaded, is made alone; a tile with those that there are `more` of. Raises
        Cancelled, and what `product.multiply` raises.
        """
        small = request.launch is not None and request.problem.bytes <= _SMALL and request.keys == (None, None, None)
        small = small and request.tile is None and request.sketch is None
        queue = self.queue(unit)
        may_batch = small and self._max_batch > 1
        entry = QueuedProduct(queue, request, token, may_batch, threading.Event(), principal=principal)
        entry.more = None if more is None else partial(self._more, entry, more)
        self._expect(entry, request)
        try:
            queue.join(entry)
            return entry.outcome or self._run_leader(queue, entry)
        finally:
            token.left(entry)

    def _more(self, entry: QueuedProduct, more: More) -> tuple[MultiplyRequest, ...]:
        requests = more()
        self._expect(entry, *requests)
        return requests

    def _expect(self, entry: QueuedProduct, *requests: MultiplyRequest) -> None:
        """Forecast what an entry will take, where others choose between devices."""
        if len(self._queues) > 1:
            device = entry.queue.unit.device
            entry.seconds += sum(self._costs.forecast(device, each.launch, each.problem) for each in requests)

    def begin(self, unit: Unit, request: MultiplyRequest) -> PendingCall[MultiplyResult] | None:
        """Begin a product without waiting; None if the queue is not empty, or the worker is busy."""
        queue = self.queue(unit)
        if not queue.try_lead(QueuedProduct(queue, request, CancelToken(), may_batch=False, turn=threading.Event())):
            return None
        started, begun = perf_counter(), self._cache.begin(unit, request, DEADLINE)
        if begun is None:
            queue.finish([])
            return None

        def ended(finish: Callable[[], MultiplyResult]) -> MultiplyResult:
            try:
                return self._learn(unit, request, finish(), started)
            finally:
                queue.finish([])

        return begun.then(ended)

    def _run_leader(self, queue: DeviceQueue, entry: QueuedProduct) -> tuple[MultiplyResult, int]:
        group = [entry]
        try:
            if entry.may_batch:
                group = queue.take_batch(entry, lambda count: self._best_size(queue.unit, entry.request, count))
            if len(group) > 1:
                try:
                    self._run_batch(queue.unit, group)
                except TilewiseError as error:  # each is made again, alone, and hears what is wrong
                    self._remember_failure(queue.unit, group, error)
            entry.outcome = entry.outcome or (self._run_alone(queue.unit, entry), 1)
            return entry.outcome
        finally:
            queue.finish(group[1:])

    def _run_alone(self, unit: Unit, entry: QueuedProduct) -> MultiplyResult:
        entry.token.begun()
        started = perf_counter()
        try:
            result = self._cache.multiply(unit, entry.request, DEADLINE, entry.token.until, entry.more)
        except CallStopped:
            raise Cancelled("the product was cancelled") from None
        return self._learn(unit, entry.request, result, started)

    def _learn(self, unit: Unit, request: MultiplyRequest, result: MultiplyResult, started: float) -> MultiplyResult:
        if not result.decline_flags:
            self._costs.learn(unit.device.id, request.problem, 1, result, perf_counter() - started)
        return result

    def _run_batch(self, unit: Unit, group: list[QueuedProduct]) -> None:
        alone = group[0].request.launch
        launch = None if alone is None else _launch(alone, unit.device, len(group))
        if launch is None:
            return
        for one in group:
            one.token.begun()
        requests, started = tuple(one.request for one in group), perf_counter()
        result: MultiplyResult = unit.products.call(
            batched.multiply, requests, launch, priority=Priority.PRODUCT, deadline=DEADLINE, leased=True
        )
        if result.decline_flags:
            return  # each is made again, alone
        self._costs.learn(unit.device.id, group[0].request.problem, len(group), result, perf_counter() - started)
        for one in group:
            one.outcome = result, len(group)

    def _remember_failure(self, unit: Unit, group: list[QueuedProduct], error: TilewiseError) -> None:
        """Remember a batched launch that failed: its products are made alone from now on."""
        alone = group[0].request.launch
        launch = None if alone is None else _launch(alone, unit.device, len(group))
        if launch is not None and isinstance(error, DeviceError) and not error.facts.get("outside"):
            _LOG.warning("%s %s makes no %d products together: %s", launch.kernel, launch.config, len(group), error)
            self._failed.add((unit.device.id, launch))

    def _best_size(self, unit: Unit, request: MultiplyRequest, count: int) -> int:
        """The best batch of `count` products of one launch: a power of two, so that there are few launches."""
        if request.launch is None:
            return 1
        most = min(count, self._max_batch, _ALL // request.problem.bytes)
        sizes = [2**power for power in range(1, most.bit_length())]
        launches = {size: _launch(request.launch, unit.device, size) for size in sizes}
        usable = {size: one for size, one in launches.items() if one and (unit.device.id, one) not in self._failed}
        return self._costs.best(unit.device, request.launch, usable)


@lru_cache(1024)
def _launch(alone: Launch, device: Device, count: int) -> Launch | None:
    """The launch of the same config for a batch, or None if the space refuses it."""
    problem = replace(alone.problem, batch=alone.problem.batch * count)
    try:
        return CATALOGUE[alone.kernel].launch(alone.config, problem, device)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Alone:
    """Seconds of one product: what a call costs beside its phases, the copies, the kernel."""

    call: float
    copies: float
    kernel: float

    @property
    def total(self) -> float:
        return self.call + self.copies + self.kernel


class BatchCostModel:
    """Learns what a product takes alone and in a batch, by device and problem; safe from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._alone: dict[tuple[str, Problem], _Alone] = {}
        self._together: dict[tuple[str, Problem, int], tuple[float, float]] = {}
        self._rates: dict[str, float] = {}  # bytes a second of a device's copies
        self._lock, self._clock = threading.Lock(), clock

    def forecast(self, device: Device, launch: Launch | None, problem: Problem, present: int = 0) -> float:
        """Seconds of one product alone, of which `present` bytes need not be copied.

        Where none was made yet, the cost model's for the launch, and copies as fast as others of the device were.
        """
        left = 1 - min(1.0, present / max(1, problem.bytes))
        with self._lock:
            known = self._alone.get((device.id, problem))
            rate = self._rates.get(device.id, _LINK)
        if known is not None:
            return known.call + known.kernel + left * known.copies
        return left * problem.bytes / rate + (0.0 if launch is None else _predicted(launch, device))

    def learn(self, device_id: str, problem: Problem, count: int, result: MultiplyResult, seconds: float) -> None:
        """Learn from a call that made `count` products of a problem: its phases, and its seconds in all."""
        phases = result.h2d + result.kernel + result.d2h
        seconds -= result.spent - phases
        with self._lock:
            if count > 1:
                before, _ = self._together.get((device_id, problem, count), (phases, 0.0))
                self._together[device_id, problem, count] = _mixed(before, phases), self._clock()
            else:
                self._learn_alone((device_id, problem), result, max(0.0, seconds - phases - result.build))
                copies = result.h2d + result.d2h
                if copies > 0 and problem.bytes > _SMALL:
                    rate = problem.bytes / copies
                    self._rates[device_id] = _mixed(self._rates.get(device_id, rate), rate)
            for kept in (self._alone, self._together):
                if len(kept) > _REMEMBERED:
                    kept.clear()

    def best(self, device: Device, launch: Launch, together: Mapping[int, Launch]) -> int:
        """The fastest batch size, 1 if no launch of `together` beats a launch for each product.

        It is 1 until a product was made alone. No product is answered more than WAIT later because of a batch.
        """
        with self._lock:
            alone = self._alone.get((device.id, launch.problem))
            if alone is None:
                return 1
            taken = {1: alone.total}
            for count, one in together.items():
                measured, when = self._together.get((device.id, launch.problem, count), (0.0, 0.0))
                fresh = when and self._clock() - when < _FRESH
                taken[count] = alone.call + (measured if fresh else _expected(alone, device, launch, one, count))
        allowed = [count for count, seconds in taken.items() if count == 1 or seconds <= alone.total + WAIT]
        return min(allowed, key=lambda count: taken[count] / count)

    def _learn_alone(self, key: tuple[str, Problem], result: MultiplyResult, call: float) -> None:
        copies, known = result.h2d + result.d2h, self._alone.get(key)
        if known is None:
            self._alone[key] = _Alone(call, copies, result.kernel)
        else:
            # A call may wait for the device: what it costs is the least that it was seen to.
            least = min(call, known.call * _RISE)
            self._alone[key] = _Alone(least, _mixed(known.copies, copies), _mixed(known.kernel, result.kernel))


@lru_cache(_REMEMBERED)
def _predicted(launch: Launch, device: Device) -> float:
    return predict(CATALOGUE[launch.kernel], launch.config, launch.problem, device)


def _expected(alone: _Alone, device: Device, launch: Launch, together: Launch, count: int) -> float:
    """Seconds of a launch that was not measured: the kernel's are scaled by the cost model from one alone."""
    kernel = CATALOGUE[launch.kernel]
    one, all_ = (predict(kernel, each.config, each.problem, device) for each in (launch, together))
    return count * alone.copies + alone.kernel * all_ / one


def _mixed(before: float, now: float) -> float:
    return (1 - _MEMORY) * before + _MEMORY * now
