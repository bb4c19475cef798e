"""Cordons of devices."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.store.records import CordonRecord
from app.store.repository.mapping import taken
from app.store.tables import CordonRow

_CORDON: Final = tuple(field.name for field in fields(CordonRecord))


class CordonRepository:
    """Cordons of devices."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def save(self, *records: CordonRecord) -> None:
        """Keep cordons, each in place of its device's."""
        for record in records:
            self._session.merge(CordonRow(**taken(record, _CORDON)))

    def delete(self, device: str) -> None:
        """Forget a device's cordon."""
        self._session.execute(delete(CordonRow).where(CordonRow.device == device))

    def all(self) -> list[CordonRecord]:
        """Every cordon, by device."""
        rows = self._session.scalars(select(CordonRow).order_by(CordonRow.device))
        return [CordonRecord(**taken(row, _CORDON)) for row in rows]
