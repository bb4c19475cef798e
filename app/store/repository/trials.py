"""The trials of all jobs, prior times from them for other problems and devices, and the configs that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import log2
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from app.store.records import FaultRecord, KnownRecord, PointRecord, TrialRecord
from app.store.repository.mapping import PROBLEM, alike, counted, insert, taken, trial_of, trial_row
from app.store.sharing.claims import expect_held, serialised
from app.store.sharing.notices import FAULT, JOB, note
from app.store.tables import BestRow, FaultRow, TrialRow
from kernels.problem import Problem
from kernels.space import Config

_ROUNDS: Final = ("search", "final")  # a report's trials repeat two of these
_SIZES: Final = ("m", "n", "k", "batch")
_FAMILY: Final = tuple(name for name in PROBLEM if name not in _SIZES)
_VENDOR: Final = "vendor"
_POINT: Final = ("id", "kernel", "round", "state", "reason", "median_ms", "config")
_SPACE: Final = ("device_model", "problem_key", "kernel", "kernel_digest")
_FAULT: Final = tuple(field.name for field in fields(FaultRecord) if field.name != "config")
_PLACE: Final = ("device_model", "environment", "kernel", "kernel_digest", "scope", "kind")


class TrialRepository:
    """The trials of every job."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: TrialRecord) -> int:
        """Save a new trial and return its id.

        Raises ValueError if the job already has a trial of this model, problem, kernel, config and round, or is
        unknown; the transaction is then over. Raises ClaimLost where another service runs the job.
        """
        expect_held(self._session, record.job_id)
        note(self._session, JOB, record.job_id)
        row = trial_row(record)
        tried = f"{record.kernel} {record.config} on {record.problem.key} in job {record.job_id}"
        insert(self._session, row, f"the trial of {tried}")
        return row.id

    def of_job(self, job_id: str, after: int = 0) -> list[TrialRecord]:
        """A job's trials with an id above `after`, in the order of their commits."""
        query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.id > after).order_by(TrialRow.id)
        return [trial_of(row) for row in self._session.scalars(query)]

    def newest(self, after: int, count: int) -> list[TrialRecord]:
        """The newest `count` trials of all jobs with an id above `after`, in the order of their commits."""
        query = select(TrialRow).where(TrialRow.id > after).order_by(TrialRow.id.desc()).limit(count)
        return [trial_of(row) for row in reversed(self._session.scalars(query).all())]

    def last_id(self) -> int:
        """The id of the newest trial; 0 if there is none."""
        return self._session.scalar(select(func.max(TrialRow.id))) or 0

    def search(
        self,
        device_model: str | None = None,
        problem_key: str | None = None,
        problem: Mapping[str, Any] | None = None,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        round: str | None = None,  # noqa: A002 - the column's name
        kernel_digest: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[TrialRecord]:
        """The first `limit` trials with an id above `after` that match the filters, in the order of commits.

        `problem` has some or all members of a problem.
        """
        given = _matching(
            problem,
            device_model=device_model,
            problem_key=problem_key,
            kernel=kernel,
            kernel_digest=kernel_digest,
            state=state,
            job_id=job_id,
            round=round,
        )
        query = select(TrialRow).where(TrialRow.id > after, *given).order_by(TrialRow.id).limit(limit)
        return [trial_of(row) for row in self._session.scalars(query)]

    def points(
        self, problem: Mapping[str, Any] | None = None, limit: int | None = None, **filters: str | None
    ) -> list[PointRecord]:
        """The newest `limit` trials that match the filters of `search`, or all, oldest first, without their samples."""
        columns = [getattr(TrialRow, name) for name in (*PROBLEM, *_POINT)]
        query = select(*columns).where(*_matching(problem, **filters)).order_by(TrialRow.id.desc()).limit(limit)
        return [_point(row) for row in reversed(self._session.execute(query).all())]

    def spaces(self, problem: Mapping[str, Any] | None = None, **filters: str | None) -> list[dict[str, str]]:
        """The device models, problems and kernels' texts of the trials that match the filters, the oldest first.

        The vendor's library is not among them: it has no space.
        """
        columns = [getattr(TrialRow, name) for name in _SPACE]
        query = select(*columns).where(TrialRow.kernel != _VENDOR, *_matching(problem, **filters))
        rows = self._session.execute(query.group_by(*columns).order_by(func.min(TrialRow.id)))
        return [dict(zip(_SPACE, row, strict=True)) for row in rows]

    def top(self, job_id: str, device_model: str, problem: Problem, count: int = 8) -> list[TrialRecord]:
        """The fastest configs that a job measured on a problem and model, finalists first.

        Neither the vendor's library nor finalists that were found wrong.
        """
        query = select(TrialRow).where(
            TrialRow.job_id == job_id,
            TrialRow.device_model == device_model,
            TrialRow.problem_key == problem.key,
            TrialRow.round.in_(_ROUNDS),
            TrialRow.kernel != _VENDOR,
        )
        order = (TrialRow.round != "final", TrialRow.state != "rejected", TrialRow.median_ms, TrialRow.id)
        first: dict[tuple[str, str], TrialRow] = {}
        for row in self._session.scalars(query.order_by(*order)):
            first.setdefault((row.kernel, row.config_key), row)
        measured = [row for row in first.values() if row.state == "measured"]
        return [trial_of(row) for row in measured[:count]]

    def drop(self, ids: Iterable[int]) -> None:
        """Delete unreferenced trials, such as those not tried for lack of time when there is time now."""
        self._session.execute(delete(TrialRow).where(TrialRow.id.in_(list(ids))))

    def redo(self, job_id: str, device_model: str, problem: Problem) -> None:
        """Delete a problem's best and this job's trials of it after its search, before a new promotion."""
        expect_held(self._session, job_id)
        serialised(self._session, f"best {device_model} {problem.key}")
        best = (BestRow.device_model == device_model, BestRow.problem_key == problem.key)
        self._session.execute(delete(BestRow).where(*best))
        place = (TrialRow.device_model == device_model, TrialRow.problem_key == problem.key)
        self._session.execute(delete(TrialRow).where(TrialRow.job_id == job_id, *place, TrialRow.round != "search"))

    def known(
        self, kernel: str, kernel_digest: str, problem: Problem, device_model: str, most: int = 8
    ) -> list[KnownRecord]:
        """Times of a kernel's configs on the tuned problems of the family, nearest first.

        At most `most` other problems of this model and as many other models with this very problem.
        """
        places = self._places(problem, device_model, most)
        if not places:
            return []
        columns = (TrialRow.device_model, TrialRow.problem_key, TrialRow.config, TrialRow.median_ms)
        there = [and_(TrialRow.device_model == model, TrialRow.problem_key == other.key) for model, other in places]
        query = select(*columns).where(
            or_(*there),
            TrialRow.kernel == kernel,
            TrialRow.kernel_digest == kernel_digest,
            TrialRow.state == "measured",
            TrialRow.round.in_(_ROUNDS),
        )
        times: dict[tuple[str, str], dict[Config, float]] = {}
        for model, key, config, median_ms in self._session.execute(query.order_by(TrialRow.id)):
            times.setdefault((model, key), {})[Config.of(config)] = median_ms
        measured = ((model, other, times.get((model, other.key))) for model, other in places)
        return [KnownRecord(model, other, found) for model, other, found in measured if found]

    def tally(self) -> dict[str, int]:
        """How many there are by state."""
        return counted(self._session, TrialRow.state)

    def _places(self, problem: Problem, device_model: str, most: int) -> list[tuple[str, Problem]]:
        """Where the family has been tuned, this problem on this model excepted, nearest first."""
        family = [getattr(TrialRow, name) == getattr(problem, name) for name in _FAMILY]
        relevant = or_(TrialRow.device_model == device_model, TrialRow.problem_key == problem.key)
        # A whole trial has samples and conditions too, tens of times the bytes.
        columns = [getattr(TrialRow, name) for name in ("device_model", *PROBLEM)]
        query = select(*columns).join(BestRow, BestRow.trial_id == TrialRow.id).where(*family, relevant)
        found = [(model, Problem(*members)) for model, *members in self._session.execute(query)]
        here = [place for place in found if place[0] == device_model and place[1] != problem]
        there = [place for place in found if place[0] != device_model]
        return [*sorted(there, key=lambda place: place[0])[:most], *_nearest(here, problem)[:most]]


def _point(row: Any) -> PointRecord:
    *values, config = row[len(PROBLEM) :]
    named = dict(zip(_POINT, values, strict=False))
    return PointRecord(problem=Problem(*row[: len(PROBLEM)]), config=Config.of(config), **named)


def _matching(problem: Mapping[str, Any] | None, **values: str | None) -> list[ColumnElement[bool]]:
    """That a trial has some members of a problem, and columns the values that are given."""
    given = [getattr(TrialRow, name) == value for name, value in values.items() if value is not None]
    return [*given, *alike(TrialRow, problem or {})]


def _nearest(places: Iterable[tuple[str, Problem]], problem: Problem) -> list[tuple[str, Problem]]:
    def distance(place: tuple[str, Problem]) -> tuple[float, Problem]:
        other = place[1]
        return sum(log2(getattr(other, size) / getattr(problem, size)) ** 2 for size in _SIZES), other

    return sorted(places, key=distance)


class FaultRepository:
    """Configs that failed: the negative cache, and the quarantine (kind wrong)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, *records: FaultRecord) -> None:
        """Keep faults; of equal kind, place and scope the first stays."""
        if records:
            serialised(self._session, "faults")
            note(self._session, FAULT)
        for record in records:
            place = [getattr(FaultRow, name) == getattr(record, name) for name in _PLACE]
            query = select(FaultRow.id).where(*place, FaultRow.config_key == str(record.config))
            if self._session.scalar(query) is None:
                row = FaultRow(config=dict(record.config), config_key=str(record.config), **taken(record, _FAULT))
                insert(self._session, row, f"the fault of {record.kernel} {record.config}")

    def of(self, device_model: str, environment: str) -> list[FaultRecord]:
        """Every fault of a device model under an environment, in the order in which they were found."""
        return self._found(device_model=device_model, environment=environment)

    def held(self) -> list[FaultRecord]:
        """Every config that is not served, on any model: wrong results, and faults found by products."""
        return self._found(or_(FaultRow.kind == "wrong", FaultRow.job_id.is_(None)))

    def _found(self, *conditions: ColumnElement[bool], **equal: str) -> list[FaultRecord]:
        query = select(FaultRow).where(*conditions).filter_by(**equal).order_by(FaultRow.id)
        return [FaultRecord(config=Config.of(row.config), **taken(row, _FAULT)) for row in self._session.scalars(query)]
