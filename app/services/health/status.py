"""What can serve now: of each device, of the store and of the host; every change is logged once."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Literal, TypeAlias, get_args

from app.devices.fleet import Fleet, Unit
from app.services.best.lookup import BestConfigs
from app.services.health.cordons import Cordon, Cordons
from app.services.health.gauges import GaugeReader
from app.services.health.gpus import GpuWatch
from app.services.health.host import StoreProbe, shortages
from app.services.health.verification import DeviceVerification
from app.services.matmul.readiness import DefaultVerification
from app.services.matmul.service import MatmulService
from app.store.database import Database

_LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 1.0  # seconds between two looks at what is logged, and at the host
_LONGEST: Final = 300  # characters of a reason that callers are told
_PATH: Final = re.compile(r"(?<![\w:])/(?!/)[^\s:;,'\")]+")

STORE_FAILED: Final = "store_failed: "  # begins the reason why nothing can be stored
DeviceState: TypeAlias = Literal["ok", "degraded", "failed", "cordoned", "starting"]
STATES: Final = get_args(DeviceState)


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device: whether it serves products now, and what is wrong with it.

    `served` are the seconds since its last right product or verification; None: there was none.
    """

    device: str
    state: DeviceState
    serves: bool
    reasons: tuple[str, ...]
    served: float | None
    cordon: Cordon | None


class ServiceHealth:
    """The health of everything, as a function of now. `start` has it log changes, and verify idle devices."""

    def __init__(
        self,
        fleet: Fleet,
        defaults: DefaultVerification,
        cordons: Cordons,
        matmul: MatmulService,
        best: BestConfigs,
        database: Database,
        data_dir: Path,
    ) -> None:
        self.cordons, self.store = cordons, StoreProbe(database)
        self._fleet, self._defaults, self._matmul, self._data_dir = fleet, defaults, matmul, data_dir
        units = {unit.device.id: unit for unit in fleet.units}
        self.verification = {name: DeviceVerification(unit, fleet, best, cordons) for name, unit in units.items()}
        self.gpus = None
        if fleet.gpus is not None:
            self.gpus = GpuWatch(fleet.gpus, fleet.units, cordons, lambda name: self.verification[name].hasten())
        self.gauges = GaugeReader(fleet.units, self.gpus)
        self._shortages: tuple[str, ...] = ()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def devices(self) -> list[DeviceHealth]:
        """Each device as it is now; asking takes no lock that work holds, and no device."""
        reasons = {state.device: (state.reason, state.pending) for state in self._defaults.states()}
        return [self._of(unit, *reasons.get(unit.device.id, (None, 0))) for unit in self._fleet.units]

    def unready(self) -> str | None:
        """Why nothing can serve now; None if a device can."""
        devices = self.devices()
        if any(device.serves for device in devices):
            return None
        if not devices:
            return told("; ".join(self._fleet.reasons) or "no device was asked for")
        return "; ".join(f"{device.device}: {'; '.join(device.reasons)}" for device in devices)

    def degraded(self) -> list[str]:
        """What is wrong although products are served."""
        found = [f"{each.device}: {reason}" for each in self.devices() for reason in each.reasons]
        store = self.store.fault
        if store is not None:
            found.append(f"{STORE_FAILED}{told(store)}")
        return list(dict.fromkeys([*found, *self._shortages, *map(told, self._defaults.degraded())]))

    def start(self) -> None:
        """Look at everything, and verify idle devices, from now on."""
        self.store.start()
        self._threads = [self._thread("watch health", self._watch)]
        if self.gpus is not None:
            watch = self.gpus
            self._threads.append(self._thread("watch GPUs", lambda: watch.run(self._stopping)))
        for unit in self._fleet.units:
            run = self._verifying(unit)
            self._threads.append(self._thread(f"verify {unit.device.id}", run))

    def stop(self) -> None:
        """Have the threads end; they may wait for a worker, until that is closed."""
        self._stopping.set()
        self.store.stop()

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _verifying(self, unit: Unit) -> Callable[[], None]:
        device = unit.device.id

        def is_ready() -> bool:
            return any(state.device == device and state.reason is None for state in self._defaults.states())

        return lambda: self.verification[device].run(self._stopping, is_ready, lambda: self._since_product(device))

    def _since_product(self, device: str) -> float:
        return monotonic() - self._matmul.made_at.get(device, float("-inf"))

    def _of(self, unit: Unit, unverified: str | None, pending: int) -> DeviceHealth:
        device, trouble = unit.device.id, unit.products.trouble
        verification, cordon = self.verification[device], self.cordons.of(unit.device)
        warnings = self._warnings(unit)
        stops = [reason for reason in (trouble, unverified) if reason]
        state: DeviceState = "degraded" if warnings or trouble else "ok"
        if unverified is not None or unit.products.is_lost:
            state = "starting" if unverified is not None and pending and not trouble else "failed"
        if cordon is not None:
            state, stops = "cordoned", [f"it is cordoned by {cordon.by}: {cordon.reason}", *stops]
        made = [at for at in (self._matmul.made_at.get(device), verification.made_at) if at is not None]
        served = monotonic() - max(made) if made else None
        reasons = tuple(dict.fromkeys(map(told, [*stops, *warnings])))
        return DeviceHealth(device, state, not stops, reasons, served, cordon)

    def _warnings(self, unit: Unit) -> list[str]:
        """What is wrong with a device although it may serve."""
        device = unit.device.id
        found = list(self.gpus.warnings.get(device, ())) if self.gpus is not None else []
        failure = self.verification[device].failure
        if failure is not None:
            found.append(failure)
        if unit.trials.is_lost and unit.trials is not unit.products:
            found.append("its trials' process does not end although it was killed")
        return found

    def _watch(self) -> None:
        """Look again and again, and log what has changed."""
        before: dict[str, str] = {}
        while not self._stopping.wait(_LOOK):
            self._shortages = tuple(shortages(self._data_dir))
            now = {each.device: _sentence(each) for each in self.devices()}
            now |= {"store": self.store.fault or "ok", "host": "; ".join(self._shortages) or "ok"}
            for name, sentence in now.items():
                if sentence != before.get(name, "ok"):
                    _LOG.log(logging.INFO if sentence == "ok" else logging.WARNING, "%s is %s", name, sentence)
            before = now


def _sentence(device: DeviceHealth) -> str:
    return device.state if not device.reasons else f"{device.state}: {'; '.join(device.reasons)}"


def told(reason: str) -> str:
    """A reason as callers are told it: its first line, without the paths of this host."""
    return _PATH.sub("(a file)", reason.strip().partition("\n")[0])[:_LONGEST]
