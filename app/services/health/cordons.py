"""Cordons: devices that make no products and run no tunes, by an operator's word or since they failed.

They are kept in the store, and held in memory: one that the store fails to take holds until the service ends.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from app.devices.fleet import Unit
from app.errors import DeviceCordoned, TilewiseError
from app.store.database import Database
from app.store.records import CordonRecord
from app.store.repository import CordonRepository
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
    """The cordons of a host's devices; safe from any thread.

    `file` is where they were before they were in the store: it is read once, and moved aside.
    """

    def __init__(self, units: Iterable[Unit], database: Database, file: Path) -> None:
        self._units, self._database = tuple(units), database
        self._lock = threading.Lock()
        _import(file, database)
        stored = database.read(lambda session: CordonRepository(session).all())
        self._cordons = {record.device: _cordon(record) for record in stored}
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
                _refuse(unit, self._cordons[name])
                self._store(name)
            _refuse(unit, self._cordons[name])
            return self._cordons[name]

    def uncordon(self, unit: Unit) -> None:
        """Have a device serve again, from new processes; nothing if it is not cordoned."""
        with self._lock:
            name = _name(unit.device)
            if self._cordons.pop(name, None) is None:
                return
            self._store(name)
            _LOG.warning("%s is not cordoned any more", unit.device.id)
        for worker in {unit.products, unit.trials}:
            worker.replace("the device was cordoned")
            worker.refuse(None)

    def _store(self, name: str) -> None:
        """Store what a device's cordon is now; called under the lock."""
        cordon = self._cordons.get(name)

        def store(session: Any) -> None:
            repository = CordonRepository(session)
            repository.delete(name) if cordon is None else repository.save(_record(name, cordon))

        try:
            self._database.write(store)
        except TilewiseError as error:
            _LOG.warning("the cordons are not stored: %s", error.message)


def _refuse(unit: Unit, cordon: Cordon) -> None:
    refusal = DeviceCordoned(f"{unit.device.id} is cordoned by {cordon.by}: {cordon.reason}")
    for worker in {unit.products, unit.trials}:
        worker.refuse(refusal)


def _name(device: Device) -> str:
    """What names a device beyond this start: its number may be another one's at the next."""
    return device.uuid or f"{device.id} {device.name}"


def _record(name: str, cordon: Cordon) -> CordonRecord:
    since = datetime.fromisoformat(cordon.since)
    return CordonRecord(name, cordon.reason, cordon.by, since if since.tzinfo else since.replace(tzinfo=UTC))


def _cordon(record: CordonRecord) -> Cordon:
    return Cordon(record.reason, record.imposed_by, record.since.isoformat(timespec="seconds"))


def _import(file: Path, database: Database) -> None:
    """Store the cordons of a file, as they were kept before, and move it aside; one that cannot be read stays."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        records = [_record(str(name), Cordon(**cordon)) for name, cordon in stored.items()]
        database.write(lambda session: CordonRepository(session).save(*records))
        file.rename(file.with_suffix(".json.old"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _LOG.warning("the cordons in %s cannot be read: %s", file, error)
