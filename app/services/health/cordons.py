"""Cordons: devices that make no products and run no tunes, by an operator's word or since they failed.

They are kept in a file of the data folder, and not in the database: they are this host's, and a store that fails is no
reason to serve from a device that does.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.devices.fleet import Unit
from app.errors import DeviceCordoned
from kernels.device import Device

_LOG: Final = logging.getLogger(__name__)
OPERATOR: Final = "operator"
HEALTH: Final = "health"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why a device is cordoned, by whom (`operator` or `health`), and since when (ISO 8601, UTC)."""

    reason: str
    by: str
    since: str


class Cordons:
    """The cordons of a host's devices, in a file; safe from any thread."""

    def __init__(self, units: Iterable[Unit], file: Path) -> None:
        self._units, self._file = tuple(units), file
        self._lock = threading.Lock()
        self._cordons = _read(file)
        for unit in self._units:
            cordon = self.of(unit.device)
            if cordon is not None:
                _refuse(unit, cordon)

    def of(self, device: Device) -> Cordon | None:
        """The cordon of a device, or None."""
        return self._cordons.get(_name(device))

    def cordon(self, unit: Unit, reason: str, by: str) -> Cordon:
        """Have a device refuse products and tunes, those that wait too; the first cordon's reason stays.

        What runs on it ends as it does. A cordon that cannot be stored holds until the service ends.
        """
        with self._lock:
            name = _name(unit.device)
            if name not in self._cordons:
                self._cordons[name] = Cordon(reason, by, datetime.now(UTC).isoformat(timespec="seconds"))
                _LOG.warning("%s is cordoned by %s: %s", unit.device.id, by, reason)
                self._store()
            _refuse(unit, self._cordons[name])
            return self._cordons[name]

    def uncordon(self, unit: Unit) -> None:
        """Have a device serve again, from new processes; nothing if it is not cordoned."""
        with self._lock:
            if self._cordons.pop(_name(unit.device), None) is None:
                return
            self._store()
            _LOG.warning("%s is not cordoned any more", unit.device.id)
        for worker in {unit.products, unit.trials}:
            worker.replace("the device was cordoned")
            worker.refuse(None)

    def _store(self) -> None:
        """Replace the file, durably; called under the lock."""
        partial = self._file.with_suffix(".part")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump({name: asdict(cordon) for name, cordon in self._cordons.items()}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._file)
        except OSError as error:
            _LOG.warning("the cordons are not stored: %s", error.strerror or error)
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _refuse(unit: Unit, cordon: Cordon) -> None:
    refusal = DeviceCordoned(f"{unit.device.id} is cordoned by {cordon.by}: {cordon.reason}")
    for worker in {unit.products, unit.trials}:
        worker.refuse(refusal)


def _name(device: Device) -> str:
    """What names a device beyond this start: its number may be another one's at the next."""
    return device.uuid or f"{device.id} {device.name}"


def _read(file: Path) -> dict[str, Cordon]:
    """The cordons that were stored; none if there is no file, or it cannot be read."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): Cordon(**cordon) for name, cordon in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _LOG.warning("the stored cordons cannot be read: %s", error)
        return {}
