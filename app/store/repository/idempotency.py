"""First answers to requests that carry an Idempotency-Key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.store.records import AnswerRecord
from app.store.repository.mapping import taken
from app.store.tables import AnswerRow, JobRow

_ANSWER: Final = tuple(field.name for field in fields(AnswerRecord))


class FirstAnswerRepository:
    """First answers to requests that carry an Idempotency-Key; `scope` is what principals' names begin with."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def claim(self, record: AnswerRecord) -> AnswerRecord | None:
        """Save a request with a new key; returns the stored one if the principal used the key before."""
        row = self._session.get(AnswerRow, (record.principal, record.key))
        if row is not None:
            return AnswerRecord(**taken(row, _ANSWER))
        self._session.add(AnswerRow(**taken(record, _ANSWER)))
        return None

    def attach(self, principal: str, key: str, job_id: str) -> None:
        """Note which job the request made or joined."""
        self._session.execute(update(AnswerRow).where(*_of(principal, key)).values(job_id=job_id))

    def answer(self, principal: str, key: str, status: int, headers: Mapping[str, str], body: str | None) -> None:
        """Keep the first answer."""
        values = {"status": status, "headers": dict(headers), "body": body}
        self._session.execute(update(AnswerRow).where(*_of(principal, key)).values(**values))

    def fail(self, principal: str, key: str, status: int, headers: Mapping[str, str], body: str) -> None:
        """Keep an error as the first answer of a request that made a job."""
        values = {"status": status, "headers": dict(headers), "body": body}
        made = (AnswerRow.status.is_(None), AnswerRow.job_id.is_not(None))
        self._session.execute(update(AnswerRow).where(*_of(principal, key), *made).values(**values))

    def release(self, principal: str, key: str) -> None:
        """Forget a request that was not answered, and made no job or one that came to nothing: its key is free."""
        ended = select(JobRow.id).where(JobRow.state.in_(("failed", "cancelled")))
        nothing = (AnswerRow.status.is_(None), AnswerRow.job_id.is_(None) | AnswerRow.job_id.in_(ended))
        self._session.execute(delete(AnswerRow).where(*_of(principal, key), *nothing))

    def abandon(self, scope: str = "") -> None:
        """Forget the requests that an earlier process neither answered nor made a job of."""
        nothing = AnswerRow.status.is_(None), AnswerRow.job_id.is_(None)
        self._session.execute(delete(AnswerRow).where(*nothing, _within(scope)))

    def newest(self, scope: str = "") -> float:
        """When the newest request came, in seconds of the service; 0 if there is none."""
        return self._session.scalar(select(func.max(AnswerRow.service_seconds)).where(_within(scope))) or 0.0

    def forget(self, before: float, scope: str = "") -> None:
        """Delete answers to requests from before a second of the service, except those in progress."""
        old = (AnswerRow.service_seconds < before, AnswerRow.status.is_not(None) | AnswerRow.job_id.is_not(None))
        self._session.execute(delete(AnswerRow).where(*old, _within(scope)))


def _within(scope: str) -> ColumnElement[bool]:
    """That the principal is named within a scope, as each service that shares the database has one."""
    return AnswerRow.principal.startswith(scope, autoescape=True)


def _of(principal: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return AnswerRow.principal == principal, AnswerRow.key == key
