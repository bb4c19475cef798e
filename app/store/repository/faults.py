"""Failed configs, and the scopes in which they are excluded."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from app.store.records import FaultRecord
from app.store.repository.mapping import insert, taken
from app.store.sharing.claims import serialised
from app.store.sharing.notices import FAULT, note
from app.store.tables import FaultRow
from kernels.space import Config

_FAULT: Final = tuple(field.name for field in fields(FaultRecord) if field.name != "config")
_PLACE: Final = ("device_model", "environment", "kernel", "kernel_digest", "scope", "kind")


class FaultRepository:
    """Configs that failed: the negative cache, and the quarantine (kind wrong)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, *records: FaultRecord) -> None:
        """Keep faults; of equal kind, place and scope the first stays."""
        if records:
            serialised(self._session, "faults")
            note(self._session, FAULT)
        for record in records:
            place = [getattr(FaultRow, name) == getattr(record, name) for name in _PLACE]
            query = select(FaultRow.id).where(*place, FaultRow.config_key == str(record.config))
            if self._session.scalar(query) is None:
                row = FaultRow(config=dict(record.config), config_key=str(record.config), **taken(record, _FAULT))
                insert(self._session, row, f"the fault of {record.kernel} {record.config}")

    def of(self, device_model: str, environment: str) -> list[FaultRecord]:
        """Every fault of a device model under an environment, in the order in which they were found."""
        return self._found(device_model=device_model, environment=environment)

    def held(self) -> list[FaultRecord]:
        """Every config that is not served, on any model: wrong results, and faults found by products."""
        return self._found(or_(FaultRow.kind == "wrong", FaultRow.job_id.is_(None)))

    def _found(self, *conditions: ColumnElement[bool], **equal: str) -> list[FaultRecord]:
        query = select(FaultRow).where(*conditions).filter_by(**equal).order_by(FaultRow.id)
        return [FaultRecord(config=Config.of(row.config), **taken(row, _FAULT)) for row in self._session.scalars(query)]
