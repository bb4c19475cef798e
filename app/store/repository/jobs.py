"""Durable work, in the order in which it was taken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, func, literal, literal_column, select, update
from sqlalchemy.orm import Session

from app.store.column_types import Moment
from app.store.records import JobRecord
from app.store.repository.mapping import counted, insert, taken
from app.store.sharing.claims import REQUESTS, expect_held, mine_or_free
from app.store.sharing.notices import CANCEL, JOB, note
from app.store.tables import JobRow

_UNFINISHED: Final = ("queued", "running")
_CANCELLING: Final = and_(JobRow.state == literal_column("'running'"), JobRow.cancel_requested.is_(True))
_STATE: Final = case((_CANCELLING, literal_column("'cancelling'")), else_=JobRow.state)
_JOB: Final = tuple(field.name for field in fields(JobRecord) if field.name != "devices")


class JobRepository:
    """Durable work, in the order in which it was taken."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: JobRecord) -> None:
        """Save a new job; raises ValueError if its id exists; the transaction is then over."""
        insert(self._session, JobRow(version=REQUESTS, **taken(record, _JOB)), f"job {record.id}")
        note(self._session, JOB, record.id)

    def get(self, job_id: str) -> JobRecord | None:
        """One job, or None."""
        return _job_or_none(self._session.scalar(select(JobRow).where(JobRow.id == job_id)))

    def some(self, job_ids: Collection[str]) -> list[JobRecord]:
        """Those of the jobs that there are, oldest first."""
        query = select(JobRow).where(JobRow.id.in_(job_ids)).order_by(JobRow.number)
        return [_job(row) for row in self._session.scalars(query)] if job_ids else []

    def active(self, fingerprint: str) -> JobRecord | None:
        """The queued or running job of this work, unless its end has been asked for."""
        query = select(JobRow).where(
            JobRow.fingerprint == fingerprint, JobRow.state.in_(_UNFINISHED), JobRow.cancel_requested.is_(False)
        )
        return _job_or_none(self._session.scalar(query.order_by(JobRow.number).limit(1)))

    def finished(self, fingerprint: str) -> JobRecord | None:
        """The newest job that succeeded at this work."""
        query = select(JobRow).where(JobRow.fingerprint == fingerprint, JobRow.state == "succeeded")
        return _job_or_none(self._session.scalar(query.order_by(JobRow.number.desc()).limit(1)))

    def unfinished(self, fingerprint: str | None = None) -> list[JobRecord]:
        """Every queued or running job, or those of one work, oldest first."""
        query = select(JobRow).where(JobRow.state.in_(_UNFINISHED)).order_by(JobRow.number)
        if fingerprint is not None:
            query = query.where(JobRow.fingerprint == fingerprint)
        return [_job(row) for row in self._session.scalars(query)]

    def start(self, job_id: str, total: int, at: datetime, done: int | None = None) -> bool:
        """Mark a job as running, with at most `total` trials; False if it has ended or is unknown.

        A resumed job keeps its first start, and what it has `done` unless that is told.
        """
        first = func.coalesce(JobRow.started_at, literal(at, Moment))
        told = {} if done is None else {"done": done}
        return self._change(job_id, state="running", total=total, started_at=first, **told)

    def advance(
        self, job_id: str, best_ms: float | None, eta_seconds: float | None = None, spent: float | None = None
    ) -> None:
        """One more trial of the search is over, after `spent` seconds; the job may take `eta_seconds` more."""
        values = {"best_ms": best_ms, "phase": "search", "eta_seconds": eta_seconds, "spent_seconds": spent}
        self._change(job_id, done=JobRow.done + 1, **values)

    def enter(self, job_id: str, phase: str, eta_seconds: float | None = None, spent: float | None = None) -> None:
        """From now the job does something else: queries see its phase and how long it may still take."""
        self._change(job_id, phase=phase, eta_seconds=eta_seconds, spent_seconds=spent)

    def upgrade(self, job_id: str, request: dict[str, Any], fingerprint: str, total: int | None = None) -> bool:
        """Replace the request of a job by a larger one; False if it has ended or is unknown, or is another service's.

        `total` is the new maximum of its trials, if it runs.
        """
        values = {"request": request, "fingerprint": fingerprint} | ({} if total is None else {"total": total})
        return self._set(job_id, JobRow.cancel_requested.is_(False), *mine_or_free(self._session, job_id), **values)

    def postpone(self, job_id: str) -> None:
        """Put a running job back among those that wait."""
        self._change(job_id, state="queued", phase=None, eta_seconds=None)

    def finish(
        self,
        job_id: str,
        state: str,
        result: dict[str, Any] | None,
        error: dict[str, Any] | None,
        at: datetime,
        **more: float,
    ) -> None:
        """End the job; one that has ended stays as it is. `more` may be its last `done` and `spent_seconds`."""
        values = {"result": result, "error": error, "finished_at": at, "phase": None, "eta_seconds": None}
        self._change(job_id, state=state, **values, **more)

    def fail(self, job_id: str, error: dict[str, Any]) -> None:
        """End a job now, with its error."""
        self.finish(job_id, "failed", None, error, datetime.now(UTC))

    def request_cancel(self, job_id: str, at: datetime | None = None) -> None:
        """Request cancellation; with `at` a queued job ends at once. An ended job stays as it is."""
        self._set(job_id, cancel_requested=True)
        if at is not None:
            self._set(job_id, JobRow.state == "queued", state="cancelled", finished_at=at)
        note(self._session, CANCEL, job_id)

    def list(
        self,
        state: str | None = None,
        kind: str | None = None,
        before: str | None = None,
        limit: int = 50,
        principal: str | None = None,
    ) -> list[JobRecord]:
        """The newest `limit` jobs that match the filters, newest first; `before` is the last id of the page before.

        A running job with a requested cancellation is `cancelling`, not `running`.
        """
        query = select(JobRow).order_by(JobRow.number.desc()).limit(limit)
        if state is not None:
            query = query.where(literal(state) == _STATE)
        if kind is not None:
            query = query.where(JobRow.kind == kind)
        if principal is not None:
            query = query.where(JobRow.principal == principal)
        if before is not None:
            query = query.where(JobRow.number < select(JobRow.number).where(JobRow.id == before).scalar_subquery())
        return [_job(row) for row in self._session.scalars(query)]

    def waiting(self, kinds: Collection[str]) -> int:
        """How many jobs of some kinds wait for a device."""
        query = select(func.count()).where(JobRow.kind.in_(kinds), JobRow.state == "queued")
        return self._session.scalar(query) or 0

    def unfinished_of(self, principal: str) -> int:
        """How many tune jobs of a principal have not ended."""
        ended = JobRow.state.in_(("succeeded", "failed", "cancelled"))
        query = select(func.count()).where(JobRow.principal == principal, JobRow.kind == "tune", ~ended)
        return self._session.scalar(query) or 0

    def tally(self) -> dict[str, int]:
        """How many there are by state, as `list` has it."""
        return counted(self._session, _STATE)

    def _change(self, job_id: str, **values: Any) -> bool:
        """Change a job as whoever runs it; raises ClaimLost."""
        expect_held(self._session, job_id)
        return self._set(job_id, **values)

    def _set(self, job_id: str, *where: ColumnElement[bool], **values: Any) -> bool:
        note(self._session, JOB, job_id)
        unfinished = JobRow.state.in_(_UNFINISHED)
        change = update(JobRow).where(JobRow.id == job_id, unfinished, *where).values(**values)
        return self._session.scalar(change.returning(JobRow.number)) is not None


def _job(row: JobRow) -> JobRecord:
    return JobRecord(**taken(row, _JOB))


def _job_or_none(row: JobRow | None) -> JobRecord | None:
    return None if row is None else _job(row)
