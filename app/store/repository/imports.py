"""What principals imported: files of results, and the spaces that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from app.store.records import ImportedSpaceRecord, ImportRecord
from app.store.repository.mapping import taken
from app.store.tables import ImportedSpaceRow, ImportRow
from kernels.problem import Problem
from kernels.space import Config

_IMPORT: Final = ("id", "principal", "format", "sha256", "nbytes", "counts", "created_at", "expires_at")
_SPACE: Final = ("import_id", "kind", "device", "kernel", "best_ms", "packed")
_BEST: Final = (ImportedSpaceRow.problem_key, ImportedSpaceRow.best_config)


class ImportRepository:
    """Imports; an owner of None stands for everybody."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, record: ImportRecord, spaces: Iterable[ImportedSpaceRecord]) -> None:
        """Save an import with what it holds."""
        self._session.add(ImportRow(**taken(record, _IMPORT) | {"counts": dict(record.counts)}))
        self._session.flush()
        for space in spaces:
            best = None if space.best_config is None else dict(space.best_config)
            self._session.add(ImportedSpaceRow(problem_key=space.problem.key, best_config=best, **taken(space, _SPACE)))

    def list(self, owner: str | None = None) -> Sequence[ImportRecord]:
        """An owner's imports, newest first."""
        query = select(ImportRow).where(*_owned(owner)).order_by(ImportRow.created_at.desc(), ImportRow.id)
        return [ImportRecord(**taken(row, _IMPORT)) for row in self._session.scalars(query)]

    def get(self, import_id: str, owner: str | None = None) -> ImportRecord | None:
        """One import, or None."""
        row = self._session.scalar(select(ImportRow).where(ImportRow.id == import_id, *_owned(owner)))
        return None if row is None else ImportRecord(**taken(row, _IMPORT))

    def used(self, owner: str) -> int:
        """Bytes that are stored of an owner's imports."""
        found = self._session.scalar(select(func.sum(ImportRow.nbytes)).where(ImportRow.principal == owner))
        return int(found or 0)

    def spaces(
        self, import_id: str | None = None, owner: str | None = None, family: str | None = None
    ) -> Sequence[ImportedSpaceRecord]:
        """The spaces of an import, or of an owner's, or those whose problems are of a family; the newest last."""
        query = select(ImportedSpaceRow).join(ImportRow, ImportRow.id == ImportedSpaceRow.import_id)
        given = [] if import_id is None else [ImportedSpaceRow.import_id == import_id]
        given += [] if family is None else [ImportedSpaceRow.problem_key.startswith(family + "/", autoescape=True)]
        query = query.where(*given, *_owned(owner)).order_by(ImportRow.created_at, ImportedSpaceRow.number)
        return [
            ImportedSpaceRecord(
                problem=Problem.of_key(row.problem_key),
                best_config=None if row.best_config is None else Config.of(row.best_config),
                **taken(row, _SPACE),
            )
            for row in self._session.scalars(query)
        ]

    def bests(self) -> Sequence[ImportedSpaceRecord]:
        """Every space with a best config, without its packed results; the newest last."""
        columns = (*(getattr(ImportedSpaceRow, name) for name in _SPACE[:-1]), *_BEST)
        query = select(*columns).join(ImportRow, ImportRow.id == ImportedSpaceRow.import_id)
        query = query.order_by(ImportRow.created_at, ImportedSpaceRow.number)
        return [
            ImportedSpaceRecord(
                problem=Problem.of_key(row.problem_key),
                best_config=Config.of(row.best_config),
                packed=b"",
                **taken(row, _SPACE[:-1]),
            )
            for row in self._session.execute(query)
            if row.best_config is not None
        ]

    def delete(self, *ids: str) -> None:
        """Delete imports with what they hold."""
        self._session.execute(delete(ImportedSpaceRow).where(ImportedSpaceRow.import_id.in_(ids)))
        self._session.execute(delete(ImportRow).where(ImportRow.id.in_(ids)))

    def expired(self, now: datetime) -> Sequence[str]:
        """The ids of imports whose time is over."""
        return self._session.scalars(select(ImportRow.id).where(ImportRow.expires_at <= now)).all()


def _owned(owner: str | None) -> list[ColumnElement[bool]]:
    return [] if owner is None else [ImportRow.principal == owner]
