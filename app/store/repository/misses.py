"""Misses: requests for shapes without an exact answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, or_, select
from sqlalchemy.orm import Session

from app.store.records import MissPlace, MissRecord
from app.store.repository.mapping import PROBLEM, alike, problem_of, taken
from app.store.sharing.claims import serialised
from app.store.tables import MissRow
from kernels.problem import Problem

_MISS: Final = ("device_model", "count", "match", "first_at", "last_at")


class MissRepository:
    """Counts of requests for untuned shapes, by device model."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, counts: Iterable[MissRecord]) -> None:
        """Add to the counts; match and moment become the latest answer's."""
        serialised(self._session, "misses")
        for miss in counts:
            row = self._session.get(MissRow, (miss.device_model, miss.problem.key))
            if row is None:
                key = {"problem_key": miss.problem.key, **taken(miss.problem, PROBLEM)}
                self._session.add(MissRow(**key, **taken(miss, _MISS)))
            else:
                row.count += miss.count
                row.match, row.last_at = miss.match, miss.last_at

    def most_frequent(
        self,
        limit: int = 100,
        device_model: str | None = None,
        problem: Mapping[str, Any] | None = None,
        after: MissPlace | None = None,
    ) -> list[MissRecord]:
        """The most frequent misses, on any device model or on one; the latest first among equals.

        `problem` has some or all members of a problem; `after` is the end of the page before.
        """
        order = (MissRow.count.desc(), MissRow.last_at.desc(), MissRow.device_model, MissRow.problem_key)
        query = select(MissRow).order_by(*order).limit(limit)
        if device_model is not None:
            query = query.where(MissRow.device_model == device_model)
        query = query.where(*alike(MissRow, problem or {}), *_behind(after))
        rows = self._session.scalars(query)
        return [MissRecord(problem=problem_of(row), **taken(row, _MISS)) for row in rows]

    def forget(self, device_model: str, problem: Problem) -> bool:
        """Drop what is counted of a shape; gives whether there was anything."""
        where = (MissRow.device_model == device_model, MissRow.problem_key == problem.key)
        return self._session.scalar(delete(MissRow).where(*where).returning(MissRow.count)) is not None


def _behind(place: MissPlace | None) -> list[ColumnElement[bool]]:
    """The rows after a place in the order of most_frequent."""
    if place is None:
        return []
    count, last_at, model, key = place
    equal = (MissRow.count == count, MissRow.last_at == last_at, MissRow.device_model == model)
    later = (
        MissRow.count < count,
        MissRow.last_at < last_at,
        MissRow.device_model > model,
        MissRow.problem_key > key,
    )
    return [or_(*(and_(*equal[:rank], beyond) for rank, beyond in enumerate(later)))]
