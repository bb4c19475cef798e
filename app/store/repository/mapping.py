"""Mapping between rows and records, by the names that both have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.store.records import TrialRecord
from app.store.tables import Base, TrialRow
from kernels.problem import Problem
from kernels.space import Config

PROBLEM: Final = tuple(field.name for field in fields(Problem))
_TRIAL: Final = tuple(field.name for field in fields(TrialRecord) if field.name not in {"problem", "config"})


def taken(source: object, names: Iterable[str]) -> dict[str, Any]:
    """The attributes of those names."""
    return {name: getattr(source, name) for name in names}


def insert(session: Session, row: Base, what: str) -> None:
    """Add a row; raises ValueError naming `what` if the database refuses it. The transaction is then over."""
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise ValueError(f"{what} is refused: {error.orig}") from error


def counted(session: Session, column: Any) -> dict[str, int]:
    """How many rows there are by a column's values."""
    return {str(value): count for value, count in session.execute(select(column, func.count()).group_by(column))}


def alike(row: type[Base], members: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """That a row's problem has these members; raises ValueError for a member that a problem has not."""
    if not members.keys() <= set(PROBLEM):
        raise ValueError(f"a problem has no {', '.join(members.keys() - set(PROBLEM))}")
    if len(members) == len(PROBLEM):
        return [row.problem_key == Problem(**members).key]  # type: ignore[attr-defined]  # it has an index
    return [getattr(row, name) == value for name, value in members.items()]


def problem_of(row: object) -> Problem:
    """The problem of a row that has its columns."""
    return Problem(**taken(row, PROBLEM))


def trial_of(row: TrialRow) -> TrialRecord:
    """A row as its record."""
    return TrialRecord(problem=problem_of(row), config=Config.of(row.config), **taken(row, _TRIAL))


def trial_row(record: TrialRecord) -> TrialRow:
    """A record as its row."""
    return TrialRow(
        problem_key=record.problem.key,
        config=dict(record.config),
        config_key=str(record.config),
        **taken(record.problem, PROBLEM),
        **taken(record, _TRIAL),
    )
