"""Cost model of dynamic batching: learns what a product takes alone and in a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from app.worker.serving.product import MultiplyResult
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem

_MEMORY: Final = 0.2  # weight of the newest sample
_RISE: Final = 1.05  # how much faster than its samples the least overhead is forgotten
_FRESH: Final = 60.0  # seconds after which what was slow together is tried again
_MOST: Final = 4096  # problems remembered
# Seconds that a product is answered later, at most, because others are made with it.
WAIT: Final = 0.01


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
    """Learns seconds by device and problem; safe from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._alone: dict[tuple[str, Problem], _Alone] = {}
        self._together: dict[tuple[str, Problem, int], tuple[float, float]] = {}
        self._lock, self._clock = threading.Lock(), clock

    def learn(self, device_id: str, problem: Problem, count: int, spent: MultiplyResult, seconds: float) -> None:
        """Take note of a call that made `count` products of a problem, of its phases and its seconds in all."""
        phases = spent.h2d + spent.kernel + spent.d2h
        with self._lock:
            if count > 1:
                before, _ = self._together.get((device_id, problem, count), (phases, 0.0))
                self._together[device_id, problem, count] = _mixed(before, phases), self._clock()
            else:
                self._learn_alone((device_id, problem), spent, seconds - phases)
            for kept in (self._alone, self._together):
                if len(kept) > _MOST:
                    kept.clear()

    def best(self, device: Device, launch: Launch, together: Mapping[int, Launch]) -> int:
        """How many products are made fastest at once, 1 where none of `together` beats a launch for each.

        Nothing is known before one was made alone. None is answered more than WAIT later for the others' sake.
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

    def _learn_alone(self, key: tuple[str, Problem], spent: MultiplyResult, call: float) -> None:
        copies, known = spent.h2d + spent.d2h, self._alone.get(key)
        if known is None:
            self._alone[key] = _Alone(call, copies, spent.kernel)
        else:
            # A first call compiles and verifies: what a call costs is the least that it was seen to.
            least = min(call, known.call * _RISE)
            self._alone[key] = _Alone(least, _mixed(known.copies, copies), _mixed(known.kernel, spent.kernel))


def _expected(alone: _Alone, device: Device, launch: Launch, together: Launch, count: int) -> float:
    """Seconds of the phases of a launch that was not measured: the kernel's as the model has it beside one alone."""
    kernel = CATALOGUE[launch.kernel]
    one, all_ = (predict(kernel, each.config, each.problem, device) for each in (launch, together))
    return count * alone.copies + alone.kernel * all_ / one


def _mixed(before: float, now: float) -> float:
    return (1 - _MEMORY) * before + _MEMORY * now
