"""Configs that have answered wrong here: never served again, on that device model, environment and kernel text."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from app.store.engine import Database
from app.store.records import FaultRecord
from app.store.repository import Faults
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Launch
from kernels.space import Config

WRONG = "wrong"
_LOG = logging.getLogger(__name__)
_Place = tuple[str, str, str, Config]  # device model, environment, kernel, config


class Quarantine:
    """Every config that has answered wrong, in memory: asking takes no lock, no query and no device.

    A kernel whose text has changed since is another kernel: its old faults are not held against it.
    """

    def __init__(self, database: Database, faults: Iterable[FaultRecord] = ()) -> None:
        self._database = database
        self._reasons: dict[_Place, str] = {}
        self.remember(*faults)

    @classmethod
    def load(cls, database: Database) -> Quarantine:
        """Read every stored fault of the kind wrong once."""
        return cls(database, database.read(lambda session: Faults(session).wrong()))

    def holds(self, device: Device, kernel: str, config: Config) -> str | None:
        """Why a config must not be served on a device, or None where nothing is known against it."""
        return self._reasons.get((device.model, device.environment, kernel, config))

    def add(self, *faults: FaultRecord) -> None:
        """Hold faults from now on, and store them."""
        self.remember(*faults)
        self._database.write(lambda session: Faults(session).add(*faults))

    def condemn(self, device: Device, launch: Launch, reason: str) -> None:
        """Hold and store what a device answered wrong outside any job."""
        fault = FaultRecord(
            device_model=device.model,
            environment=device.environment,
            kernel=launch.kernel,
            kernel_digest=CATALOGUE[launch.kernel].digest,
            config=launch.config,
            scope="",
            kind=WRONG,
            stage="verify",
            reason=reason,
            job_id=None,
            at=datetime.now(UTC),
        )
        self.add(fault)

    def remember(self, *faults: FaultRecord) -> None:
        """Hold faults that somebody has stored; those of another kind than wrong are not held."""
        for fault in faults:
            place = _place(fault)
            if place is not None:
                self._reasons.setdefault(place, fault.reason)
                _LOG.warning("%s %s is quarantined: %s", fault.kernel, fault.config, fault.reason)


def _place(fault: FaultRecord) -> _Place | None:
    """What a fault is held against, if it is still there: this kernel text, and this config in its space."""
    kernel = CATALOGUE.get(fault.kernel)
    if fault.kind != WRONG or kernel is None or kernel.digest != fault.kernel_digest:
        return None
    try:
        return fault.device_model, fault.environment, fault.kernel, kernel.space.config(fault.config)
    except ValueError:
        return None
