"""Products whose answers are known, made on idle devices: what a device gets wrong without an error is seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

import numpy as np

from app.devices.fleet import Fleet, Unit
from app.devices.lease import Priority
from app.dtypes import Array
from app.errors import Closing, DeviceError, NoRoom, TilewiseError
from app.services.best.lookup import BestConfigs
from app.services.health.cordons import HEALTH, Cordons
from app.worker.serving import product
from app.worker.serving.product import MultiplyRequest
from kernels.problem import Problem

_LOG: Final = logging.getLogger(__name__)
PROBLEM: Final = Problem(256, 256, 256)  # of the class that is verified at the start
_EVERY: Final = 60.0  # seconds between two on an idle device
_AGAIN: Final = 1.0  # seconds until a wrong one is made again
_LARGEST: Final = 64  # of the operands' whole numbers: every sum is exact in float32, in whatever order
_WRONG: Final = 2  # wrong answers in turn that cordon a device
_BEGINNING: Final = 15.0  # seconds that a worker may take before it names its first phase
_START: Final = (1.0, 30.0)  # seconds between two starts of a process that ended at once: the first time, and at most


class DeviceVerification:
    """Verifies one device from `start` to `stop`; one that is cordoned, not ready or in use is left alone.

    `failure` is what the last one failed of, None if it was right; `made_at` when one was right last (monotonic).
    """

    def __init__(self, unit: Unit, fleet: Fleet, best: BestConfigs, cordons: Cordons) -> None:
        self._unit, self._slab, self._best, self._cordons = unit, fleet.slab, best, cordons
        self._rng = np.random.default_rng()
        self.wrong, self.total = 0, 0
        self.failure: str | None = None
        self.made_at: float | None = None
        self._tried, self._is_hastened = -np.inf, False

    def run(self, stopping: threading.Event, is_ready: Callable[[], bool], since_product: Callable[[], float]) -> None:
        """Verify the device whenever it has been idle for a minute, and start its process if that ended at once."""
        pause, started = _START[0], 0.0
        while not stopping.wait(_AGAIN):
            if self._unit.products.is_idle and monotonic() - started > pause:
                started, pause = monotonic(), min(2 * pause, _START[1])
                self._start()
            elif not self._unit.products.is_idle:
                pause = _START[0]
            if is_ready() and self._cordons.of(self._unit.device) is None and self._is_due(since_product()):
                try:
                    self.verify()
                except Closing:
                    return

    def _start(self) -> None:
        try:
            self._unit.products.start()
        except TilewiseError as error:
            _LOG.info("%s is not started: %s", self._unit.products.name, error.message.partition("\n")[0])

    def _is_due(self, since_product: float) -> bool:
        return self._is_hastened or bool(self.wrong) or min(monotonic() - self._tried, since_product) >= _EVERY

    def hasten(self) -> None:
        """Have the device verified as soon as it is idle, although it made products."""
        self._is_hastened = True

    def verify(self) -> bool:
        """Make one product, and cordon the device at the second wrong one; False if it was in use, or there is no room.

        Raises Closing.
        """
        sizes = PROBLEM.a_bytes, PROBLEM.b_bytes, PROBLEM.c_bytes
        try:
            region = self._slab.lend(sum(sizes))
        except NoRoom:
            return False
        memory = np.frombuffer(self._slab.view(region), np.float32)
        a, b, c = (part.reshape(256, 256) for part in np.split(memory[: sum(sizes) // 4], 3))
        try:
            return self._made(a, b, c, (region.offset, region.offset + sizes[0], region.offset + sum(sizes[:2])))
        finally:
            del memory, a, b, c
            self._slab.release(region)

    def _made(self, a: Array, b: Array, c: Array, offsets: tuple[int, int, int]) -> bool:
        for operand in (a, b):
            operand[...] = self._rng.integers(-_LARGEST, _LARGEST, operand.shape)
        c[...] = np.nan
        try:
            launch = self._best.answer(PROBLEM, self._unit.device.id).launch
            self._unit.prepare(launch.build)
            request = MultiplyRequest(PROBLEM, launch, *offsets)
            pending = self._unit.products.begin(product.multiply, request, priority=Priority.CHECK, deadline=_BEGINNING)
            if pending is None:
                return False
            self._tried, self._is_hastened = monotonic(), False
            pending.finish()
        except DeviceError as error:
            self._failed(error.message.partition("\n")[0])
            return True
        self._judge(np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64)))
        return True

    def _judge(self, is_right: bool) -> None:
        self.total += 1
        if is_right:
            self.wrong, self.failure, self.made_at = 0, None, monotonic()
            return
        self.wrong += 1
        self._failed(f"{self.wrong} verification products in turn were wrong")
        if self.wrong >= _WRONG:
            self._cordons.cordon(self._unit, str(self.failure), HEALTH)
            self.wrong = 0

    def _failed(self, reason: str) -> None:
        self.failure = reason
        _LOG.warning("%s: %s", self._unit.device.id, reason)
