"""Watches GPUs by what their driver reports, and does what follows: cordons a device, or replaces its processes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from app.devices.fleet import Unit
from app.devices.gpu_health import GpuReader, GpuReading, judge
from app.errors import Closing, DeviceError
from app.services.health.cordons import HEALTH, Cordons

_LOG: Final = logging.getLogger(__name__)
_WAIT: Final = 1.0  # seconds that a look waits for an event
_PAUSE: Final = 0.25  # seconds between two looks
_AGAIN: Final = (5.0, 300.0)  # seconds until the driver is asked again after it failed: the first time, and at most
_UNSEEN: Final = "its driver does not tell of its health"


class GpuWatch:
    """The GPUs of some devices. `check` has a device make a verification product at once.

    `readings` are the last ones by device, `warnings` what is wrong now, `xids` how often each came.
    """

    def __init__(
        self, reader: GpuReader, units: Sequence[Unit], cordons: Cordons, check: Callable[[str], None]
    ) -> None:
        self._reader, self._cordons, self._check = reader, cordons, check
        self._units = {unit.device.uuid: unit for unit in units if unit.device.uuid}
        self.readings: dict[str, GpuReading] = {}
        self.warnings: dict[str, tuple[str, ...]] = {}
        self.xids: Counter[tuple[str, int]] = Counter()

    def run(self, stopping: threading.Event) -> None:
        """Look again and again until `stopping`."""
        pause, longest = _AGAIN
        while not stopping.is_set():
            try:
                self.look(_WAIT)
            except Closing:
                return
            except DeviceError as error:
                self._say_unseen(error)
                stopping.wait(pause)
                pause = min(longest, 2 * pause)
            else:
                pause = _AGAIN[0]
                stopping.wait(_PAUSE)

    def look(self, seconds: float) -> None:
        """Look once, and act on what is seen; raises DeviceError, Closing."""
        for reading in self._reader.read(seconds):
            unit = self._units.get(reading.uuid)
            if unit is not None:
                self._act(unit, reading)

    def _act(self, unit: Unit, reading: GpuReading) -> None:
        device = unit.device.id
        verdict = judge(reading, self.readings.get(device))
        self.readings[device] = reading
        self.xids.update((device, number) for number in reading.xids)
        self.warnings[device] = verdict.warnings
        if reading.xids:
            _LOG.warning("%s reports Xids %s: %s", device, list(reading.xids), verdict.reason or verdict.warnings)
        if verdict.action == "cordon" and self._cordons.of(unit.device) is None:
            self._cordons.cordon(unit, verdict.reason, HEALTH)  # first: what is killed is not tried again
            _replace(unit, verdict.reason)
        elif verdict.action == "replace":
            _replace(unit, verdict.reason)
        elif verdict.action == "check":
            self._check(device)

    def _say_unseen(self, error: DeviceError) -> None:
        for unit in self._units.values():
            if self.warnings.get(unit.device.id) != (_UNSEEN,):
                _LOG.warning("the health of %s cannot be read: %s", unit.device.id, error.message)
            self.warnings[unit.device.id] = (_UNSEEN,)


def _replace(unit: Unit, reason: str) -> None:
    for worker in {unit.products, unit.trials}:
        worker.replace(reason)
