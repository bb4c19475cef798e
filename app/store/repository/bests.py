"""The promoted trial of each device model and problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session, aliased

from app.store.records import BestRecord, CrossRecord, TrialRecord
from app.store.repository.best_history import DELETED, PROMOTED, BestHistoryRepository
from app.store.repository.mapping import PROBLEM, problem_of, trial_of
from app.store.tables import BestRow, TrialRow
from kernels.problem import Problem
from kernels.space import Config

_BESIDE: Final = ("naive", "tiled", "vendor", "default")
_CLASS: Final = ("device_model", "dtype", "precision", "trans_a", "trans_b", "kernel", "kernel_digest", "config_key")


class BestRepository:
    """The promoted trial of each device model and problem."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def promote(self, *records: BestRecord) -> None:
        """Put saved trials, with the baselines beside them, in the place of whatever was best, which history keeps."""
        for record in records:
            self._session.merge(_best_row(record))
            BestHistoryRepository(self._session).add(PROMOTED, record)

    def delete(self, device_model: str, problem: Problem) -> bool:
        """Delete the best of a device model and problem; False if there is none. Its trials stay."""
        row = self._session.get(BestRow, (device_model, problem.key))
        if row is None:
            return False
        winner = trial_of(self._session.get_one(TrialRow, row.trial_id))
        ended = BestRecord(device_model, problem, winner, None, None, None, None, row.tuned_at)
        BestHistoryRepository(self._session).add(DELETED, ended)
        self._session.delete(row)
        return True

    def all(self) -> list[BestRecord]:
        """Every best with its trials, in one query, by device model and problem."""
        trial = aliased(TrialRow, name="trial")
        beside = {name: aliased(TrialRow, name=name) for name in _BESIDE}
        query = select(BestRow, trial, *beside.values()).join(trial, trial.id == BestRow.trial_id)
        for name, other in beside.items():
            query = query.outerjoin(other, other.id == getattr(BestRow, f"{name}_id"))
        rows = self._session.execute(query.order_by(BestRow.device_model, BestRow.problem_key))
        return [_best(row, winner, *others) for row, winner, *others in rows]

    def crossed(self, limit: int = 100_000) -> list[CrossRecord]:
        """Times of winners on the other tuned problems of their model and family, the newest `limit`, oldest first.

        Only trials of the search and the finals in the environment of the problem's own best, of the winner's kernel
        text.
        """
        own, winner = aliased(TrialRow, name="own"), aliased(TrialRow, name="winner")
        winners = (
            select(*(getattr(winner, name) for name in _CLASS))
            .join(BestRow, BestRow.trial_id == winner.id)
            .distinct()
            .subquery()
        )
        columns = ("id", *PROBLEM, "device_model", "kernel", "config", "round", "median_ms", "samples", "dropped")
        query = (
            select(*(getattr(TrialRow, name) for name in columns))
            .join(BestRow, _equal(TrialRow, BestRow, "device_model", "problem_key"))
            .join(own, and_(own.id == BestRow.trial_id, own.environment == TrialRow.environment))
            .join(winners, _equal(TrialRow, winners.c, *_CLASS))
            .where(TrialRow.state == "measured", TrialRow.round.in_(("search", "final")))
            .order_by(TrialRow.id.desc())
            .limit(limit)
        )
        kept = columns[1 + len(PROBLEM) :]
        found = [
            CrossRecord(problem=problem_of(row), **{name: getattr(row, name) for name in kept} | _config(row.config))
            for row in self._session.execute(query)
        ]
        return found[::-1]


def _config(values: dict[str, int]) -> dict[str, Config]:
    return {"config": Config.of(values)}


def _equal(one: object, other: object, *names: str) -> ColumnElement[bool]:
    return and_(*(getattr(one, name) == getattr(other, name) for name in names))


def _saved(trial: TrialRecord) -> int:
    if trial.id is None:
        raise ValueError(f"the trial of {trial.kernel} {trial.config} has not been saved")
    return trial.id


def _best_row(record: BestRecord) -> BestRow:
    beside = {name: getattr(record, name) for name in _BESIDE}
    return BestRow(
        device_model=record.device_model,
        problem_key=record.problem.key,
        trial_id=_saved(record.trial),
        tuned_at=record.tuned_at,
        **{f"{name}_id": trial and _saved(trial) for name, trial in beside.items()},
        **_reasons(record),
    )


def _trials(rows: Mapping[str, TrialRow | None]) -> dict[str, Any]:
    return {name: None if row is None else trial_of(row) for name, row in rows.items()}


def _reasons(of: BestRecord | BestRow) -> dict[str, Any]:
    return {f"{name}_reason": getattr(of, f"{name}_reason") for name in _BESIDE}


def _best(row: BestRow, trial: TrialRow, *beside: TrialRow | None) -> BestRecord:
    winner = trial_of(trial)
    others = dict(zip(_BESIDE, beside, strict=True))
    return BestRecord(
        device_model=row.device_model,
        problem=winner.problem,
        trial=winner,
        tuned_at=row.tuned_at,
        **_reasons(row),
        **_trials(others),
    )
