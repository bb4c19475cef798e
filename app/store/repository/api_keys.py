"""API keys and what they grant."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.records import ApiKeyRecord
from app.store.repository.mapping import taken
from app.store.sharing.notices import API_KEY, note
from app.store.tables import ApiKeyRow

_KEY: Final = tuple(field.name for field in fields(ApiKeyRecord) if field.name != "scopes")


class ApiKeyRepository:
    """API keys and what they grant."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: ApiKeyRecord) -> None:
        """Keep a new key."""
        note(self._session, API_KEY)
        self._session.add(ApiKeyRow(scopes=" ".join(record.scopes), **taken(record, _KEY)))

    def all(self) -> list[ApiKeyRecord]:
        """Every key, the newest first."""
        rows = self._session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at.desc(), ApiKeyRow.id))
        return [_record(row) for row in rows]

    def revoke(self, key_id: str, now: datetime) -> ApiKeyRecord | None:
        """Say that a key has ended, once; gives it, or None if there is no such key."""
        row = self._session.get(ApiKeyRow, key_id)
        if row is None:
            return None
        note(self._session, API_KEY)
        row.revoked_at = row.revoked_at or now
        return _record(row)


def _record(row: ApiKeyRow) -> ApiKeyRecord:
    return ApiKeyRecord(scopes=tuple(row.scopes.split()), **taken(row, _KEY))
