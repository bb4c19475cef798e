"""Deletes what is stored beyond a count or an age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, false, func, or_, select, tuple_, union_all, update
from sqlalchemy.orm import Session

from app.store.tables import AnswerRow, BestRow, FaultRow, JobRow, MissRow, TrialRow

_ENDED: Final = ("succeeded", "failed", "cancelled")
_REFERENCES: Final = (BestRow.trial_id, BestRow.naive_id, BestRow.tiled_id, BestRow.vendor_id, BestRow.default_id)


class PruneRepository:
    """Deletes rows: each method looks at some, and gives the last one that it looked at, or None if none was left."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def trials(self, after: int, limit: int, kept: int, before: datetime | None) -> int | None:
        """Delete trials of jobs that have ended, beyond the newest `kept` or made before a moment.

        Those that a best refers to stay.
        """
        ended = select(JobRow.id).where(JobRow.state.in_(_ENDED))
        old = _beyond(TrialRow.id, kept, TrialRow.created_at, before)
        query = select(TrialRow.id).where(TrialRow.id > after, old, TrialRow.job_id.in_(ended))
        found = self._session.scalars(query.order_by(TrialRow.id).limit(limit)).all()
        if not found:
            return None
        references = union_all(*(select(column).where(column.in_(found)) for column in _REFERENCES))
        spared = set(self._session.scalars(references))
        self._session.execute(delete(TrialRow).where(TrialRow.id.in_([each for each in found if each not in spared])))
        return found[-1]

    def jobs(
        self, after: int, limit: int, kept: int, before: datetime | None, is_kept: Callable[[str], bool]
    ) -> int | None:
        """Delete jobs that have ended, beyond the newest `kept` or ended before a moment.

        Those stay that trials or answers name, or whose result is kept; faults forget which job found them.
        """
        named = exists().where(TrialRow.job_id == JobRow.id) | exists().where(AnswerRow.job_id == JobRow.id)
        old = _beyond(JobRow.number, kept, JobRow.finished_at, before)
        query = select(JobRow.number, JobRow.id).where(JobRow.number > after, old, JobRow.state.in_(_ENDED), ~named)
        found = self._session.execute(query.order_by(JobRow.number).limit(limit)).all()
        if not found:
            return None
        ids = [job_id for _, job_id in found if not is_kept(job_id)]
        self._session.execute(update(FaultRow).where(FaultRow.job_id.in_(ids)).values(job_id=None))
        self._session.execute(delete(JobRow).where(JobRow.id.in_(ids)))
        return int(found[-1].number)

    def misses(self, limit: int, kept: int, before: datetime | None) -> int | None:
        """Delete misses, the rarest and then the oldest, until `kept` are left; and those last seen before a moment."""
        key = (MissRow.device_model, MissRow.problem_key)
        over = (self._session.scalar(select(func.count()).select_from(MissRow)) or 0) - kept
        rarest = select(*key).order_by(MissRow.count, MissRow.last_at, *key).limit(min(over, limit))
        oldest = select(*key).where(_earlier(MissRow.last_at, before)).limit(limit)
        found: Sequence[Any] = self._session.execute(rarest if over > 0 else oldest).all()
        if not found:
            return None
        self._session.execute(delete(MissRow).where(tuple_(*key).in_([tuple(row) for row in found])))
        return 0


def _beyond(number: Any, kept: int, moment: Any, before: datetime | None) -> ColumnElement[bool]:
    """That a row is not among the newest, or from before a moment."""
    newest = select(number).order_by(number.desc()).limit(1).offset(kept).scalar_subquery()
    return or_(number <= newest, _earlier(moment, before))


def _earlier(moment: Any, before: datetime | None) -> ColumnElement[bool]:
    return false() if before is None else and_(moment.is_not(None), moment < before)
