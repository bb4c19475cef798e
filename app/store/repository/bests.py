"""The promoted trial of each device model and problem, and the history of what was promoted and deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session, aliased

from app.store.records import BestRecord, BestRevision, CrossRecord, Promotion, TrialRecord
from app.store.repository.mapping import PROBLEM, alike, problem_of, taken, trial_of
from app.store.sharing.claims import serialised
from app.store.sharing.notices import BEST, note
from app.store.tables import BestHistoryRow, BestRow, TrialRow
from kernels.problem import Problem
from kernels.space import Config

PROMOTED: Final = "promoted"
DELETED: Final = "deleted"
_WINNER: Final = ("job_id", "kernel", "kernel_digest", "environment")
_TIMES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "samples", "policy")
_KEPT: Final = ("number", "event", "at", "device_model", *_WINNER, *_TIMES, "default_ms", "vendor_ms")
_BESIDE: Final = ("naive", "tiled", "vendor", "default")
_CLASS: Final = ("device_model", "dtype", "precision", "trans_a", "trans_b", "kernel", "kernel_digest", "config_key")


class BestHistoryRepository:
    """The history of bests: rows are added at each promotion and deletion, and never changed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, event: str, record: BestRecord) -> None:
        """Add what happened to a best: it was promoted when it was tuned, or is deleted now."""
        beside = {f"{name}_ms": getattr(getattr(record, name), "median_ms", None) for name in ("default", "vendor")}
        self._session.add(
            BestHistoryRow(
                event=event,
                at=record.tuned_at if event == PROMOTED else datetime.now(UTC),
                device_model=record.device_model,
                problem_key=record.problem.key,
                config=dict(record.trial.config),
                **taken(record.problem, PROBLEM),
                **taken(record.trial, (*_WINNER, *_TIMES)),
                **beside,
            )
        )

    def search(
        self,
        device_model: str | None = None,
        problem: Mapping[str, Any] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[BestRevision]:
        """The newest `limit` below a number, newest first; `problem` has some or all members of a problem."""
        given = alike(BestHistoryRow, problem or {})
        given += [] if device_model is None else [BestHistoryRow.device_model == device_model]
        given += [] if before is None else [BestHistoryRow.number < before]
        query = select(BestHistoryRow).where(*given).order_by(BestHistoryRow.number.desc()).limit(limit)
        return [
            BestRevision(problem=problem_of(row), config=Config.of(row.config), **taken(row, _KEPT))
            for row in self._session.scalars(query)
        ]


class BestRepository:
    """The promoted trial of each device model and problem."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def promote(self, *records: BestRecord) -> None:
        """Put saved trials, with the baselines beside them, in the place of whatever was best, which history keeps."""
        for record in sorted(records, key=lambda record: (record.device_model, record.problem.key)):
            serialised(self._session, f"best {record.device_model} {record.problem.key}")
            note(self._session, BEST, record.device_model, asdict(record.problem))
            self._session.merge(_best_row(record))
            BestHistoryRepository(self._session).add(PROMOTED, record)

    def delete(self, device_model: str, problem: Problem) -> bool:
        """Delete the best of a device model and problem; False if there is none. Its trials stay."""
        serialised(self._session, f"best {device_model} {problem.key}")
        row = self._session.get(BestRow, (device_model, problem.key))
        if row is None:
            return False
        note(self._session, BEST, device_model, asdict(problem))
        winner = trial_of(self._session.get_one(TrialRow, row.trial_id))
        ended = BestRecord(device_model, problem, winner, None, None, None, None, row.tuned_at)
        BestHistoryRepository(self._session).add(DELETED, ended)
        self._session.delete(row)
        return True

    def all(self, problem_keys: Collection[str] | None = None) -> list[BestRecord]:
        """Every best with its trials, or those of some problems, in one query, by device model and problem."""
        trial = aliased(TrialRow, name="trial")
        beside = {name: aliased(TrialRow, name=name) for name in _BESIDE}
        query = select(BestRow, trial, *beside.values()).join(trial, trial.id == BestRow.trial_id)
        for name, other in beside.items():
            query = query.outerjoin(other, other.id == getattr(BestRow, f"{name}_id"))
        if problem_keys is not None:
            query = query.where(BestRow.problem_key.in_(problem_keys))
        rows = self._session.execute(query.order_by(BestRow.device_model, BestRow.problem_key))
        return [_best(row, winner, *others) for row, winner, *others in rows]

    def promotions(self) -> list[Promotion]:
        """Which trial every best is of and since when, without the trials: a hundredth of what reading all takes."""
        columns = (BestRow.device_model, BestRow.problem_key, BestRow.trial_id, BestRow.tuned_at)
        return [Promotion(*row) for row in self._session.execute(select(*columns))]

    def crossed(
        self,
        around: Collection[BestRecord] | None = None,
        first: Collection[BestRecord] = (),
        limit: int = 100_000,
    ) -> list[CrossRecord]:
        """Times of winners on the other tuned problems of their model and family, the newest `limit`, oldest first.

        Only trials of the search and the finals in the environment of the problem's own best, of the winner's kernel
        text; with `around` only those on the problems of these bests, and of the configs of `first` on others.
        """
        own, winner = aliased(TrialRow, name="own"), aliased(TrialRow, name="winner")
        winners = (
            select(*(getattr(winner, name) for name in _CLASS))
            .join(BestRow, BestRow.trial_id == winner.id)
            .distinct()
            .subquery()
        )
        told = ("device_model", "kernel", "round", "median_ms", "samples", "dropped")
        columns = ("id", "problem_key", *PROBLEM, "config_key", "config", *told)
        query = (
            select(*(getattr(TrialRow, name) for name in columns))
            .join(BestRow, _equal(TrialRow, BestRow, "device_model", "problem_key"))
            .join(own, and_(own.id == BestRow.trial_id, own.environment == TrialRow.environment))
            .join(winners, _equal(TrialRow, winners.c, *_CLASS))
            .where(TrialRow.state == "measured", TrialRow.round.in_(("search", "final")))
            .order_by(TrialRow.id.desc())
            .limit(limit)
        )
        if around is not None:
            keys = {one.problem.key for one in around}
            query = query.where(or_(TrialRow.problem_key.in_(keys), *map(_won_by, first)))
        problems, configs = dict[str, Problem](), dict[str, Config]()  # thousands of rows are of few of them
        found = []
        for row in self._session.execute(query):
            problem = problems.get(row.problem_key) or problems.setdefault(row.problem_key, problem_of(row))
            config = configs.get(row.config_key) or configs.setdefault(row.config_key, Config.of(row.config))
            found.append(CrossRecord(problem=problem, config=config, **taken(row, told)))
        return found[::-1]


def _won_by(best: BestRecord) -> ColumnElement[bool]:
    """That a trial is of the kernel and config of this best."""
    return and_(TrialRow.kernel == best.trial.kernel, TrialRow.config_key == str(best.trial.config))


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
