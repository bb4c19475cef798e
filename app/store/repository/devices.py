"""The devices that services on this database have opened."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.repository.mapping import taken
from app.store.sharing.claims import serialised
from app.store.tables import DeviceRow
from kernels.device import Device, Limits

_DEVICE: Final = tuple(field.name for field in fields(Device) if field.name not in {"id", "limits"})


class DeviceRepository:
    """The devices that services on this database have opened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def save(self, *devices: Device) -> None:
        """Keep devices as they are now: one row for each model and UUID."""
        serialised(self._session, "devices")
        for device in devices:
            own = {"host_id": device.id, "model": device.model, "limits": asdict(device.limits)}
            self._session.merge(DeviceRow(**own, **taken(device, _DEVICE)))

    def all(self) -> list[Device]:
        """Every device ever opened, by id."""
        rows = self._session.scalars(select(DeviceRow).order_by(DeviceRow.host_id, DeviceRow.model, DeviceRow.uuid))
        return [Device(id=row.host_id, limits=Limits(**row.limits), **taken(row, _DEVICE)) for row in rows]
