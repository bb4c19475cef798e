"""Profiles, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.store.records import ProfileRecord
from app.store.repository.mapping import PROBLEM, alike, problem_of, taken
from app.store.tables import ProfileRow

_OWN: Final = ("id", "device", "device_model", "environment", "content", "created_at")


class ProfileRepository:
    """Profiles, in the order in which they were made."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def save(self, record: ProfileRecord, most: int) -> None:
        """Keep a profile, in the place of one of the same job; of all at most so many, the newest."""
        self._session.execute(delete(ProfileRow).where(ProfileRow.id == record.id))
        key = record.problem.key
        self._session.add(ProfileRow(problem_key=key, **taken(record.problem, PROBLEM), **taken(record, _OWN)))
        self._session.flush()
        newest = select(func.max(ProfileRow.number)).scalar_subquery()
        self._session.execute(delete(ProfileRow).where(ProfileRow.number <= newest - most))

    def list(
        self,
        problem: Mapping[str, Any] | None = None,
        device_model: str | None = None,
        job_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[ProfileRecord]:
        """The newest `limit` below a number, newest first; `problem` has some or all members of a problem."""
        given = alike(ProfileRow, problem or {})
        given += [] if device_model is None else [ProfileRow.device_model == device_model]
        given += [] if job_id is None else [ProfileRow.id == job_id]
        given += [] if before is None else [ProfileRow.number < before]
        query = select(ProfileRow).where(*given).order_by(ProfileRow.number.desc()).limit(limit)
        return [
            ProfileRecord(problem=problem_of(row), number=row.number, **taken(row, _OWN))
            for row in self._session.scalars(query)
        ]
