"""Workloads, in the order in which they came."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.store.records import WorkloadRecord
from app.store.repository.mapping import insert, taken
from app.store.tables import WorkloadRow

_WORKLOAD: Final = tuple(field.name for field in fields(WorkloadRecord))


class WorkloadRepository:
    """Workloads, in the order in which they came."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: WorkloadRecord) -> None:
        """Save a new workload; raises ValueError if its id exists; the transaction is then over."""
        insert(self._session, WorkloadRow(**taken(record, _WORKLOAD)), f"workload {record.id}")

    def get(self, workload_id: str) -> WorkloadRecord | None:
        """One workload, or None."""
        row = self._session.scalar(select(WorkloadRow).where(WorkloadRow.id == workload_id))
        return None if row is None else _workload(row)

    def count(self, principal: str) -> int:
        """How many a principal keeps."""
        query = select(func.count()).select_from(WorkloadRow).where(WorkloadRow.principal == principal)
        return self._session.scalar(query) or 0

    def list(self, principal: str | None, before: str | None, limit: int) -> list[WorkloadRecord]:
        """A principal's, or everybody's, newest first; `before` is the last id of the page before."""
        query = select(WorkloadRow).order_by(WorkloadRow.number.desc()).limit(limit)
        if principal is not None:
            query = query.where(WorkloadRow.principal == principal)
        if before is not None:
            place = select(WorkloadRow.number).where(WorkloadRow.id == before).scalar_subquery()
            query = query.where(WorkloadRow.number < place)
        return [_workload(row) for row in self._session.scalars(query)]

    def set_job(self, workload_id: str, job_id: str, device: str) -> None:
        """Say which job tunes a workload, and on which device."""
        change = update(WorkloadRow).where(WorkloadRow.id == workload_id)
        self._session.execute(change.values(job_id=job_id, device=device))

    def delete(self, workload_id: str) -> None:
        """Delete a workload."""
        self._session.execute(delete(WorkloadRow).where(WorkloadRow.id == workload_id))


def _workload(row: WorkloadRow) -> WorkloadRecord:
    return WorkloadRecord(**taken(row, _WORKLOAD))
