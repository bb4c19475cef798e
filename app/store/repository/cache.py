"""Opaque results of other tuners."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from app.store.records import CacheRecord
from app.store.repository.mapping import taken
from app.store.tables import CacheRow

_ENTRY: Final = ("principal", "namespace", "key", "body", "media", "etag", "created_at", "expires_at", "number")


class CacheRepository:
    """Entries by principal, namespace and key."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, principal: str, namespace: str, key: str, now: datetime) -> CacheRecord | None:
        """An entry that has not expired, or None."""
        query = select(CacheRow).where(*_place(principal, namespace, key), _is_alive(now))
        row = self._session.scalar(query)
        return None if row is None else _entry(row)

    def save(self, record: CacheRecord) -> None:
        """Put an entry in the place of the one before, as the newest."""
        self.delete(record.principal, record.namespace, record.key)
        self._session.add(CacheRow(**taken(record, _ENTRY[:-1])))

    def delete(self, principal: str, namespace: str, key: str) -> None:
        """Delete an entry."""
        self._session.execute(delete(CacheRow).where(*_place(principal, namespace, key)))

    def delete_expired(self, principal: str, now: datetime) -> None:
        """Delete a principal's entries whose time is over."""
        self._session.execute(delete(CacheRow).where(CacheRow.principal == principal, CacheRow.expires_at <= now))

    def usage(self, principal: str) -> tuple[int, int]:
        """How many entries a principal keeps, and their bytes."""
        query = select(func.count(), func.coalesce(func.sum(func.length(CacheRow.body)), 0))
        count, size = self._session.execute(query.where(CacheRow.principal == principal)).one()
        return int(count), int(size)

    def list(self, principal: str, namespace: str, now: datetime, before: int | None, limit: int) -> list[CacheRecord]:
        """A namespace's entries that have not expired, newest first, below a number."""
        query = select(CacheRow).where(CacheRow.principal == principal, CacheRow.namespace == namespace, _is_alive(now))
        if before is not None:
            query = query.where(CacheRow.number < before)
        return [_entry(row) for row in self._session.scalars(query.order_by(CacheRow.number.desc()).limit(limit))]


def _place(principal: str, namespace: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return CacheRow.principal == principal, CacheRow.namespace == namespace, CacheRow.key == key


def _is_alive(now: datetime) -> ColumnElement[bool]:
    return or_(CacheRow.expires_at.is_(None), CacheRow.expires_at > now)


def _entry(row: CacheRow) -> CacheRecord:
    return CacheRecord(**taken(row, _ENTRY))
