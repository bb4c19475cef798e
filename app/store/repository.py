"""Every SELECT of the project: records in, records out, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, func, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from app.store.records import BestRecord, JobRecord, TrialRecord
from app.store.tables import Base, BestRow, DeviceRow, JobRow, Moment, TrialRow
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config

_UNFINISHED: Final = ("queued", "running")
# What a record and its row call by the same name, and keep alike.
_PROBLEM: Final = tuple(field.name for field in fields(Problem))
_TRIAL: Final = tuple(field.name for field in fields(TrialRecord) if field.name not in {"problem", "config"})
_JOB: Final = tuple(field.name for field in fields(JobRecord))
_DEVICE: Final = tuple(field.name for field in fields(Device) if field.name not in {"id", "limits"})


class Devices:
    """The devices that services on this database have opened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def save(self, *devices: Device) -> None:
        """Keep devices as they are now: one row for each model and UUID."""
        for device in devices:
            own = {"host_id": device.id, "model": device.model, "limits": asdict(device.limits)}
            self._session.merge(DeviceRow(**own, **_taken(device, _DEVICE)))

    def all(self) -> list[Device]:
        """Every device ever opened, by id."""
        rows = self._session.scalars(select(DeviceRow).order_by(DeviceRow.host_id, DeviceRow.model, DeviceRow.uuid))
        return [Device(id=row.host_id, limits=Limits(**row.limits), **_taken(row, _DEVICE)) for row in rows]


class Trials:
    """The trials of every job."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: TrialRecord) -> int:
        """Save a new trial and return its id.

        Raises ValueError where the job already has a trial of this model, problem, kernel and config, or is unknown;
        the transaction is then over.
        """
        row = TrialRow(
            problem_key=record.problem.key,
            config=dict(record.config),
            config_key=str(record.config),
            **_taken(record.problem, _PROBLEM),
            **_taken(record, _TRIAL),
        )
        tried = f"{record.kernel} {record.config} on {record.problem.key} in job {record.job_id}"
        _insert(self._session, row, f"the trial of {tried}")
        return row.id

    def of_job(self, job_id: str, after: int = 0) -> list[TrialRecord]:
        """A job's trials with an id above `after`, in the order of their commits."""
        query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.id > after).order_by(TrialRow.id)
        return [_trial(row) for row in self._session.scalars(query)]

    def search(
        self,
        device_model: str | None = None,
        problem_key: str | None = None,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[TrialRecord]:
        """The first `limit` trials with an id above `after` that equal what is given, in the order of their commits."""
        wanted = {
            TrialRow.device_model: device_model,
            TrialRow.problem_key: problem_key,
            TrialRow.kernel: kernel,
            TrialRow.state: state,
            TrialRow.job_id: job_id,
        }
        given = [column == value for column, value in wanted.items() if value is not None]
        query = select(TrialRow).where(TrialRow.id > after, *given).order_by(TrialRow.id).limit(limit)
        return [_trial(row) for row in self._session.scalars(query)]

    def tally(self) -> dict[str, int]:
        """How many there are by state."""
        return _counted(self._session, TrialRow.state)


class Bests:
    """The promoted trial of each device model and problem."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def promote(self, *records: BestRecord) -> None:
        """Put saved trials, with the baselines beside them, in the place of whatever was best."""
        for record in records:
            self._session.merge(_best_row(record))

    def all(self) -> list[BestRecord]:
        """Every best with its trials, in one query, by device model and problem."""
        trial, naive, tiled, vendor = (aliased(TrialRow, name=name) for name in ("trial", "naive", "tiled", "vendor"))
        query = (
            select(BestRow, trial, naive, tiled, vendor)
            .join(trial, trial.id == BestRow.trial_id)
            .outerjoin(naive, naive.id == BestRow.naive_id)
            .outerjoin(tiled, tiled.id == BestRow.tiled_id)
            .outerjoin(vendor, vendor.id == BestRow.vendor_id)
            .order_by(BestRow.device_model, BestRow.problem_key)
        )
        return [_best(*row) for row in self._session.execute(query)]


class Jobs:
    """Durable work, in the order in which it was taken."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: JobRecord) -> None:
        """Save a new job; raises ValueError where there is one of its id, and the transaction is then over."""
        _insert(self._session, JobRow(**_taken(record, _JOB)), f"job {record.id}")

    def get(self, job_id: str) -> JobRecord | None:
        """One job, or None."""
        return _job_or_none(self._session.scalar(select(JobRow).where(JobRow.id == job_id)))

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

    def unfinished(self) -> list[JobRecord]:
        """Every queued or running job, oldest first."""
        query = select(JobRow).where(JobRow.state.in_(_UNFINISHED)).order_by(JobRow.number)
        return [_job(row) for row in self._session.scalars(query)]

    def start(self, job_id: str, total: int, at: datetime) -> bool:
        """The job runs, with at most `total` trials before it: False where it has ended, or is unknown.

        One that resumes keeps the moment it first started.
        """
        first = func.coalesce(JobRow.started_at, literal(at, Moment))
        return self._change(job_id, state="running", total=total, started_at=first)

    def advance(self, job_id: str, best_ms: float | None) -> None:
        """One more trial is over."""
        self._change(job_id, done=JobRow.done + 1, best_ms=best_ms)

    def finish(
        self, job_id: str, state: str, result: dict[str, Any] | None, error: dict[str, Any] | None, at: datetime
    ) -> None:
        """End the job; one that has ended stays as it is."""
        self._change(job_id, state=state, result=result, error=error, finished_at=at)

    def ask_cancel(self, job_id: str, at: datetime | None = None) -> None:
        """Ask the job to end; with `at`, one that nobody has started ends at once; one that has ended stays."""
        self._change(job_id, cancel_requested=True)
        if at is not None:
            self._change(job_id, JobRow.state == "queued", state="cancelled", finished_at=at)

    def list(
        self, state: str | None = None, kind: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[JobRecord]:
        """The newest `limit` jobs that equal what is given, newest first; `before` is the last id already seen."""
        query = select(JobRow).order_by(JobRow.number.desc()).limit(limit)
        if state is not None:
            query = query.where(JobRow.state == state)
        if kind is not None:
            query = query.where(JobRow.kind == kind)
        if before is not None:
            query = query.where(JobRow.number < select(JobRow.number).where(JobRow.id == before).scalar_subquery())
        return [_job(row) for row in self._session.scalars(query)]

    def tally(self) -> dict[str, int]:
        """How many there are by state."""
        return _counted(self._session, JobRow.state)

    def _change(self, job_id: str, *where: ColumnElement[bool], **values: Any) -> bool:
        unfinished = JobRow.state.in_(_UNFINISHED)
        change = update(JobRow).where(JobRow.id == job_id, unfinished, *where).values(**values)
        return self._session.scalar(change.returning(JobRow.number)) is not None


def _counted(session: Session, column: Any) -> dict[str, int]:
    return {str(value): count for value, count in session.execute(select(column, func.count()).group_by(column))}


def _insert(session: Session, row: Base, what: str) -> None:
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise ValueError(f"{what} is refused: {error.orig}") from error


def _taken(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _saved(trial: TrialRecord) -> int:
    if trial.id is None:
        raise ValueError(f"the trial of {trial.kernel} {trial.config} has not been saved")
    return trial.id


def _trial(row: TrialRow) -> TrialRecord:
    problem = Problem(**_taken(row, _PROBLEM))
    return TrialRecord(problem=problem, config=Config.of(row.config), **_taken(row, _TRIAL))


def _trial_or_none(row: TrialRow | None) -> TrialRecord | None:
    return None if row is None else _trial(row)


def _job(row: JobRow) -> JobRecord:
    return JobRecord(**_taken(row, _JOB))


def _job_or_none(row: JobRow | None) -> JobRecord | None:
    return None if row is None else _job(row)


def _best_row(record: BestRecord) -> BestRow:
    return BestRow(
        device_model=record.device_model,
        problem_key=record.problem.key,
        trial_id=_saved(record.trial),
        naive_id=record.naive and _saved(record.naive),
        tiled_id=record.tiled and _saved(record.tiled),
        vendor_id=record.vendor and _saved(record.vendor),
        vendor_reason=record.vendor_reason,
        tuned_at=record.tuned_at,
    )


def _best(
    row: BestRow, trial: TrialRow, naive: TrialRow | None, tiled: TrialRow | None, vendor: TrialRow | None
) -> BestRecord:
    winner = _trial(trial)
    return BestRecord(
        device_model=row.device_model,
        problem=winner.problem,
        trial=winner,
        naive=_trial_or_none(naive),
        tiled=_trial_or_none(tiled),
        vendor=_trial_or_none(vendor),
        vendor_reason=row.vendor_reason,
        tuned_at=row.tuned_at,
    )
